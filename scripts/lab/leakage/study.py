"""Train and attack the runs of table.yaml or cifar10.yaml: what leaks, at which accuracy and cost.

    python -m scripts.lab.leakage.study scripts/lab/leakage/table.yaml ROWS.csv [fast | slow]

After each run its rows are appended to ROWS.csv, one per attack and round that is attacked; a run whose rows are there
is left out, so that the same command goes on. ``audit`` in the plan says by which party and on how many rows. fast:
attacks by lengths and directions of gradients; slow: all others, after the last round alone; otherwise both. Runs are
trained in a temporary folder, one after the other, in one process.
"""

import csv
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import vfl
from vfl.audit.audit import (
    DIRECTION,
    INVERSION,
    NORM,
    Finding,
    ObservedMessages,
    attacks_on_features,
    attacks_on_labels,
    attacks_with_gradients,
)
from vfl.audit.watch_run import watch
from vfl.base.metrics import reached
from vfl.config.files import read_yaml
from vfl.predict.trained_run import load_run_with_data
from vfl.runs.stored_run import Run

COSTS = ("uplink_bytes", "downlink_bytes", "train_macs")
COLUMNS = (
    *("seed", "method", "round", "attack", "measure", "party", "known", "rows", "found", "low", "high"),
    *("control", "control_low", "control_high", "score", *COSTS),
)


def main(plan_file: Path, rows_file: Path, parts: tuple[str, ...]) -> None:
    """Train and attack what has no rows yet."""
    plan = read_yaml(plan_file)
    done = finished(rows_file)
    for seed in plan["seeds"]:
        for method, settings in plan["methods"].items():
            if (seed, method) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                own = {"seed": seed, **plan["settings"], **settings}
                vfl.train(Path(plan["base"]), own, run_dir=Path(folder) / "run")
                append(
                    rows_file,
                    [{"seed": seed, "method": method} | row for row in rows_of(Path(folder), plan, parts)],
                )


def finished(rows_file: Path) -> set[tuple[int, str]]:
    """Return the seeds and methods that have rows."""
    if not rows_file.exists():
        return set()
    with rows_file.open(newline="") as file:
        return {(int(row["seed"]), row["method"]) for row in csv.DictReader(file)}


def append(rows_file: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows, below headings in a new file."""
    new = not rows_file.exists()
    with rows_file.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def rows_of(folder: Path, plan: Mapping[str, Any], parts: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield a row per finding on the run below a folder."""
    summary = Run(folder / "run").summary
    metric, values = reached(summary)
    costs = {name: summary[name] for name in COSTS} | {"score": f"{values[metric]:.5f}"}
    audit, fast = plan["audit"], "fast" in parts
    for done in audit["rounds"] if fast else audit["rounds"][-1:]:
        slow = "slow" in parts and done == audit["rounds"][-1]
        trained = load_run_with_data(Run(folder / "run"), done)
        for seen in watch(trained, done, audit["rows"]):
            if seen.party == audit["party"]:
                for finding in attacks(seen, trained.server.config.seed, audit["slow_rows"] if slow else 0, fast=fast):
                    yield {"round": done} | cells(finding) | costs


def attacks(seen: ObservedMessages, seed: int, slow_rows: int, *, fast: bool) -> list[Finding]:
    """Return the findings of the fast attacks on all rows, and of the slow ones on the first ``slow_rows``."""
    with_labels = seen.gradients_ND is not None
    found = attacks_with_gradients(seen, seed, only=(NORM, DIRECTION)) if with_labels and fast else []
    if not slow_rows:
        return found
    few = first_rows(seen, slow_rows)
    if with_labels:
        found += [*attacks_with_gradients(few, seed, only=(INVERSION,)), *attacks_on_labels(few, seed)]
    return [*found, *attacks_on_features(few, seed)]


def first_rows(seen: ObservedMessages, rows: int) -> ObservedMessages:
    """Return what was seen of the first rows."""
    return replace(
        seen,
        labels_N=seen.labels_N[:rows],
        embeddings_ND=seen.embeddings_ND[:rows],
        gradients_ND=None if seen.gradients_ND is None else seen.gradients_ND[:rows],
        features=tuple(tensor[:rows] for tensor in seen.features),
    )


def cells(finding: Finding) -> dict[str, Any]:
    """Return a finding's columns."""
    found, control = finding.found, finding.control
    numbers = {"found": found.value, "low": found.low, "high": found.high}
    numbers |= {"control": control.value, "control_low": control.low, "control_high": control.high}
    own = {"attack": finding.attack, "measure": finding.measure, "party": finding.attacker}
    return own | {"known": finding.known, "rows": finding.rows} | {key: f"{each:.4f}" for key, each in numbers.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3:]) or ("fast", "slow"))
