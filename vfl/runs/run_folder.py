"""The folder of a run: ``config.yaml``, ``metrics.jsonl``, TensorBoard events, ``checkpoints/``, ``summary.json``."""

import fcntl
import json
import math
import os
import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

from vfl.config import (
    ConfigError,
    Experiment,
    changed_keys_but_places,
    dump_config,
)
from vfl.config.files import load_stored_config
from vfl.config.prediction import PREDICTION, PredictionConfig, prediction_text, read_prediction
from vfl.config.shipped import SWEEP, kind_of
from vfl.runs.atomic import FIX_MODE, is_open_to_others, write_atomically

E = TypeVar("E", bound=Experiment)
PROCESSES = "processes"
"""Subfolder of a run's folder for the processes that ``lvfl train --processes`` starts."""
RUN_ID = "run_id"
"""File with the id of the run that a folder of a separate process belongs to."""
LOG = "train.log"
"""File with the output of one run among many."""
DYING_S = 120.0
"""Seconds that a run among many waits for an earlier process of its folder to die."""
Row = dict[str, float]
"""One round of ``metrics.jsonl``."""


def choose_run_dir(name: str, runs: Path, *, resume: bool) -> Path:
    """Return the default folder of a run: the newest ``name`` to resume, else the first free one."""
    used = [runs / name]
    while (runs / f"{name}-{len(used) + 1}").exists():
        used.append(runs / f"{name}-{len(used) + 1}")
    if resume or not used[0].exists():
        return used[-1]
    return runs / f"{name}-{len(used) + 1}"


def find_run_dir(config: Experiment, source: Path | None, given: Path | None, *, resume: bool) -> Path:
    """Return the folder of a run: the given one, ``source`` itself if it is a folder, or one below ``runs``."""
    if given is not None:
        return given
    if source is not None and source.is_dir():
        return source
    return choose_run_dir(config.name, Path("runs"), resume=resume)


def check_run(run_dir: Path, config: Experiment, *, resume: bool) -> None:
    """Check, before anything is loaded or written, that a run may begin or, with ``--resume``, go on in the folder.

    Raises ConfigError for a run that is there, unless ``resume``, and as ``check_folder``.
    """
    if not resume and (run_dir / "config.yaml").exists():
        raise ConfigError(f"--run-dir: {run_dir} holds a run; add --resume or name another folder")
    check_folder(run_dir, config, "--resume")


def check_folder(run_dir: Path, config: Experiment, option: str = "--run-dir") -> None:
    """Check the same for a process that always continues in its folder if there is something.

    Raises ConfigError for a file, a folder that is in use, checkpoints without a ``config.yaml``, and another
    configuration, naming the changed keys. Files may lie elsewhere: what they hold is checked when they are read.
    """
    if run_dir.is_file():
        raise ConfigError(f"--run-dir: {run_dir} is a file; name a folder")
    saved = run_dir / "config.yaml"
    if not saved.exists():
        checkpoints = run_dir / "checkpoints"
        if checkpoints.is_dir() and any(checkpoints.iterdir()):
            raise ConfigError(f"--run-dir: {checkpoints} belong to a run whose {saved} is gone; name another folder")
    elif changes := _changes_on_resume(run_dir, config):
        raise ConfigError(f"{option}: the configuration has changed: {', '.join(changes)}; use the saved {saved}")


def _changes_on_resume(run_dir: Path, config: Experiment) -> list[str]:
    saved, now = (each.settings_fixed_on_resume() for each in (saved_config(run_dir), config.with_whole_paths()))
    return changed_keys_but_places(saved, now)


def with_threads_of_run(run_dir: Path, config: E) -> E:
    """Return the experiment with the threads of the run that has begun in the folder, unless it names a number."""
    if config.threads is not None or not (run_dir / "config.yaml").exists():
        return config
    return config.model_copy(update={"threads": saved_config(run_dir).threads})


def begin_run(run_dir: Path, config: Experiment, option: str = "--run-dir") -> None:
    """Create the folder and write the resolved configuration, unless a resumed run has one.

    Raises ConfigError, naming the ``option`` that named the folder, if that fails, or if another run has begun there
    since ``check_run``.
    """
    saved = run_dir / "config.yaml"
    try:
        with private_files():
            run_dir.mkdir(parents=True, exist_ok=True)
            if not saved.exists():
                _write_config(run_dir, config.with_whole_paths())
    except OSError as error:
        raise ConfigError(f"{option}: {run_dir} cannot be written ({error.strerror})") from None
    if _changes_on_resume(run_dir, config):
        raise ConfigError(f"{option}: another run has just begun in {run_dir}; name another folder")


def _write_config(run_dir: Path, config: Experiment) -> None:
    """Write the configuration and, in a file of its own, its part that predictions read."""
    text = dump_config(config)
    write_atomically(run_dir / "config.yaml", text)
    _write_prediction(run_dir, config, text)


def _write_prediction(run_dir: Path, config: Experiment, text: str) -> None:
    if isinstance(config, PredictionConfig) and (kept := prediction_text(config, text)) is not None:
        write_atomically(run_dir / PREDICTION, kept)


def forget_attempt(run_dir: Path, *notes: str) -> None:
    """Remove the configuration of a process that began nothing and left only ``notes``, so that it can start anew."""
    if run_dir.is_dir() and {path.name for path in run_dir.iterdir()} <= {"config.yaml", PREDICTION, *notes}:
        with only_process_in(run_dir):
            for name in ("config.yaml", PREDICTION):
                (run_dir / name).unlink(missing_ok=True)


@contextmanager
def private_files() -> Generator[None]:
    """Make files written meanwhile readable only by their user: folders 0700, files 0600."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def update_config(run_dir: Path, config: Experiment) -> None:
    """Write a resumed run's configuration if settings changed, such as more rounds; the folder must be locked."""
    whole, saved = config.with_whole_paths(), run_dir / "config.yaml"
    if load_stored_config(saved) != whole:
        _write_config(run_dir, whole)
    elif read_prediction(run_dir) is None:  # of an earlier version, or killed between the two files
        _write_prediction(run_dir, whole, saved.read_bytes().decode())


def saved_config(run_dir: Path) -> Experiment:
    """Return a run's configuration; paths written by earlier versions were relative to the start folder."""
    return load_stored_config(run_dir / "config.yaml").with_whole_paths()


@contextmanager
def only_process_in(run_dir: Path) -> Generator[None]:
    """Hold the folder's lock, which ends with the process, and write ``private_files``.

    Raises ConfigError if another process holds it.
    """
    folder = os.open(run_dir, os.O_RDONLY)  # the folder itself: no lock file that could be left over, or be deleted
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(folder)
        raise ConfigError(f"another process trains or serves in {run_dir}; wait for it or stop it") from None
    try:
        with private_files():
            yield
    finally:
        os.close(folder)


def hold_log(log: TextIO, patience_s: float = DYING_S) -> None:
    """Lock a run's log, after waiting for a dying training to release it.

    A lock of a file that is open for writing holds between the machines of an NFS, that of a folder does not. Raises
    ConfigError if another training keeps it, OSError if the file system has no locks.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(f"{log.name}: another process trains here; wait for it or stop it") from None
            time.sleep(0.1)


def wait_until_free(run_dir: Path) -> None:
    """Wait until no training holds the folder's log."""
    if (run_dir / LOG).exists():
        with (run_dir / LOG).open("a") as log:
            hold_log(log, math.inf)


def write_summary(run_dir: Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json`` completely or not at all."""
    write_atomically(run_dir / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")


def read_manifest(folder: Path, *keys: str) -> dict[str, Any]:
    """Return a sweep's manifest, with at least these keys. Raises ConfigError if the folder is not a sweep's."""
    if not (folder / SWEEP).exists():
        if (folder / "config.yaml").is_file():
            raise ConfigError(f"{folder}: is a run that has not finished; go on with lvfl train --resume {folder}")
        told = kind_of(folder) or "; name a folder of lvfl train or lvfl sweep"
        raise ConfigError(f"{folder}: holds no finished run and no sweep{told}")
    return read_json(folder / SWEEP, keys)


def finished_runs(folder: Path) -> list[Path]:
    """Return a run's own folder, or those of a sweep's finished runs. Raises ConfigError if there are none."""
    if (folder / "summary.json").exists():
        return [folder]
    every = [folder / "runs" / name for name in read_manifest(folder, "runs")["runs"]]
    done = [run_dir for run_dir in every if (run_dir / "summary.json").exists()]
    if not done:
        raise ConfigError(f"{folder}: no run of the sweep is finished yet; go on with lvfl sweep")
    return done


def read_json(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Return the mapping in one of our JSON files. Raises ConfigError if it is malformed or lacks one of the keys."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); remove it and train again") from None
    missing = [key for key in keys if not isinstance(values, dict) or key not in values]
    if missing:
        raise ConfigError(f"{path}: is not what lvfl writes, {missing[0]!r} is missing; remove it and train again")
    return cast(dict[str, Any], values)


def whole_rows(run_dir: Path) -> list[Row]:
    """Return the rows of a run that may continue, without damaged lines; empty without ``metrics.jsonl``."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return [row for line in lines if (row := row_of(line))]


def row_of(line: str) -> Row | None:
    """Return the row in a line of ``metrics.jsonl``; None for a damaged line, such as a killed run's last."""
    try:
        row = json.loads(line)
        return row if isinstance(row["round"], int) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def read_run_id(run_dir: Path) -> str:
    """Return the id of the run that the folder belongs to, ``""`` if none yet.

    Raises ConfigError if the file cannot be read, or holds no id.
    """
    path = run_dir / RUN_ID
    try:
        run = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--run-dir: {path} cannot be read ({error})") from None
    if not re.fullmatch("([0-9a-f]{16})?", run):
        raise ConfigError(f"--run-dir: {path} holds no id of a run (16 hexadecimal digits); restore it")
    return run


def write_run_id(run_dir: Path, run: str) -> None:
    """Write the id of the run that the folder belongs to, so that no party continues another one's."""
    write_atomically(run_dir / RUN_ID, run + "\n")


SHORTEST = 16
"""Characters of a secret."""


def read_secret(path: Path | None) -> bytes | None:
    """Return what a file of its own holds without the white space around it, None without a file.

    Secrets are never in a configuration, which is shown and sent.

    Raises ConfigError for a secret that is too short, or that others than its owner may read.
    """
    if path is None:
        return None
    try:
        secret, status = path.read_bytes().strip(), path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file that holds a secret") from None
    if len(secret) < SHORTEST:
        raise ConfigError(f"{path}: holds {len(secret)} characters; a secret has at least {SHORTEST}")
    if is_open_to_others(status):
        raise ConfigError(f"{path}: others may read it; {FIX_MODE}")
    return secret


def run_to_serve(run_dir: Path) -> str:
    """Return the id of a run of processes. Raises ConfigError for another one, and as `read_run_id`."""
    if run := read_run_id(run_dir):
        return run
    raise ConfigError(f"{run_dir}: trained in one process; only runs of processes are served")
