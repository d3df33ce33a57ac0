"""Measures of claims on committed rows: differences of curves and of final scores, costs saved, paired times.

Rows are files below docs/results: ``results.csv`` has a line per study, method, seed and round, ``sweep.csv`` one per
run, a benchmark's JSON the raw times of its pairs.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Literal

from vfl.base.errors import ConfigError
from vfl.base.estimates import CONFIDENCE, student_half_width
from vfl.config.settings import Section
from vfl.reports.tables import table as spaced_table
from vfl.runs.results import CLOCK

ACCURACY = "accuracy/test"
LAST_TENTH = "last tenth"


class Measure(Section):
    """A quantity, and the rows that it is computed from."""

    rows: str
    """File below docs/results."""
    kind: Literal["curve", "seconds", "saved", "score", "pairs", "quotient"] = "curve"
    """curve: mean of a metric over rounds; seconds: simulated time until a target; saved: share of a sum of columns;
    score: column of a sweep; pairs: ratio of paired times; quotient: of two values of a JSON file, or one."""
    studies: tuple[str, ...] = ("",)
    """Studies to pool: a seed's value is its mean over them."""
    first: str | dict[str, str] = ""
    second: str | dict[str, str] | None = None
    metric: str = ACCURACY
    less: str | None = None
    """Metric to subtract, of the same rounds."""
    rounds: tuple[int, int] | Literal["last tenth"] = LAST_TENTH
    """First and last round."""
    columns: tuple[str, ...] = ()
    added_bytes: float = 0.0
    """Bytes that every method sends in each round in addition; kind saved only."""
    target: float = 0.0
    within_s: float | None = None
    """Simulated seconds up to which rows count."""
    bounded: bool = False
    """A second that never reaches the target counts as if it did at its end, which favours it where less is claimed."""
    part: float = 1.0
    """Share of the second that the first is compared with."""
    minus: "Measure | None" = None
    """Comparison to subtract, seed by seed: how much larger the difference is than that one."""
    seeds: tuple[int, int] | None = None
    """First and last of the seeds to use."""
    tries: int = 1
    """Number of comparisons that were tried for the same goal, for which the interval is corrected (Bonferroni)."""
    case: tuple[str, ...] = ()
    """Parts of a benchmark's group and case, or the path of a value."""
    less_case: tuple[str, ...] = ()
    """Path of the divisor."""
    over: str = ""
    """Detail of a benchmark by which its ratios are divided."""
    inverse: bool = False
    scale: float = 100.0
    reference: float = 0.0
    """Value without an effect: 1 for a ratio."""


@dataclass(frozen=True)
class Effect:
    """A value, with its interval if there is one."""

    value: float
    low: float | None
    high: float | None
    count: int
    """Number of seeds or pairs."""
    counted: str
    """The same in words."""
    reference: float = 0.0
    symmetric: bool = True

    def quoted(self, digits: int) -> str:
        """Return the number as quoted, ``-1.4 ± 1.3``; only the value if it has no interval, or an asymmetric one."""
        sign = "+" if self.symmetric and self.low is not None else ""
        if self.low is None or self.high is None or not self.symmetric:
            return f"{self.value:{sign}.{digits}f}"
        return f"{self.value:+.{digits}f} ± {(self.high - self.low) / 2:.{digits}f}"

    def text(self, digits: int, unit: str) -> str:
        """Return the number with its interval and unit, for a cell of a table."""
        spread = ""
        if self.low is not None and self.high is not None and not self.symmetric:
            spread = f" ({self.low:.{digits}f}–{self.high:.{digits}f})"
        return f"{self.quoted(digits).replace(' ', '')}{spread} {unit}".strip()


def measured(measure: Measure, folder: Path) -> Effect:
    """Return the measure's value on the rows below ``folder``. Raises ConfigError for missing rows."""
    path = folder / measure.rows
    if measure.kind == "quotient":
        by = _number(path, measure.less_case) if measure.less_case else 1.0
        return Effect(
            _number(path, measure.case) / by,
            None,
            None,
            0,
            "",
            measure.reference,
            symmetric=False,
        )
    if measure.kind == "pairs":
        return _of_pairs(path, measure)
    if measure.kind == "saved":
        return Effect(measure.scale * _saved(path, measure), None, None, 0, "", symmetric=False)
    value_by_seed = _pooled(path, measure)
    if measure.minus is not None:
        less_by_seed = _pooled(folder / measure.minus.rows, measure.minus)
        value_by_seed = {seed: value_by_seed[seed] - less_by_seed[seed] for seed in value_by_seed.keys() & less_by_seed}
    seeds = sorted(value_by_seed)
    if measure.seeds is not None:
        seeds = [seed for seed in seeds if measure.seeds[0] <= seed <= measure.seeds[1]]
    values = [value_by_seed[seed] for seed in seeds]
    if not values:
        raise ConfigError(f"{measure.rows}: no seed has both {measure.first} and {measure.second}")
    if len(values) == 1:
        return Effect(values[0], None, None, 1, "1", measure.reference)
    centre, half = mean(values), student_half_width(values, measure.tries)
    pooled = f"×{len(measure.studies)}" if len(measure.studies) > 1 else ""
    return Effect(centre, centre - half, centre + half, len(values), f"{len(values)}{pooled}", measure.reference)


SENT = "uplink_bytes", "downlink_bytes"
MACS = ("train_macs",)


def relative_cost(measure: Measure, folder: Path, columns: Sequence[str]) -> float | None:
    """Return the first method's cost over the second's, over seeds that both have; None where rows lack the columns."""
    if measure.kind != "score" or not isinstance(measure.first, dict) or not isinstance(measure.second, dict):
        return None
    rows = read_rows(folder / measure.rows)
    if not set(columns) <= rows[0].keys():
        return None
    first, second = (
        {
            row["seed"]: sum(float(row[each]) for each in columns)
            for row in rows
            if all(row[key] == value for key, value in chosen.items()) and all(row[each] for each in columns)
        }
        for chosen in (measure.first, measure.second)
    )
    low, high = measure.seeds or (0, 1 << 31)
    seeds = [seed for seed in first.keys() & second.keys() if low <= int(seed) <= high]
    return sum(first[seed] for seed in seeds) / sum(second[seed] for seed in seeds) if seeds else None


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the order statistics that contain the median with at least 95 %; None for fewer than six values."""
    count, ordered = len(values), sorted(values)
    outside, skipped = 0.0, 0
    for below in range(count // 2):
        outside += 2 * comb(count, below) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        skipped = below + 1
    return (ordered[skipped - 1], ordered[count - skipped]) if skipped else None


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table without the spaces between its cells: these pages are numbers, and there are many."""
    return [line.replace(" | ", "|") for line in spaced_table(headings, rows)]


def summary_of_methods(path: Path, studies: Sequence[str]) -> list[str]:
    """Return Markdown lines: accuracy of the last tenth, a row per study, a column per method.

    Mean ± sample deviation over seeds; of one seed only the value.
    """
    by_methods: dict[tuple[str, ...], list[list[str]]] = {}
    for study in studies or sorted({row["study"] for row in read_rows(path)}):
        methods = tuple(dict.fromkeys(row["method"] for row in read_rows(path) if row["study"] == study))
        cells = [study]
        for method in methods:
            values = list(_values(path, Measure(rows=path.name), study, method).values())
            cells.append(f"{100 * mean(values):.1f}" + (f"±{100 * stdev(values):.1f}" if len(values) > 1 else ""))
        by_methods.setdefault(methods, []).append(cells)
    tables = ["\n".join(table(("%", *methods), rows)) for methods, rows in by_methods.items()]
    return "\n\n".join(tables).split("\n")


def sides(measure: Measure, folder: Path) -> tuple[float, ...]:
    """Return the means of the two sides of a comparison, over the seeds that both have; none of other kinds."""
    if measure.kind not in ("curve", "seconds") or measure.second is None or measure.minus is not None:
        return ()
    path, means = folder / measure.rows, list[tuple[float, float]]()
    for study in measure.studies:
        first, second = (_values(path, measure, study, each) for each in (measure.first, measure.second))
        low, high = measure.seeds or (0, 1 << 31)
        seeds = [seed for seed in first.keys() & second.keys() if low <= seed <= high]
        means.append((mean(first[seed] for seed in seeds), mean(second[seed] for seed in seeds)))
    return tuple(measure.scale * mean(each) for each in zip(*means, strict=True))


@cache
def read_rows(path: Path) -> tuple[Mapping[str, str], ...]:
    """Read a CSV file. Raises ConfigError if it does not exist."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def _pooled(path: Path, measure: Measure) -> dict[int, float]:
    """Return the mean over the studies, by seed, of the seeds that all have."""
    by_study = [_by_seed(path, measure, each) for each in measure.studies]
    return {seed: mean(values[seed] for values in by_study) for seed in set.intersection(*map(set, by_study))}


def _by_seed(path: Path, measure: Measure, study: str) -> dict[int, float]:
    first = _values(path, measure, study, measure.first)
    if measure.second is None:
        return {seed: measure.scale * value for seed, value in first.items()}
    second = _values(path, measure, study, measure.second)
    return {seed: measure.scale * (first[seed] - measure.part * second[seed]) for seed in first.keys() & second.keys()}


def _values(path: Path, measure: Measure, study: str, chosen: str | dict[str, str]) -> dict[int, float]:
    """Return a value by seed; of several rows, as of several tables, their mean."""
    if isinstance(chosen, dict):
        rows = [row for row in read_rows(path) if all(row[key] == value for key, value in chosen.items())]
        by_seed: dict[int, list[float]] = {}
        for row in rows:
            by_seed.setdefault(int(row["seed"]), []).append(float(row[measure.metric]))
        return {seed: mean(values) for seed, values in by_seed.items()}
    if "/" in chosen:  # of another study
        study, _, chosen = chosen.rpartition("/")
    rows = [row for row in read_rows(path) if row["study"] == study and row["method"] == chosen]
    if measure.within_s is not None:
        rows = [row for row in rows if float(row[CLOCK]) <= measure.within_s]
    seeds = dict.fromkeys(int(row["seed"]) for row in rows)
    bounded = measure.bounded and chosen == measure.second
    return {seed: _value([row for row in rows if int(row["seed"]) == seed], measure, bounded) for seed in seeds}


def _value(rows: Sequence[Mapping[str, str]], measure: Measure, bounded: bool) -> float:
    """Return the number of one run."""
    if measure.kind == "seconds":
        late = [row for row in rows if float(row[ACCURACY] or 0) >= measure.target]
        if not late and bounded:
            return float(rows[-1][measure.metric])
        if not late:
            raise ConfigError(f"{measure.rows}: a run never reaches {measure.target}")
        return float(late[0][measure.metric])
    if measure.rounds == LAST_TENTH:
        known = [row for row in rows if row[measure.metric]]
        chosen = known[-max(1, len(known) // 10) :]
    else:
        start, stop = measure.rounds
        chosen = [row for row in rows if start <= int(row["round"]) <= stop and row[measure.metric]]
        if not chosen or (measure.less is None and len(chosen) != stop - start + 1):
            raise ConfigError(f"{measure.rows}: {measure.first} has not all rounds from {start} to {stop}")
    return mean(float(row[measure.metric]) - (float(row[measure.less]) if measure.less else 0.0) for row in chosen)


def _saved(path: Path, measure: Measure) -> float:
    """Return the share of a sum that the first method saves, over seeds that both have; ``inverse``: the factor."""
    study = measure.studies[0]
    chosen = [
        [row for row in read_rows(path) if row.get("study", "") == study and row["method"] == method]
        for method in (measure.first, measure.second)
    ]
    seeds = set.intersection(*({row["seed"] for row in rows} for rows in chosen))
    first, second = (
        sum(
            sum(float(row[each]) for each in measure.columns) + measure.added_bytes
            for row in rows
            if row["seed"] in seeds
        )
        for rows in chosen
    )
    return second / first if measure.inverse else 1 - first / second


def _of_pairs(path: Path, measure: Measure) -> Effect:
    cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["results"]
    found = [each for each in cases if all(part in f"{each['group']} | {each['case']} " for part in measure.case)]
    if len(found) != 1:
        raise ConfigError(f"{measure.rows}: {len(found)} cases have all of {measure.case}")
    ratios = [float(ratio) for ratio in found[0]["ratios"]]
    if measure.over:
        ratios = [ratio / found[0]["details"][measure.over] for ratio in ratios]
    if measure.inverse:
        ratios = [1 / ratio for ratio in ratios]
    ratios = [measure.scale * ratio for ratio in ratios]
    low, high = median_interval(ratios) or (None, None)
    return Effect(
        median(ratios),
        low,
        high,
        len(ratios),
        f"{len(ratios)} pair{'s' if len(ratios) > 1 else ''}",
        measure.reference,
        symmetric=False,
    )


def _number(path: Path, keys: Sequence[str]) -> float:
    value: Any = json.loads(path.read_text(encoding="utf-8"))
    for key in keys:
        value = value[int(key) if isinstance(value, list) else key]
    return float(value)
