"""A run's joint model, rebuilt in this process from the last checkpoint: to be asked, or to train on."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch

from vfl.base.modules import blaming, check_same_data
from vfl.config import ConfigError, ExperimentConfig
from vfl.core.build import Start, TrainingLabels, build_finished_party, build_joint_model
from vfl.core.finished_party import FinishedParty, PartyHere
from vfl.core.local import InProcess, LocalFederation, build_in_process
from vfl.core.party import SECTION
from vfl.core.tasks import Task, restored_task
from vfl.data.files import in_classes
from vfl.data.samples import Labels, Samples
from vfl.data.source import (
    SERVER,
    Prepared,
    Source,
    load_all_names,
    open_source,
    prepare_party,
    split_samples,
    stand_in,
)
from vfl.runs.checkpoint import CheckpointStore, State
from vfl.runs.run_folder import PROCESSES
from vfl.runs.runtime import start_runtime
from vfl.runs.stored_run import Run


class RunCheckpoint(NamedTuple):
    """One checkpoint of a run."""

    rounds: int
    """Rounds done when the checkpoint was saved."""
    digest: str
    """Digest of that checkpoint."""
    sections: dict[str, State]
    """States of the server and, by name, its parties: whole states, or references to those that party processes
    keep."""


def read_checkpoint(run: Run, done: int | None = None) -> RunCheckpoint:
    """Read a run's last checkpoint, or the one after ``done`` rounds.

    Raises ConfigError for a run that is not vertical or has no checkpoints, CorruptCheckpoint if the last is damaged
    (an older one would be another model).
    """
    last, checkpoints = run.saved_rounds()[-1], run.checkpoints
    done = last if done is None else done
    sections = checkpoints.load(done)
    if SECTION in sections:
        raise ConfigError(f"{run}: holds one party's own model, which can only be exported")
    del sections["loop"]
    return RunCheckpoint(done, checkpoints.digest(done), sections)


def load_run_with_data(run: Run, done: int | None = None, config: ExperimentConfig | None = None) -> InProcess:
    """Return the experiment with its data as at the end of the run, or after ``done`` rounds, to train on.

    ``config`` replaces the run's own. The models are in evaluation mode. Raises as ``read_checkpoint``; ConfigError if
    other processes keep the parties' models, ValueError if the data has changed or is missing.
    """
    sections = whole_states(run, done)
    config = without_weights(config or run.vertical)
    start = None if config.training.start_from is None else Start(sections, fresh=False)
    source = open_source(config)
    load_all_names(source, sections)
    built = build_in_process(config, start_runtime(config), source=source, start=start)
    with blaming(str(run)):
        built.server.load_state_dict(sections)
    for party in built.parties:
        party.model.eval()
    return built


def open_federation(run: Run, *, with_data: bool) -> LocalFederation:
    """Return the joint model of a run, with all parties' finished models in this process. It cannot train.

    ``with_data``: on the samples that the run evaluated; otherwise nothing is read but the run, and random rows stand
    without its samples, to be used on others. Raises as ``load_run_with_data``.
    """
    config, states = run.prediction, whole_states(run)
    own = states.pop(SERVER)
    check_whole_images(run, own.get("reports", {}))
    source, runtime = open_source(config), start_runtime(config)
    with blaming(str(run)):
        held, raw, task, test = _own_data(source, own, states) if with_data else _random_data(source, own, states)
    parties = [build_finished_party(name, data, states[name], config, runtime) for name, data in held.items()]
    asked = [PartyHere(party) for party in parties]
    joint = build_joint_model(asked, task, test, config, runtime, own)
    return LocalFederation(joint, parties, source, raw)


def _own_data(
    source: Source, own: State, states: Mapping[str, State]
) -> tuple[dict[str, Prepared], Sequence[Samples], Task, Labels]:
    """Return a run's samples by party, the raw training ones, the task and the labels of the samples it evaluated.

    Raises ValueError for changed data.
    """
    load_all_names(source, states)
    split = split_samples(source)
    held = {data.party: prepare_party(source, data, states[data.party]) for data in split.parties}
    labels = split.labels
    with suppress(ConfigError):  # classes that the run does not have: the digest differs as well
        labels = in_classes(labels, own["task"])
    task, train = restored_task(own["task"]), labels.train
    trained = TrainingLabels(train.values, task, train.present, train.weights)
    check_same_data("the labels", own["data_digest"], trained.digest(labels.test))
    for name, data in held.items():
        check_same_data(f"{name}'s features", states[name]["data_digest"], data.digest)
    return held, [part.train for part in split.parties], trained.task, labels.test


def _random_data(
    source: Source, own: State, states: Mapping[str, State]
) -> tuple[dict[str, Prepared], Sequence[Samples], Task, Labels]:
    """Return random samples of the form of a run's own, the run's task, and no labels."""
    held, raw, task = dict[str, Prepared](), list[Samples](), restored_task(own["task"])
    for name in source.parties:
        held[name], drawn = stand_in(source, name, states[name])
        raw.append(drawn)
    return held, raw, task, Labels(torch.arange(0), torch.zeros(0, dtype=torch.int64 if task.names else torch.float32))


def whole_states(run: Run, done: int | None = None) -> dict[str, State]:
    """Return the whole states of the server and, by name, its parties. Raises as ``read_checkpoint``."""
    states = read_checkpoint(run, done).sections
    return {name: state if name == SERVER else _whole_state(run, name, state) for name, state in states.items()}


def without_weights(config: ExperimentConfig) -> ExperimentConfig:
    """Return the experiment of models whose weights a checkpoint has."""
    return config.model_copy(update={"models": config.models.without_weights()})


def load_party(run: Run, done: int | None = None) -> tuple[FinishedParty, Source, Samples] | None:
    """Return the party whose own folder this is, its source and random raw samples.

    As of its last checkpoint, or of the one after so many rounds.

    None for the folder of a whole run. Raises ConfigError for a folder of neither.
    """
    rounds = run.checkpoints.rounds()
    state = run.checkpoints.load(done or rounds[-1]).get(SECTION) if rounds else None
    if state is None:
        return None
    config, name = run.prediction, state["name"]
    source = open_source(config)
    check_version(run, state)
    check_whole_images(run, {name: state})
    data, raw = stand_in(source, name, state)
    return build_finished_party(name, data, state, config, start_runtime(config)), source, raw


def check_whole_images(run: Run, states: Mapping[str, State]) -> None:
    """Raise ConfigError, given parties' states or last reports, for a model trained on smaller images so far."""
    if smaller := [name for name, state in states.items() if state.get("resolution", 1.0) < 1]:
        raise ConfigError(
            f"{run}: {smaller[0]} has trained on smaller images so far (lightweighting.resolution); train on to "
            "the end: lvfl train with --resume"
        )


def check_version(run: Run, state: State) -> None:
    """Raise ConfigError for a party's state of a version that kept too little of it."""
    if "raw" not in state:
        raise ConfigError(f"{run}: was trained by a version before 0.2.0, which kept too little; train it again")


def _whole_state(run: Run, name: str, state: State) -> State:
    """Return a party's state, even if the party was a separate process on this machine."""
    if "model" in state:
        check_version(run, state)
        return state
    store = CheckpointStore(run.folder / PROCESSES / name / "checkpoints")
    if state["round"] not in store.rounds() or store.digest(state["round"]) != state["digest"]:
        raise ConfigError(f"{run}: {name} keeps its model elsewhere; let it answer: lvfl predict --listen")
    return store.load(state["round"])[SECTION]
