"""Train APC-VFL's breast cancer setting with ours: test AUC by exchange.

    python -m scripts.lab.peers.breast_cancer OUT.csv [--seeds 0 1 2 3 4] [--exchanges 120]

398 rows train, 171 test. The owner of the labels has the means of scikit-learn's table, the other its errors and worst
values (APC-VFL, arXiv:2410.17648, which needs one exchange; no package of it is public). The experiment is
`quickstart_tables` without lightweighting; a row for every third exchange, bytes counted with gradients.
"""

import argparse
import tempfile
from pathlib import Path

from scripts.lab.peers.environment import add_row, rows_of

EACH = 3
"""Exchanges of a round, after which the model is tested."""


def main() -> None:
    """Train the seeds that the rows lack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="CSV file that gets a row a test")
    parser.add_argument("--seeds", type=int, nargs="*", default=range(5))
    parser.add_argument("--exchanges", type=int, default=120)
    given = parser.parse_args()
    done = {int(row["seed"]) for row in rows_of(given.out)}
    for seed in sorted({*given.seeds} - done):
        for row in train(seed, given.exchanges):
            add_row(given.out, row)


def train(seed: int, exchanges: int) -> list[dict[str, float | int]]:
    """Return the rows of a training."""
    import vfl

    settings = {
        "seed": seed,
        "lightweighting.alpha": 0.0,
        "lightweighting.beta": 0.0,
        "training.steps_per_round": EACH,
        "training.rounds": exchanges // EACH,
        "evaluation.every": 1,
        "checkpoint.every": exchanges // EACH,
    }
    with tempfile.TemporaryDirectory() as folder:
        run = vfl.train("quickstart_tables", settings, run_dir=Path(folder) / "run")
        sent = [sum(float(row[key]) for key in row if "link_bytes/" in key) for row in run.metrics]
        return [
            {
                "seed": seed,
                "exchanges": EACH * (index + 1),
                "auc": round(float(row["auc/test"]), 5),
                "bytes": round(sum(sent[: index + 1])),
            }
            for index, row in enumerate(run.metrics)
        ]


if __name__ == "__main__":
    main()
