"""A run's joint model, rebuilt in this process from the last checkpoint: to be asked, or to train on."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from vfl.base.modules import blaming, check_same_data
from vfl.config import ConfigError, ExperimentConfig
from vfl.core.build import Start, build_finished_party, build_joint_model, build_party, training_labels
from vfl.core.finished_party import FinishedParty
from vfl.core.local import InProcess, LocalFederation, build_in_process, links_to
from vfl.core.party import SECTION, FeatureParty
from vfl.core.server import OWNER as SERVER
from vfl.core.tasks import Task, restored_task
from vfl.data.files import Labels
from vfl.data.samples import Samples
from vfl.data.source import Prepared, Source, load_all_names, open_source, prepare_party, split_samples, stand_in
from vfl.runs.checkpoint import CheckpointStore, State
from vfl.runs.run_folder import PROCESSES
from vfl.runs.runtime import start_runtime
from vfl.runs.stored_run import Run

DRAWN = 32
"""Least number of random rows that replace a run's data."""


class RunCheckpoint(NamedTuple):
    """Configuration and one checkpoint of a run."""

    config: ExperimentConfig
    rounds: int
    """Rounds done when the checkpoint was saved."""
    digest: str
    """Digest of that checkpoint."""
    sections: dict[str, State]
    """States of the server and, by name, its parties: whole states, or references to those that party processes
    keep."""


def read_checkpoint(run: Run, done: int | None = None) -> RunCheckpoint:
    """Read a run's configuration and last checkpoint, or the one after ``done`` rounds.

    Raises ConfigError for a run that is not vertical or has no checkpoints, CorruptCheckpoint if the last is damaged
    (an older one would be another model).
    """
    last, checkpoints = run.saved_rounds()[-1], run.checkpoints
    done = last if done is None else done
    sections = checkpoints.load(done)
    if SECTION in sections:
        raise ConfigError(f"{run}: holds one party's own model, which can only be exported")
    del sections["loop"]
    return RunCheckpoint(run.config, done, checkpoints.digest(done), sections)


def load_run_with_data(run: Run, done: int | None = None, config: ExperimentConfig | None = None) -> InProcess:
    """Return the experiment with its data as at the end of the run, or after ``done`` rounds, to train on.

    ``config`` replaces the run's own. The models are in evaluation mode. Raises as ``read_checkpoint``; ConfigError if
    other processes keep the parties' models, ValueError if the data has changed or is missing.
    """
    own, sections = whole_states(run, done)
    config = without_weights(config or own)
    start = None if config.training.start_from is None else Start(sections, fresh=False)
    source = open_source(config)
    load_all_names(source, sections)
    built = build_in_process(config, start_runtime(config), source=source, start=start)
    with blaming(str(run)):
        built.server.load_state_dict(sections)
    for party in built.parties:
        party.model.eval()
    return built


def open_federation(run: Run, *, with_data: bool, prunable: bool = False) -> LocalFederation:
    """Return the joint model of a run, with all parties' finished models in this process. It cannot train.

    ``with_data``: on the samples that the run evaluated; otherwise nothing is read but the run, and random rows stand
    without its samples, to be used on others. A run of an earlier version needs its data: it did not store the
    form of new samples. ``prunable``: its parties are feature parties, whose pruners know the layers. Raises as
    ``load_run_with_data``.
    """
    config, sections = whole_states(run)
    check_whole_images(run, sections[SERVER].get("reports", {}))
    own = sections[SERVER]
    if not with_data and not all("raw" in state for name, state in sections.items() if name != SERVER):
        try:
            return open_federation(run, with_data=True, prunable=prunable)
        except ValueError as error:
            raise ConfigError(
                f"{run}: was trained by an earlier version and needs its training data: {error}"
            ) from None
    source, runtime = open_source(config), start_runtime(config)
    with blaming(str(run)):
        held, raw, task, test = (_own_data if with_data else _random_data)(config, source, sections)
    parties: list[FinishedParty] = []
    for name, data in held.items():
        party = (
            build_party(name, data, None, config, runtime)
            if prunable
            else build_finished_party(name, data, config, runtime)
        )
        party.load_finished(sections[name])
        party.model.eval()
        parties.append(party)
    joint = build_joint_model(links_to(parties, config), task, test, config, runtime, own)
    return LocalFederation(joint, parties, source, raw)


def _own_data(
    config: ExperimentConfig, source: Source, sections: Mapping[str, State]
) -> tuple[dict[str, Prepared], Sequence[Samples], Task, Labels]:
    """Return a run's samples by party, the raw training ones, the task and the labels of the samples it evaluated.

    Raises ValueError for changed data.
    """
    kept: Mapping[str, State] = {} if config.training.start_from is None else sections
    load_all_names(source, sections)
    split = split_samples(source, kept)
    # As it was fitted: an earlier version may have fitted otherwise.
    fitted = {name: state for name, state in sections.items() if "raw" in state}
    held = {data.party: prepare_party(source, data, fitted.get(data.party)) for data in split.parties}
    labels = training_labels(split.labels, config, kept.get(SERVER))
    check_same_data("the labels", sections[SERVER]["data_digest"], labels.digest(split.labels.test))
    for name, data in held.items():
        check_same_data(f"{name}'s features", sections[name]["data_digest"], data.digest)
    return held, [part.train for part in split.parties], labels.task, split.labels.test


def _random_data(
    config: ExperimentConfig, source: Source, sections: Mapping[str, State]
) -> tuple[dict[str, Prepared], Sequence[Samples], Task, Labels]:
    """Return random samples of the form of a run's own, the run's task, and no labels."""
    rows = _rows(config)
    held = {name: stand_in(source, name, sections[name], rows) for name in source.parties}
    task = restored_task(sections[SERVER]["task"])
    nothing = Labels(torch.arange(0), torch.zeros(0, dtype=torch.int64 if task.names else torch.float32))
    return {name: own for name, (own, _) in held.items()}, [raw for _, raw in held.values()], task, nothing


def whole_states(run: Run, done: int | None = None) -> tuple[ExperimentConfig, dict[str, State]]:
    """Return a run's configuration and all owners' whole states. Raises as ``read_checkpoint``."""
    trained = read_checkpoint(run, done)
    config, sections = trained.config, trained.sections
    for name in config.parties:
        sections[name] = _whole_state(run, name, sections[name])
    return without_weights(config), sections


def without_weights(config: ExperimentConfig) -> ExperimentConfig:
    """Return the experiment of models whose weights a checkpoint has."""
    return config.model_copy(update={"models": config.models.without_weights()})


def load_party(run: Run, done: int | None = None) -> tuple[FeatureParty, Source, Samples] | None:
    """Return the party whose own folder this is, its source and random raw samples.

    As of its last checkpoint, or of the one after so many rounds.

    None for the folder of a whole run. Raises ConfigError for a folder of neither.
    """
    rounds = run.checkpoints.rounds()
    state = run.checkpoints.load(done or rounds[-1]).get(SECTION) if rounds else None
    if state is None:
        return None
    config, name = without_weights(run.config), state["name"]
    source = open_source(config)
    check_whole_images(run, {state["name"]: state})
    if "raw" not in state:
        raise ConfigError(f"{run}: was trained by an earlier version, which kept too little to export it; train again")
    prepared, raw = stand_in(source, name, state, _rows(config))
    party = build_party(name, prepared, None, config, start_runtime(config))
    party.load_finished(state)
    return party, source, raw


def check_whole_images(run: Run, states: Mapping[str, State]) -> None:
    """Raise ConfigError, given parties' states or last reports, for a model trained on smaller images so far."""
    if smaller := [name for name, state in states.items() if state.get("resolution", 1.0) < 1]:
        raise ConfigError(
            f"{run}: {smaller[0]} has trained on smaller images so far (lightweighting.resolution); train on to "
            "the end: lvfl train with --resume"
        )


def _whole_state(run: Run, name: str, state: State) -> State:
    """Return a party's state, even if the party was a separate process on this machine."""
    if "model" in state:
        return state
    store = CheckpointStore(run.folder / PROCESSES / name / "checkpoints")
    if state["round"] not in store.rounds() or store.digest(state["round"]) != state["digest"]:
        raise ConfigError(f"{run}: {name} keeps its model elsewhere; let it answer: lvfl predict --listen")
    return store.load(state["round"])[SECTION]


def _rows(config: ExperimentConfig) -> int:
    """Return a number of random rows with which the configuration is valid, though nothing is trained."""
    return max(config.training.batch_size * (1 + config.training.staleness), DRAWN)
