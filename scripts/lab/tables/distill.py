"""Compare distilled models with local-only ones: python -m scripts.lab.tables.distill PROTOCOL ROWS [key=value ...].

PROTOCOL (distill.yaml) declares tables, weight and seeds; ``key=value`` are settings of all trainings. For each table
and seed the joint model is trained, then `lvfl distill` at that seed. ROWS, a CSV file, gets a line per model; seeds
that it has are not repeated.
"""

import csv
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import vfl
from parties.distill import distill
from vfl.config.files import parse_overrides, read_yaml

HEADING = ("table", "method", "seed", "metric", "value", "model_digest")


def main() -> None:
    """Train what is missing."""
    protocol, rows, *further = sys.argv[1:]
    declared, path, overrides = read_yaml(Path(protocol)), Path(rows), parse_overrides(further)
    if not path.exists():
        path.write_text(",".join(HEADING) + "\n", encoding="utf-8")
    with path.open(encoding="utf-8") as file:
        done = {(row["table"], int(row["seed"])) for row in csv.DictReader(file)}
    for table, config in declared["tables"].items():
        for seed in declared["seeds"]:
            if (table, seed) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                run, out = Path(folder) / "run", Path(folder) / "out"
                trained = vfl.train(config, overrides | {"seed": seed}, run_dir=run)
                found = distill(run, out, Console(), declared["weight"], seeds=1)
                digests = [vfl.Run(out / f"{name}-{seed}").summary["model_digest"] for name in ("distilled", "alone")]
                values = {
                    "joint": (found.joint, trained.summary["model_digest"]),
                    "distilled": (found.distilled[0], digests[0]),
                    "alone": (found.alone[0], digests[1]),
                }
            with path.open("a", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([table, name, seed, found.metric, *each] for name, each in values.items())


if __name__ == "__main__":
    main()
