"""A trained split model, rebuilt in this process from the last checkpoint of its run."""

from pathlib import Path
from typing import NamedTuple

from parties.build import build_party
from parties.feature_party import FeatureParty
from parties.local import InProcess, build_in_process
from parties.remote.party.worker import SECTION
from vfl.config import ConfigError, ExperimentConfig, load_config
from vfl.data.samples import Samples
from vfl.data.source import open_source, prepare_party
from vfl.runs.checkpoint import CheckpointStore, State
from vfl.runs.run_folder import PROCESSES
from vfl.runtime import start_runtime


class Trained(NamedTuple):
    """What a run left."""

    config: ExperimentConfig
    rounds: int
    """Done when the last checkpoint was saved."""
    digest: str
    """Of that checkpoint."""
    sections: dict[str, State]
    """Of the server and, by name, its parties: whole states, or references to what party processes keep."""


def load_run(run_dir: Path, done: int | None = None) -> Trained:
    """Read a run's configuration and last checkpoint, or the one after so many rounds.

    Raises ConfigError for a folder without a vertical run or without checkpoints, CorruptCheckpoint where the last
    one is damaged (an older one would be another model).
    """
    saved = run_dir / "config.yaml"
    if not saved.exists():
        raise ConfigError(f"{run_dir}: holds no run; name a folder of lvfl train")
    config = load_config(saved)
    if config.mode != "vertical":
        raise ConfigError(f"{run_dir}: mode is {config.mode}; only a vertical run has a split model")
    checkpoints = CheckpointStore(run_dir / "checkpoints")
    rounds = checkpoints.rounds()
    if not rounds:
        raise ConfigError(f"{run_dir}: has no checkpoint (a sweep keeps them with --keep-checkpoints); train it again")
    done = rounds[-1] if done is None else done
    sections = checkpoints.load(done)
    if SECTION in sections:
        raise ConfigError(f"{run_dir}: holds one party's own model, which can only be exported")
    del sections["loop"]
    return Trained(config, done, checkpoints.digest(done), sections)


def load_trained(run_dir: Path, done: int | None = None) -> InProcess:
    """Return the experiment as at the end of the run, or after so many rounds, the models in evaluation mode.

    Raises as ``load_run``; ConfigError where parties elsewhere keep their models, ValueError where the data has
    changed.
    """
    trained = load_run(run_dir, done)
    config, sections = trained.config, trained.sections
    for name in config.parties:
        sections[name] = _whole_state(run_dir, name, sections[name])
    built = build_in_process(config, start_runtime(config))
    built.server.load_state_dict(sections)
    for party in built.parties:
        party.model.eval()
    return built


def load_party(run_dir: Path) -> tuple[FeatureParty, Samples] | None:
    """Return the party whose own folder this is, as of its last checkpoint, and its raw test samples.

    None for the folder of a whole run. Raises ConfigError for a folder of neither, ValueError where the party's data
    are not there or have changed.
    """
    saved, checkpoints = run_dir / "config.yaml", CheckpointStore(run_dir / "checkpoints")
    rounds = checkpoints.rounds()
    state = checkpoints.load(rounds[-1]).get(SECTION) if saved.exists() and rounds else None
    if state is None:
        return None
    config = load_config(saved)
    source = open_source(config)
    data = source.held_by(state["name"])
    party = build_party(state["name"], prepare_party(source, data), None, config, start_runtime(config))
    party.load_state_dict(state)
    return party, data.test


def _whole_state(run_dir: Path, name: str, state: State) -> State:
    """Return a party's state, also where it was a process of its own on this machine."""
    if "model" in state:
        return state
    store = CheckpointStore(run_dir / PROCESSES / name / "checkpoints")
    if state["round"] not in store.rounds() or store.digest(state["round"]) != state["digest"]:
        raise ConfigError(f"{run_dir}: {name} keeps its model elsewhere; let it answer: lvfl predict --serve")
    return store.load(state["round"])[SECTION]
