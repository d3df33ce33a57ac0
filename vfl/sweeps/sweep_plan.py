"""The plan of a sweep: a base experiment and the settings that vary, from one YAML file.

name: ratios
base: quickstart.yaml                # an experiment, relative to this file
settings: {training.rounds: 6}       # of all runs
grid:                                # every combination ...
  lightweighting.alpha: [0, 0.4]
  seed: [0, 1]
list:                                # ... of each of these; both are optional
  - {training.local_iterations: 1}
  - {training.local_iterations: 3, training.optimizer.learning_rate: 0.01}
resources: {cpus: 4, memory_gb: 6}   # of each run; optional
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from vfl.config import ConfigError, parse_experiment
from vfl.config.files import (
    check_inherited,
    lay_over,
    models_beside,
    parse_overrides,
    read_section,
    read_settings,
    read_yaml,
)
from vfl.config.settings import Section
from vfl.config.shipped import find_config
from vfl.data.experiments import decide_parties
from vfl.sweeps.executor import QueuedRun, Resources

Settings = Mapping[str, Any]
"""Values by dotted key."""


class SweepFile(Section):
    """The file of a sweep."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    """Name of the sweep's folder."""
    base: Path
    """YAML file of the experiment, relative to the sweep's."""
    settings: dict[str, Any] = Field(default={})
    grid: dict[str, list[Any]] = Field(default={})
    entries: list[dict[str, Any]] = Field(default=[], alias="list")
    resources: Resources = Resources()
    """Resources of each run."""

    def beside(self, folder: Path) -> "SweepFile":
        """Return the same with models' files relative to a folder."""
        settings, grid = models_beside(folder, self.settings), models_beside(folder, self.grid)
        entries = [models_beside(folder, entry) for entry in self.entries]
        return self.model_copy(update={"settings": settings, "grid": grid, "entries": entries})


@dataclass(frozen=True, kw_only=True)
class SweepRun(QueuedRun):
    """One training of a sweep; its folder is named after the settings that vary."""

    settings: Settings
    """The settings that vary, by dotted key."""


@dataclass(frozen=True)
class Sweep:
    """A sweep as read from its file: every run of it can be configured."""

    name: str
    base: Mapping[str, Any]
    """Nested settings of all runs."""
    points: tuple[Settings, ...]
    """The settings of each run."""
    resources: Resources = field(default_factory=Resources)
    """Resources of each run."""

    @cached_property
    def varied(self) -> set[str]:
        """The keys that vary."""
        return {key for point in self.points for key in point}

    def run(self, settings: Settings, threads: int) -> SweepRun:
        """Return the run with some settings. Raises ConfigError, naming them, if they are no valid experiment."""
        config = decide_parties(parse_experiment(lay_over(self.base, settings)))
        config.note_own()
        config = config.model_copy(update={"threads": threads})
        return SweepRun(folder_name(settings, self.varied), config, tuple(settings), settings=settings)

    def runs(self, threads: int) -> list[SweepRun]:
        """Return the runs of all points. Raises ConfigError for the first invalid one."""
        return [self.run(settings, threads) for settings in self.points]


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file or a shipped one by name; ``key=value`` overrides change the experiment of all runs.

    Raises ConfigError, one line, for anything that is wrong, including an empty sweep and two equal runs.
    """
    path = find_config(path)
    file = _parse_sweep(path)
    file = file.beside(path.parent)
    inherited = read_settings(find_config(file.base, path.parent))
    check_inherited(path.parent / file.base, inherited)
    overridden = parse_overrides(overrides)
    varied = {*file.grid, *(key for entry in file.entries for key in entry)}
    for key in overridden.keys() & varied:
        raise ConfigError(f"{key}: the sweep varies it, so that {key}=... would change no run; change {path} instead")
    base = lay_over(inherited, file.settings | overridden)
    decide_parties(parse_experiment(base))  # an error of the base should not name the first run's settings
    points = _grid_points(path, file)
    sweep = Sweep(file.name, base, points, file.resources)
    name, runs = Counter(folder_name(point, sweep.varied) for point in points).most_common(1)[0]
    if runs > 1:
        raise ConfigError(f"{path}: {runs} runs have the folder {name}; write each only once")
    return sweep


def folder_name(settings: Settings, varied: Iterable[str] = ()) -> str:
    """Return a folder name made of the settings, such as ``alpha0.2-beta0.4-seed1``.

    A key is written whole if another one, of these settings or of those that vary in the sweep, ends alike.
    """
    ends = Counter(key.rpartition(".")[2] for key in {*settings, *varied})
    short = {key: key if ends[end := key.rpartition(".")[2]] > 1 else end for key in settings}
    return "-".join(f"{short[key]}{_value_name(value)}" for key, value in settings.items()) or "base"


def _parse_sweep(path: Path) -> SweepFile:
    values = read_yaml(path)
    if "base" not in values:
        raise ConfigError(f"{path}: base: is missing; if it is one experiment, use lvfl train")
    if "search" in values:
        raise ConfigError(f"{path}: search: removed in 0.2.0; list values of alpha and beta under grid:")
    try:
        return read_section(SweepFile, values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _grid_points(path: Path, file: SweepFile) -> tuple[Settings, ...]:
    for key, values in file.grid.items():
        if not values:
            raise ConfigError(f"{path}: grid.{key}: is empty; list at least one value")
    if not file.grid and not file.entries:
        raise ConfigError(f"{path}: the sweep is empty; name settings to vary under grid: or list:")
    for key in {key for entry in file.entries for key in entry} & file.grid.keys():
        raise ConfigError(f"{path}: {key} stands in grid and in list; keep it in one of them")
    combinations = itertools.product(*file.grid.values())  # without a grid: one, the empty one
    inner = [dict(zip(file.grid, values, strict=True)) for values in combinations]
    return tuple(entry | point for entry in (file.entries or [{}]) for point in inner)


def _value_name(value: object) -> str:
    text = str(value)
    if isinstance(value, float) and float(f"{value:g}") == value:
        text = f"{value:g}"  # 0 for 0.0
    if re.fullmatch(r"[A-Za-z0-9._+]+(e-[0-9]+)?", text):  # a dash stands between settings, so in no value but 1e-5
        return text
    digest = hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
    return f"-{digest[:6]}"
