"""Write what staleness costs and saves, from a sweep over it and seeds: python table.py SWEEP.

A line per seed: accuracy (%) after equal exchanges, by staleness; simulated seconds of a round; and the seconds to the
accuracy that the worse of its runs ends with, by staleness and as a share of those of staleness 0.
"""

import json
import sys
from pathlib import Path

from vfl.results import RunResult, read_result


def main(sweep: Path) -> None:
    """Read and write."""
    runs: dict[int, dict[int, RunResult]] = {}
    for name, settings in json.loads((sweep / "sweep.json").read_text())["runs"].items():
        if (sweep / "runs" / name / "summary.json").exists():
            result = RunResult(*read_result(sweep / "runs" / name))
            runs.setdefault(settings["seed"], {})[settings["training.staleness"]] = result
    for seed, by_staleness in sorted(runs.items()):
        finals = {each: run.curve[-1][1] for each, run in by_staleness.items()}
        rounds_s = {each: run.rows[-1]["simulated_time_s/round"] for each, run in by_staleness.items()}
        reached_s = {each: run.seconds_to(min(finals.values())) or 0.0 for each, run in by_staleness.items()}
        cells = [
            ", ".join(f"{100 * value:.1f}" for value in finals.values()),
            ", ".join(f"{value:.2f}" for value in rounds_s.values()),
            ", ".join(f"{value:.0f}" for value in reached_s.values()),
            ", ".join(f"{value / reached_s[0]:.2f}" for value in reached_s.values()),
        ]
        sys.stdout.write(f"| {seed} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
