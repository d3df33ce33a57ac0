"""The subject of a report: the finished runs below a folder, grouped by their settings apart from the seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from vfl.base.metrics import reached
from vfl.config import ConfigError, Experiment, ExperimentConfig, dotted_settings
from vfl.reports.leakage import read_audit
from vfl.runs.results import Quantity, RunResult
from vfl.runs.run_folder import finished_runs, read_manifest
from vfl.runs.stored_run import Run

SEED = "seed"
RUN = "run"
"""Name that replaces the settings of runs that differ in many."""
MOST_KEYS = 3
"""Most settings that can distinguish runs ..."""
MOST_LETTERS = 60
"""... each with at most this many letters, which tables and models by party exceed."""
ALPHA, BETA = "lightweighting.alpha", "lightweighting.beta"
SYMBOLS = {ALPHA: "α", BETA: "β", "training.local_iterations": "E"}
"""Short names of settings; others are shown by the last part of their key."""


@dataclass(frozen=True)
class ReportedRun(RunResult):
    """A finished run of a report."""

    name: str
    settings: dict[str, Any]
    """The settings that vary in its sweep, by dotted key, without the seed."""
    config: Experiment
    leakage: Mapping[str, Any] | None = None
    """The run's audit, if `lvfl audit` has been asked."""


@dataclass(frozen=True)
class Variant:
    """The runs of one setting; they differ only in their seeds."""

    label: str
    settings: dict[str, Any]
    runs: tuple[ReportedRun, ...]

    def mean(self, quantity: Quantity) -> float | None:
        """Return the mean of a quantity over the seeds; None if a run has none."""
        values = [quantity(run) for run in self.runs]
        numbers = [value for value in values if value is not None]
        return mean(numbers) if numbers and len(numbers) == len(values) else None

    @property
    def score(self) -> float:
        """Mean of the runs' final scores."""
        return mean(run.score for run in self.runs)


@dataclass(frozen=True)
class Subject:
    """The runs that a report compares."""

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
        """Name of the metric by which the runs are compared."""
        return self.runs[0].metric

    @property
    def simulated(self) -> bool:
        """Return whether any run has clients with a simulated clock for owners."""
        return any(run.simulated for run in self.runs)

    @property
    def on_virtual_clock(self) -> bool:
        """Return whether the seconds are simulated."""
        config = self.runs[0].config
        return self.simulated or (isinstance(config, ExperimentConfig) and config.simulation.given)

    @property
    def saves(self) -> bool:
        """Return whether several settings are compared on the same data, and one of them saves bytes or MACs."""
        several = len(self.variants) > 1 and len({run.config.data.dataset.kind for run in self.runs}) == 1
        return several and any(run.bytes_saved > 0 or run.macs_saved > 0 for run in self.runs)

    @property
    def lightweights(self) -> bool:
        """Return whether at least one run pruned its models or sparsified its messages."""
        return any(
            run.omega() or run.psi() or run.corollary_sum("alpha") or run.corollary_sum("beta") for run in self.runs
        )

    @property
    def followed(self) -> bool:
        """Return whether a run was tested more than once, so that there are curves."""
        return any(len(run.curve) > 1 for run in self.runs)

    @property
    def as_paper(self) -> bool:
        """Return whether the models are those of the LVFL paper, so that its figures are comparable."""
        configs = [run.config for run in self.runs]
        return all(
            isinstance(each, ExperimentConfig) and each.models.feature.kind.startswith("vgg") for each in configs
        )

    def values(self, key: str) -> list[Any]:
        """Return the values of a setting, numbers in ascending order, others in order of appearance."""
        distinct: list[Any] = []
        for variant in self.variants:
            if variant.settings.get(key) not in distinct:
                distinct.append(variant.settings.get(key))
        return sorted(distinct) if all(is_number(value) for value in distinct) else distinct

    @property
    def keys(self) -> list[str]:
        """The settings that vary."""
        every = dict.fromkeys(key for variant in self.variants for key in variant.settings)
        return [key for key in every if len(self.values(key)) > 1]

    @property
    def reference(self) -> Variant:
        """The variant that others are compared with: the first values of all settings, such as alpha = beta = 0."""
        # Of a list of settings, not a grid, there may be none with all first values.
        return self._variant({key: self.values(key)[0] for key in self.keys}) or self.variants[0]

    def find(self, settings: Mapping[str, Any]) -> Variant | None:
        """Return the variant with these values and otherwise the reference's; None if it was not trained."""
        return self._variant({key: self.reference.settings.get(key) for key in self.keys} | dict(settings))

    def _variant(self, settings: Mapping[str, Any]) -> Variant | None:
        matches = (v for v in self.variants if all(v.settings.get(key) == value for key, value in settings.items()))
        return next(matches, None)


def load_subject(folder: Path, *more_folders: Path) -> Subject:
    """Read the folder of a run or a sweep, or several of any kind.

    Raises ConfigError if there is no finished run, or if metrics differ and not all runs have an accuracy.
    """
    if more_folders:
        each_once = dict.fromkeys(run for each in (folder, *more_folders) for run in finished_runs(each))
        return load_runs(list(each_once), folder)
    if (folder / "summary.json").exists():
        run = _load_run(folder, folder.resolve().name, {})
        return Subject(run.config.name, folder, (Variant(run.config.name, {}, (run,)),), ())
    manifest = read_manifest(folder, "name", "runs")
    done = finished_runs(folder)
    varied = {name: {key: each for key, each in run.items() if key != SEED} for name, run in manifest["runs"].items()}
    runs = [_load_run(run_dir, run_dir.name, varied[run_dir.name]) for run_dir in done]
    missing = manifest["runs"].keys() - {run_dir.name for run_dir in done}
    return Subject(manifest["name"], folder, _group_variants(runs), tuple(name for name in varied if name in missing))


def load_runs(folders: Sequence[Path], folder: Path) -> Subject:
    """Read finished runs and name them by the few settings in which they differ, else by their folders' names.

    Only seeds are averaged. ``folder`` is the subject's. Raises ConfigError as ``load_subject``.
    """
    places = [each.resolve() for each in folders]
    names = [_short_name(place, places) for place in places]
    runs = _by_one_metric([_load_run(each, name, {}) for each, name in zip(folders, names, strict=True)])
    settings = [dotted_settings(run.config) for run in runs]
    # By repr: schedules and lists have no hash.
    differing = [key for key in dict.fromkeys(chain(*settings)) if len({repr(each.get(key)) for each in settings}) > 1]
    keys = [key for key in differing if key not in (SEED, "name")]
    short = all(len(str(each.get(key))) <= MOST_LETTERS for each in settings for key in keys)
    few = short and len(keys) <= MOST_KEYS and len({run.config.mode for run in runs}) == 1
    distinguishing = [
        {key: each.get(key) for key in keys} if few else {RUN: run.name}
        for run, each in zip(runs, settings, strict=True)
    ]
    labelled = [replace(run, settings=each) for run, each in zip(runs, distinguishing, strict=True)]
    return Subject(", ".join(dict.fromkeys(run.name for run in runs)), folder, _group_variants(labelled), ())


def _short_name(place: Path, places: Sequence[Path]) -> str:
    """Return a folder's name, with as many parent folders as make it unique."""
    other_places = [each.parts for each in places if each != place]
    depths = range(1, len(place.parts) + 1)
    least = next((depth for depth in depths if all(each[-depth:] != place.parts[-depth:] for each in other_places)), 1)
    return "/".join(place.parts[-least:])


def _by_one_metric(runs: list[ReportedRun]) -> list[ReportedRun]:
    """Return the runs with one common metric: their own, or accuracy if they differ and all have it."""
    if len({run.metric for run in runs}) == 1:
        return runs
    if not all("accuracy" in reached(run.summary)[1] for run in runs):
        raise ConfigError("a page compares runs of one evaluation.metric; write one for each")
    return [replace(run, summary=run.summary | {"metric": "accuracy"}) for run in runs]


def setting_label(key: str, value: Any) -> str:
    """Return a setting for a legend, such as ``α 0.2``."""
    text = f"{value:g}" if is_number(value) else ("unset" if value is None else str(value))
    return text if key == RUN else f"{key_label(key)} {text}"


def key_label(key: str) -> str:
    """Return a setting's short name."""
    return SYMBOLS.get(key, key.rpartition(".")[2])


def is_number(value: Any) -> bool:
    """Return whether a value is a number that an axis can show."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _load_run(run_dir: Path, name: str, settings: dict[str, Any]) -> ReportedRun:
    run = Run(run_dir)
    rows, summary = run.rows_and_summary()
    return ReportedRun(rows, summary, name, settings, run.config, read_audit(run_dir, summary["rounds"]))


def _group_variants(runs: Sequence[ReportedRun]) -> tuple[Variant, ...]:
    grouped: dict[str, Variant] = {}
    for run in runs:
        label = ", ".join(setting_label(key, value) for key, value in run.settings.items()) or run.config.name
        before = grouped.get(label, Variant(label, run.settings, ()))
        grouped[label] = replace(before, runs=(*before.runs, run))
    return tuple(grouped.values())
