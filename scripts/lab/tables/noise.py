"""Planted columns of noise: which of them ``lvfl compare`` proposes to drop. python -m scripts.lab.tables.noise OUT.csv

Declared before the first run: seeds 31 to 40 draw a table of 2,000 rows with five informative columns at each of two
owners, of falling weight, an interaction across the owners, and ten columns of noise at each, half of them categories.
The rule is `parties.importance.is_idle`; the model has the defaults for tables. Goal: 95 % of the noise columns are
proposed, and no informative one. Verdict: exact (Clopper-Pearson) 95 % intervals over all columns of a kind.
"""

import csv
import sys
import tempfile
from itertools import compress
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy.stats import beta

from parties.importance import column_importance
from parties.local import build_in_process
from vfl.config import parse_config
from vfl.config.presets import table_settings
from vfl.data.tables.source import Tables
from vfl.runtime import start_runtime

ROWS, INFORMATIVE, NOISE = 2000, 5, 10
SEEDS = range(31, 41)
"""Seeds of the tables and of the trainings."""


def write_tables(folder: Path, seed: int) -> dict[str, dict[str, str]]:
    """Write both owners' tables; return `data.tables`."""
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(2, ROWS, INFORMATIVE))
    weights = np.array([1.0, 0.8, 0.7, 0.6, 0.5])
    score = (values @ weights).sum(axis=0) + values[0, :, 0] * values[1, :, 0]
    late = np.where(score + draw.logistic(size=ROWS) > 0, "yes", "no")
    tables: dict[str, dict[str, str]] = {}
    for place, owner in enumerate(("bank", "insurer")):
        columns: dict[str, object] = {"key": [f"k{row}" for row in range(ROWS)]}
        columns |= {f"informative_{each}": values[place, :, each] for each in range(INFORMATIVE)}
        for each in range(NOISE):
            noise = draw.normal(size=ROWS) if each % 2 else draw.choice(["red", "green", "blue", "grey"], ROWS)
            columns[f"noise_{each}"] = noise
        label = {} if place else {"label": "late"}
        columns |= {} if place else {"late": late}
        tables[owner] = {"file": str(folder / f"{owner}.csv"), "key": "key"} | label
        with (folder / f"{owner}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))  # pyright: ignore[reportArgumentType]
    return tables


def proposed(seed: int) -> dict[str, int]:
    """Return how many columns of each kind are proposed to their owners."""
    with tempfile.TemporaryDirectory() as folder:
        settings = table_settings(ROWS * 4 // 5)
        settings["data"] |= {"dataset": {"kind": "tables"}, "tables": write_tables(Path(folder), seed)}
        config = parse_config(settings | {"name": "noise", "seed": seed, "threads": 1})
        built = build_in_process(config, start_runtime(config))
        for each in range(config.training.rounds):
            built.server.train_round(each)
        source, found = Tables(config.data, seed), column_importance(built.server.joint)
        idle = [name for owner in found for name in compress(source.column_names(owner), found[owner].idle)]
    return {kind: sum(name.startswith(kind) for name in idle) for kind in ("noise", "informative")}


def main(out: Path) -> None:
    """Run all seeds, write the rows and print the intervals."""
    console, rows = Console(), list[dict[str, int]]()
    for seed in SEEDS:
        found = proposed(seed)
        rows.append(
            {"seed": seed, "noise_proposed": found["noise"], "noise": 2 * NOISE}
            | {"informative_proposed": found["informative"], "informative": 2 * INFORMATIVE}
        )
        console.print(rows[-1])
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for kind in ("noise", "informative"):
        hits, count = (sum(row[key] for row in rows) for key in (f"{kind}_proposed", kind))
        low = beta.ppf(0.025, hits, count - hits + 1) if hits else 0.0
        high = beta.ppf(0.975, hits + 1, count - hits) if hits < count else 1.0
        console.print(f"{kind}: {hits} of {count} proposed, {hits / count:.1%} ({low:.1%} to {high:.1%})")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
