"""The folder of a run: ``config.yaml``, ``metrics.jsonl``, TensorBoard events, ``checkpoints/``, ``summary.json``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vfl.atomic import write_atomically
from vfl.config import ConfigError, ExperimentConfig, changed_keys, dump_config, load_config


def choose_run_dir(name: str, runs: Path, *, resume: bool) -> Path:
    """Return the folder of a run whose user named none: the newest ``name`` to resume, else the first free one."""
    used = [runs / name]
    while (runs / f"{name}-{len(used) + 1}").exists():
        used.append(runs / f"{name}-{len(used) + 1}")
    if resume or not used[0].exists():
        return used[-1]
    return runs / f"{name}-{len(used) + 1}"


def open_run(run_dir: Path, config: ExperimentConfig, *, resume: bool) -> None:
    """Make the folder and write the resolved configuration, or check that a resumed run has the same one.

    Raises ConfigError for a folder that is in use, a resume with another configuration (names the changed keys)
    and a folder that cannot be written.
    """
    saved = run_dir / "config.yaml"
    if saved.exists() and not resume:
        raise ConfigError(f"--run-dir: {run_dir} holds a run; add --resume or name another folder")
    if saved.exists():
        changes = changed_keys(load_config(saved), config)
        if changes:
            raise ConfigError(f"--resume: the configuration has changed: {', '.join(changes)}; use the saved {saved}")
        return
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(saved, dump_config(config))
    except OSError as error:
        raise ConfigError(f"--run-dir: {run_dir} cannot be written ({error.strerror})") from None


def write_summary(run_dir: Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json`` whole or not at all."""
    write_atomically(run_dir / "summary.json", json.dumps(summary, indent=2) + "\n")
