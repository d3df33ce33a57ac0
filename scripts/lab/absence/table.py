"""Write the costs and gains of party_dropout, from a sweep with evaluation.subsets.

python -m scripts.lab.absence.table SWEEP

A line per party_dropout, of the finished runs: the metric by which they are compared (%) with all parties, over all
sets of parties, and by the number of present parties; mean over the seeds and, of the first two, the sample standard
deviation.
"""

import sys
from pathlib import Path
from statistics import mean

from scripts.lab.studies.page import spread
from vfl.reports.runs import ReportedRun, load_subject


def by_size(run: ReportedRun) -> dict[int, float]:
    """Return the mean score (%) of a run's sets of each size; key 0 is the mean over all sets."""
    sizes: dict[int, list[float]] = {}
    for parties, values in run.summary["subsets"].items():
        for size in (0, parties.count("+") + 1):
            sizes.setdefault(size, []).append(100 * values[run.metric])
    return {size: mean(values) for size, values in sizes.items()}


def main(sweep: Path) -> None:
    """Read and write."""
    for variant in load_subject(sweep).variants:
        found = [by_size(run) for run in variant.runs]
        sizes = sorted({*found[0]} - {0}, reverse=True)
        cells = [f"{mean(each[size] for each in found):.1f}" for size in sizes]
        whole, every = (spread([each[size] for each in found], "{:.2f}".format) for size in (sizes[0], 0))
        dropout = variant.settings["training.party_dropout"]
        sys.stdout.write(f"| {dropout:g} | {len(found)} | {whole} | {every} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
