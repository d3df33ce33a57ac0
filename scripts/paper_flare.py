"""FLARE's figures: train every run once, draw, write the tables.

lvfl paper-flare [key=value ...] --out DIR [--data mnist|cifar10] [--seeds 0,1,2]

Figures 3, 4, 5, 7 and 8 (MNIST) or 3, 4, 6 and 7 (CIFAR-10), and with MNIST how far greedy selection and the linear
program are from the best sets. Settings are those of configs/horizontal/flare_*.yaml, and what the command line
overrides for all. The same command goes on where it was interrupted; with --plots-only it draws what is finished.
Exit codes: 0 done, 2 bad input (one line on stderr), 130 interrupted after a checkpoint.
"""

import argparse
import sys

from vfl.cli import ShowConsole, command, to_stderr, whole_numbers
from vfl.config import ConfigError
from vfl.shipped import shipped_folder
from vfl.studies.command import run_study, study_parser
from vfl.studies.flare.page import write_results
from vfl.studies.flare.studies import DATA_SETS, FIGURES, Planner, Scale, make_runs

CONFIGS = shipped_folder() / "horizontal"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = study_parser(__doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that differ, for all runs")
    parser.add_argument("--data", default="mnist", choices=list(DATA_SETS), help="(default: %(default)s)")
    parser.add_argument(
        "--figures", default="3,4,5,6,8", help="whose runs to train (default: %(default)s; those of the data set)"
    )
    parser.add_argument("--methods", default="", help="of the figures, as FedAvg,MaS (default: all)")
    parser.add_argument("--rounds", type=int, default=200, help="of Figures 3 and 4 (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="simulated, of Figures 5, 6 and 8 (default: %(default)s)"
    )
    return parser.parse_intermixed_args()


def planners(arguments: argparse.Namespace) -> list[Planner]:
    """Return a planner per seed. Raises ConfigError for what cannot be planned."""
    seeds = whole_numbers("--seeds", arguments.seeds)
    if arguments.rounds < 1:
        raise ConfigError(f"--rounds: must be at least 1 (got {arguments.rounds})")
    if not 0 < arguments.seconds < float("inf"):
        raise ConfigError(f"--seconds: must be above 0 (got {arguments.seconds:g})")
    scale = Scale(arguments.rounds, arguments.seconds)
    return [Planner(CONFIGS, arguments.data, seed, scale, tuple(arguments.overrides)) for seed in seeds]


@command(parse_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train what is missing and write the results."""
    plans = planners(arguments)
    figures = whole_numbers("--figures", arguments.figures)
    if unknown := sorted(set(figures) - FIGURES.keys()):
        raise ConfigError(f"--figures: {unknown[0]} is not one that is trained for; choose from 3,4,5,6,8")
    methods = [name for name in arguments.methods.split(",") if name]
    runs = [run for planner in plans for run in make_runs(planner, figures, methods)]

    return run_study(arguments, runs, lambda: write_results(plans, runs, arguments.out, figures), console)


if __name__ == "__main__":
    sys.exit(main())
