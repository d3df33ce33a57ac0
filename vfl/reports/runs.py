"""What a report is about: the finished runs below a folder, grouped by their settings apart from the seed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from vfl.config import ConfigError, ExperimentConfig, dotted_settings, load_config
from vfl.results import Quantity, RunResult, read_result

SEED = "seed"
SYMBOLS = {"lightweighting.alpha": "α", "lightweighting.beta": "β", "training.local_iterations": "E"}
"""Short names of settings; of others the last part of their key."""


@dataclass(frozen=True)
class ReportedRun(RunResult):
    """A finished run of a report."""

    name: str
    settings: dict[str, Any]
    """The settings that vary in its sweep, by dotted key, without the seed."""
    config: ExperimentConfig


@dataclass(frozen=True)
class Variant:
    """The runs of one setting, that differ in their seeds alone."""

    label: str
    settings: dict[str, Any]
    runs: tuple[ReportedRun, ...]

    def mean(self, quantity: Quantity) -> float | None:
        """Return the mean of a quantity over the seeds; None where a run has none."""
        values = [quantity(run) for run in self.runs]
        known = [value for value in values if value is not None]
        return mean(known) if known and len(known) == len(values) else None

    @property
    def score(self) -> float:
        """Mean of the runs' scores at the end."""
        return mean(run.score for run in self.runs)


@dataclass(frozen=True)
class Subject:
    """What the report is about."""

    name: str
    folder: Path
    variants: tuple[Variant, ...]
    missing: tuple[str, ...]
    """Runs of the sweep that are not finished."""

    @property
    def runs(self) -> list[ReportedRun]:
        """All runs."""
        return [run for variant in self.variants for run in variant.runs]

    @property
    def metric(self) -> str:
        """Name of the metric by which its runs are compared."""
        return self.runs[0].metric

    @property
    def simulated(self) -> bool:
        """Whether its owners are clients with a simulated clock."""
        return self.runs[0].simulated

    @property
    def on_virtual_clock(self) -> bool:
        """Whether its seconds are simulated."""
        return self.simulated or self.runs[0].config.simulation.given

    @property
    def saves(self) -> bool:
        """Whether several settings are compared of which one saves bytes or multiply-accumulates."""
        return len(self.variants) > 1 and any(run.bytes_saved > 0 or run.macs_saved > 0 for run in self.runs)

    def values(self, key: str) -> list[Any]:
        """Return the values of a setting, numbers ascending, others as they come."""
        found: list[Any] = []
        for variant in self.variants:
            if variant.settings.get(key) not in found:
                found.append(variant.settings.get(key))
        return sorted(found) if all(is_number(value) for value in found) else found

    @property
    def keys(self) -> list[str]:
        """The settings that vary."""
        every = dict.fromkeys(key for variant in self.variants for key in variant.settings)
        return [key for key in every if len(self.values(key)) > 1]

    @property
    def reference(self) -> Variant:
        """The variant that others are compared with: the first values of all settings, as alpha = beta = 0."""
        first = {key: self.values(key)[0] for key in self.keys}
        return self.find(first) or self.variants[0]

    def find(self, settings: Mapping[str, Any]) -> Variant | None:
        """Return the variant of these values, all others as the reference's; None where it was not trained."""
        first = {key: self.values(key)[0] for key in self.keys} | dict(settings)
        matches = (v for v in self.variants if all(v.settings.get(key) == value for key, value in first.items()))
        return next(matches, None)


def load_subject(folder: Path) -> Subject:
    """Read a run's or a sweep's folder. Raises ConfigError where no finished run is."""
    if (folder / "summary.json").exists():
        run = _load_run(folder, folder.resolve().name, {})
        return Subject(run.config.name, folder, (Variant(run.config.name, {}, (run,)),), ())
    if not (folder / "sweep.json").exists():
        raise ConfigError(
            f"{folder}: holds no finished run and no sweep; name a folder of scripts/train.py or sweep.py"
        )
    manifest = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    runs: list[ReportedRun] = []
    missing: list[str] = []
    for name, settings in manifest["runs"].items():
        run_dir = folder / "runs" / name
        if (run_dir / "summary.json").exists():
            runs.append(_load_run(run_dir, name, {key: each for key, each in settings.items() if key != SEED}))
        else:
            missing.append(name)
    if not runs:
        raise ConfigError(f"{folder}: no run of the sweep is finished yet; go on with scripts/sweep.py")
    return Subject(manifest["name"], folder, _variants(runs), tuple(missing))


def load_runs(folders: Sequence[Path]) -> Subject:
    """Read finished runs of one mode, told apart by the settings in which they differ; seeds alone are averaged.

    Raises ConfigError where a run is not finished, or modes or metrics differ.
    """
    runs = [_load_run(folder, folder.resolve().name, {}) for folder in folders]
    if len({run.config.mode for run in runs}) != 1:
        raise ConfigError("a page compares runs of one mode; write one for each")
    if len({run.metric for run in runs}) != 1:
        raise ConfigError("a page compares runs of one evaluation.metric; write one for each")
    settings = [dotted_settings(run.config) for run in runs]
    keys = [key for key in dict.fromkeys(chain(*settings)) if len({repr(each.get(key)) for each in settings}) > 1]
    told = [{key: each.get(key) for key in keys if key not in (SEED, "name")} for each in settings]
    named = [replace(run, settings=each) for run, each in zip(runs, told, strict=True)]
    return Subject(", ".join(run.name for run in runs), folders[0], _variants(named), ())


def setting_label(key: str, value: Any) -> str:
    """Return a setting as it stands in legends, as ``α 0.2``."""
    text = f"{value:g}" if is_number(value) else ("unset" if value is None else str(value))
    return f"{key_label(key)} {text}"


def key_label(key: str) -> str:
    """Return a setting's short name."""
    return SYMBOLS.get(key, key.rpartition(".")[2])


def is_number(value: Any) -> bool:
    """Return whether a value is a number that can be drawn on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _load_run(run_dir: Path, name: str, settings: dict[str, Any]) -> ReportedRun:
    return ReportedRun(*read_result(run_dir), name, settings, load_config(run_dir / "config.yaml"))


def _variants(runs: Sequence[ReportedRun]) -> tuple[Variant, ...]:
    grouped: dict[str, Variant] = {}
    for run in runs:
        label = ", ".join(setting_label(key, value) for key, value in run.settings.items()) or run.config.name
        before = grouped.get(label, Variant(label, run.settings, ()))
        grouped[label] = replace(before, runs=(*before.runs, run))
    return tuple(grouped.values())
