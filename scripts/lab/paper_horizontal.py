"""Compare the horizontal algorithms in their papers' settings: train every run once, draw, write the tables.

python -m scripts.lab.paper_horizontal [key=value ...] --out DIR [--studies heterogeneity,case1,...] [--seeds 0,1,2]

Settings are those of configs/horizontal/, and what the command line overrides for all. The same command goes on where
it was interrupted; with --plots-only it draws what is finished. A run that diverges ends alone: the page names it.
Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory), 130 interrupted after a
checkpoint.
"""

import argparse
import sys

from scripts.lab.studies.command import add_study_arguments, run_study, whole_numbers
from scripts.lab.studies.comparison import write_results
from scripts.lab.studies.study import horizontal_studies, make_runs
from vfl.console import OneLineParser, ShowConsole, command, to_stderr


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    add_study_arguments(parser)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings to override in all runs")
    parser.add_argument("--studies", default=",".join(horizontal_studies()), help="of %(default)s (default: all)")
    parser.add_argument("--methods", default="", help="of the studies, as fedavg,dms (default: all)")
    parser.add_argument("--rounds", type=int, help="train so many rounds instead of the configurations'")
    parser.add_argument("--title", default="Horizontal algorithms compared", help="of the results page")


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train the missing runs and write the results."""
    seeds = whole_numbers("--seeds", arguments.seeds)
    methods = [name for name in arguments.methods.split(",") if name]
    runs = make_runs(arguments.studies.split(","), seeds, arguments.overrides, arguments.rounds, methods)
    return run_study(arguments, runs, lambda: write_results(runs, arguments.out, arguments.title), console)


if __name__ == "__main__":
    sys.exit(main())
