"""Write what party_dropout costs and buys, from a sweep with evaluation.subsets: python table.py SWEEP.

A line per party_dropout, of the finished runs: the metric by which they are compared (%) with all parties, over all
sets of parties, and by how many are there; mean over the seeds and, of the first two, the sample standard deviation.
"""

import json
import sys
from pathlib import Path
from statistics import mean, stdev


def by_size(run: Path) -> dict[int, float]:
    """Return the mean score (%) of a run's sets of each size; under 0 that of all sets."""
    summary = json.loads((run / "summary.json").read_text())
    sizes: dict[int, list[float]] = {}
    for parties, values in summary["subsets"].items():
        for size in (0, parties.count("+") + 1):
            sizes.setdefault(size, []).append(100 * values[summary["metric"]])
    return {size: mean(values) for size, values in sizes.items()}


def spread(values: list[float]) -> str:
    """Return mean and deviation."""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def main(sweep: Path) -> None:
    """Read and write."""
    runs: dict[float, list[dict[int, float]]] = {}
    for name, settings in json.loads((sweep / "sweep.json").read_text())["runs"].items():
        if (sweep / "runs" / name / "summary.json").exists():
            runs.setdefault(settings["training.party_dropout"], []).append(by_size(sweep / "runs" / name))
    for dropout, found in runs.items():
        sizes = sorted({*found[0]} - {0}, reverse=True)
        cells = [f"{mean(each[size] for each in found):.1f}" for size in sizes]
        whole, every = spread([each[sizes[0]] for each in found]), spread([each[0] for each in found])
        sys.stdout.write(f"| {dropout:g} | {len(found)} | {whole} | {every} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
