"""Write costs and savings of staleness, from a sweep over it and seeds: python -m scripts.lab.staleness.table SWEEP.

A line per seed: accuracy (%) after equal exchanges, by staleness; simulated seconds of a round; and the seconds to the
accuracy that the worse of its runs ends with, by staleness and as a share of those of staleness 0.
"""

import sys
from pathlib import Path

from vfl.reports.runs import ReportedRun, load_subject


def main(sweep: Path) -> None:
    """Read and write."""
    runs: dict[int, dict[int, ReportedRun]] = {}
    for run in load_subject(sweep).runs:
        runs.setdefault(run.config.seed, {})[run.config.training.staleness] = run
    for seed, by_staleness in sorted(runs.items()):
        finals = {each: run.curve[-1][1] for each, run in by_staleness.items()}
        rounds_s = {each: run.rows[-1]["simulated_time_s/round"] for each, run in by_staleness.items()}
        worst = min(finals.values())
        reached_s = {each: run.seconds_by_round()[run.round_reaching(worst) or 0] for each, run in by_staleness.items()}
        cells = [
            ", ".join(f"{100 * value:.1f}" for value in finals.values()),
            ", ".join(f"{value:.2f}" for value in rounds_s.values()),
            ", ".join(f"{value:.0f}" for value in reached_s.values()),
            ", ".join(f"{value / reached_s[0]:.2f}" for value in reached_s.values()),
        ]
        sys.stdout.write(f"| {seed} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
