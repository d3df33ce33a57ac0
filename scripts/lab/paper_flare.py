"""FLARE's figures: train every run once, draw, write the tables.

python -m scripts.lab.paper_flare [key=value ...] --out DIR [--data mnist|cifar10] [--seeds 0,1,2]

Figures 3, 4, 5, 7 and 8 (MNIST) or 3, 4, 6 and 7 (CIFAR-10), and with MNIST how far greedy selection and the linear
program are from the best sets. Settings are those of configs/horizontal/flare_*.yaml, and what the command line
overrides for all. The same command goes on where it was interrupted; with --plots-only it draws what is finished.
Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory), 130 interrupted after a
checkpoint.
"""

import argparse
import sys

from scripts.lab.studies.command import add_study_arguments, run_study, whole_numbers
from scripts.lab.studies.flare.page import write_results
from scripts.lab.studies.flare.studies import DEADLINES_S, Scale, make_runs
from vfl.config import ConfigError
from vfl.config.files import parse_overrides
from vfl.console import OneLineParser, ShowConsole, command, to_stderr


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    add_study_arguments(parser)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings to override in all runs")
    parser.add_argument("--data", default="mnist", choices=list(DEADLINES_S), help="(default: %(default)s)")
    parser.add_argument(
        "--figures", default="3,4,5,6,8", help="whose runs to train (default: %(default)s; those of the data set)"
    )
    parser.add_argument("--methods", default="", help="of the figures, as FedAvg,MaS (default: all)")
    parser.add_argument("--rounds", type=int, default=200, help="of Figures 3 and 4 (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="simulated, of Figures 5, 6 and 8 (default: %(default)s)"
    )


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train the missing runs and write the results."""
    seeds, numbers = whole_numbers("--seeds", arguments.seeds), whole_numbers("--figures", arguments.figures)
    if arguments.rounds < 1:
        raise ConfigError(f"--rounds: must be at least 1 (got {arguments.rounds})")
    if not 0 < arguments.seconds < float("inf"):
        raise ConfigError(f"--seconds: must be above 0 (got {arguments.seconds:g})")
    if unknown := sorted(set(numbers) - {3, 4, 5, 6, 8}):
        raise ConfigError(f"--figures: {unknown[0]} is not one that is trained for; choose from 3,4,5,6,8")
    data_set, further = arguments.data, parse_overrides(arguments.overrides)
    methods = [name for name in arguments.methods.split(",") if name]
    scale = Scale(arguments.rounds, arguments.seconds)
    runs = [run for seed in seeds for run in make_runs(data_set, numbers, seed, scale, further, methods)]

    def write() -> int:
        return write_results(data_set, seeds, further, runs, arguments.out, numbers)

    return run_study(arguments, runs, write, console)


if __name__ == "__main__":
    sys.exit(main())
