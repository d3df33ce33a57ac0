"""A warm start (``training.start_from``): a new training begins with the models of a finished run.

Kept are each owner's weights, prunings and preparation of columns, the head, its classes or its scale of values. Rows
may be others; columns and models must be the same. Momentum, residuals, rounds and costs begin anew. Once the training
has a checkpoint of its own, that one has what is kept, and the earlier run is needed no more.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vfl.config import ConfigError, ExperimentConfig
from vfl.core.build import Start, feature_config
from vfl.core.party import SECTION
from vfl.predict.trained_run import check_version, read_checkpoint, whole_states, without_weights
from vfl.runs.checkpoint import CheckpointStore, State
from vfl.runs.run_folder import PROCESSES
from vfl.runs.stored_run import Run


def start_of(config: ExperimentConfig, run_dir: Path) -> Start | None:
    """Return what a training in one process, in ``run_dir``, keeps of the run it starts from; None without one.

    Raises ConfigError, one line, for a run that is not finished or of other models, owners, columns or classes.
    """
    if config.training.start_from is None:
        return None
    if CheckpointStore(run_dir / "checkpoints").rounds():
        return Start(whole_states(Run(run_dir)), fresh=False)
    with _named():
        run = _finished(config)
        return Start(whole_states(run), fresh=True)


def config_to_build(config: ExperimentConfig, run_dir: Path) -> ExperimentConfig:
    """Return the experiment, without files of weights once the training in ``run_dir`` has a checkpoint."""
    return without_weights(config) if CheckpointStore(run_dir / "checkpoints").rounds() else config


def server_start(config: ExperimentConfig, run_dir: Path) -> Start | None:
    """Return the same for a server of party processes: its own state, and references to the parties'."""
    if config.training.start_from is None:
        return None
    if CheckpointStore(run_dir / "checkpoints").rounds():
        return Start(read_checkpoint(Run(run_dir)).sections, fresh=False)
    with _named():
        run = _finished(config)
        sections = read_checkpoint(run).sections
        if any("model" in sections[name] for name in config.parties):
            raise ConfigError(f"{run}: was trained in one process, and so must be what starts from it")
        return Start(sections, fresh=True)


def party_start(config: ExperimentConfig, name: str, run_dir: Path, digest: str | None = None) -> State | None:
    """Return the state that a party process keeps, by its own folder of the run it starts from; None without one.

    ``digest``: the checkpoint's that the server begins with; without it, of any round, or of the training itself if it
    has some. Raises ConfigError, one line, for another owner's folder or one without that checkpoint.
    """
    if config.training.start_from is None:
        return None
    own = CheckpointStore(run_dir / "checkpoints")
    if digest is None and own.rounds():
        return own.load(own.rounds()[-1])[SECTION]
    with _named():
        run = _same_models(config)
        store = run.checkpoints
        rounds = [each for each in store.rounds() if digest in (None, store.digest(each))]
        if not rounds:
            raise ConfigError(f"{run.folder}: has not the checkpoint of that run that the server begins with")
        state = store.load(rounds[-1]).get(SECTION)
        if state is None or state["name"] != name:
            raise ConfigError(f"{run.folder}: is not {name}'s own folder of that run; name it")
        check_version(run, state)
        return state


def folder_of_process(config: ExperimentConfig, name: str) -> Path | None:
    """Return where a party of ``lvfl train --processes`` has its own folder of the run that is started from."""
    folder = config.with_whole_paths().training.start_from
    return None if folder is None else folder / PROCESSES / name


@contextmanager
def _named() -> Generator[None]:
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"training.start_from: {error}") from None


def _finished(config: ExperimentConfig) -> Run:
    """Return the run. Raises ConfigError unless it is finished and has the same models."""
    run = _same_models(config)
    if not run.finished:
        raise ConfigError(f"{run.folder}: is not finished; train it to its end: lvfl train --resume")
    return run


def _same_models(config: ExperimentConfig) -> Run:
    folder = config.with_whole_paths().training.start_from
    assert folder is not None
    run = Run(folder)
    then, now = _fixed(run.vertical), _fixed(config)
    for key in {**then, **now}:
        if then.get(key) != now.get(key):
            raise ConfigError(f"{folder}: {key} is {then.get(key)} there and {now.get(key)} here; make it the same")
    return run


def _fixed(config: ExperimentConfig) -> dict[str, Any]:
    """Return the settings that decide what the weights mean."""
    models = {
        f"models.parties.{name}.{key}": value
        for name in config.parties
        for key, value in feature_config(config, name).model_dump(exclude={"dropout", "weights", "freeze"}).items()
    }
    kinds = {key: value.rpartition("/")[2] for key, value in models.items() if key.endswith(".kind")}  # files may move
    return {
        "task": config.task,
        "data.dataset.kind": config.data.dataset.kind,
        "data.numbers": config.data.numbers,
        "data.positive_class": config.data.positive_class,
        "the owners' names": ", ".join(config.parties),
        "models.head.hidden": config.models.head.hidden,
        "models.members": config.models.members,
        "models.linear_path": config.models.linear_path,
        "training.labels": config.training.labels,
        **models,
        **kinds,
    }
