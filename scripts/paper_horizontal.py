"""Compare the horizontal algorithms in their papers' settings: train every run once, draw, write the tables.

lvfl paper-horizontal [key=value ...] --out DIR [--studies heterogeneity,case1,...] [--seeds 0,1,2]

Settings are those of configs/horizontal/, and what the command line overrides for all. The same command goes on where
it was interrupted; with --plots-only it draws what is finished. A run that diverges ends alone: the page names it.
Exit codes: 0 done, 2 bad input (one line on stderr), 130 interrupted after a checkpoint.
"""

import argparse
import sys
from pathlib import Path

from vfl.cli import DONE, INTERRUPTED, OneLineParser, ShowConsole, command, to_stderr, whole_numbers
from vfl.shipped import shipped_folder
from vfl.studies.horizontal.page import write_results
from vfl.studies.horizontal.studies import STUDIES, make_runs
from vfl.studies.runner import train_for_page

CONFIGS = shipped_folder() / "horizontal"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that differ, for all runs")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the runs and the results")
    parser.add_argument("--studies", default=",".join(STUDIES), help="of %(default)s (default: all)")
    parser.add_argument("--methods", default="", help="of the studies, as fedavg,dms (default: all)")
    parser.add_argument("--seeds", default="0", help="as 0,1,2 (default: 0); a seed is finished before the next begins")
    parser.add_argument("--rounds", type=int, help="train so many rounds instead of the configurations'")
    parser.add_argument("--title", default="Horizontal algorithms compared", help="of the results page")
    parser.add_argument("--data-note", default="", help="what the results page says about the data")
    parser.add_argument("--plots-only", action="store_true", help="train nothing")
    return parser.parse_intermixed_args()


@command(parse_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train what is missing and write the results."""
    seeds = whole_numbers("--seeds", arguments.seeds)
    methods = [name for name in arguments.methods.split(",") if name]
    runs = make_runs(CONFIGS, arguments.studies.split(","), seeds, arguments.overrides, arguments.rounds, methods)

    if not arguments.plots_only:
        signal_name = train_for_page(
            runs,
            arguments.out,
            ShowConsole(stderr=True, quiet=not sys.stderr.isatty()),
            lambda line: print(line, flush=True),
            command=["scripts/paper_horizontal.py", *sys.argv[1:]],
            data_note=arguments.data_note,
        )
        if signal_name:
            return INTERRUPTED
    written = write_results(runs, arguments.out, arguments.title)
    print(f"{written} finished runs: {arguments.out / 'README.md'}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
