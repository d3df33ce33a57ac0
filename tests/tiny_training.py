"""What the tests of lvfl train share: a tiny experiment, how the command ended, what lies in its folder."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from vfl.config import ExperimentConfig, parse_config
from vfl.runs.loop import Callback
from vfl.runs.run import run_experiment

SCRIPT = Path(__file__).parents[1] / "scripts" / "train.py"
TINY = {
    "name": "tiny",
    "seed": 3,
    "threads": 1,
    "data": {"train_samples": 48, "test_samples": 40, "partition": {"rows": 1, "columns": 2}},
    "models": {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8}, "head": {"hidden": [16]}},
    "training": {"rounds": 4, "steps_per_round": 2, "batch_size": 16, "optimizer": {"learning_rate": 0.05}},
    "lightweighting": {"alpha": {1: 0.2, 3: 0.5}, "beta": 0.5},
    "checkpoint": {"every": 1},
}
CLIENTS = {
    **{name: TINY[name] for name in ("seed", "threads", "checkpoint")},
    "name": "clients",
    "mode": "horizontal",
    "data": {"train_samples": 48, "test_samples": 40},
    "training": {"rounds": 1, "batch_size": 16, "optimizer": {"learning_rate": 0.05}},
    "horizontal": {"clients": 4, "clients_per_round": 2},
}
"""As tiny, with clients."""
QUICK = ("training.rounds=1", "training.steps_per_round=1", "data.partition.columns=1", "models.feature.kind=mlp")


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on stderr of a command that could not do what was asked."""
        assert self.code == 2, self
        assert self.err.startswith("error: "), self
        assert self.err.endswith("\n"), self
        assert len(self.err.splitlines()) == 1, self
        return self.err.removeprefix("error: ").rstrip("\n")


Train = Callable[..., Ended]


def train_run(
    config: ExperimentConfig | Mapping[str, Any], run_dir: Path, *callbacks: Callback, resume: bool = False
) -> dict[str, Any]:
    """Train into a folder without a word; return the summary."""
    config = config if isinstance(config, ExperimentConfig) else parse_config(config)
    quiet = Console(quiet=True)
    return run_experiment(config, run_dir, resume=resume, console=quiet, extra_callbacks=callbacks).summary


def check_resumed_run(sections: dict[str, Any], folder: Path, rounds: int = 1) -> dict[str, Any]:
    """Assert that a run that is resumed after so many rounds is the uninterrupted one; return its summary."""
    whole = train_run(sections, folder / "whole")
    train_run(sections | {"training": sections["training"] | {"rounds": rounds}}, folder / "resumed")
    assert timeless(train_run(sections, folder / "resumed", resume=True)) == timeless(whole)
    return whole


def summary_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


TIMES = ("train_time_s/", "simulated_time_s/", "exchange_s/")


def outcome_of(run_dir: Path, times: tuple[str, ...] = TIMES) -> dict[str, Any]:
    """Weights, rows and bytes of a finished run: what must not depend on what happened on the way; not seconds."""
    rows = [{tag: row[tag] for tag in row if not tag.startswith(times)} for row in rows_of(run_dir)]
    return {"rows": rows, "summary": timeless(summary_of(run_dir))}


def timeless(values: Any) -> Any:
    """Values without the seconds."""
    if isinstance(values, list):
        return [timeless(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {
        key: timeless(value) for key, value in values.items() if not key.startswith(("train_time_s", "wall_time_s"))
    }


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damage(checkpoint: Path) -> None:
    path = checkpoint / "server.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
