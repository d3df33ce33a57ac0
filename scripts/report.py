"""Report on a run or a sweep, or compare several of any kinds: lvfl report RUN_OR_SWEEP ... [--out DIR].

Writes DIR/report.html (one file that opens offline), report.md and the figures as PNG.
Exit codes: 0 done, 2 bad input (one line on stderr).
"""

import argparse
import sys
from pathlib import Path

from vfl.cli import DONE, OneLineParser, ShowConsole, command, to_stderr


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(__doc__)
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="RUN_OR_SWEEP", help="folder of lvfl train or lvfl sweep"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder (default: report, in the first one's)")
    return parser.parse_args()


@command(parse_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Write the report."""
    from vfl.reports.runs import load_subject
    from vfl.reports.write import PAGE, write_report

    folder = arguments.out or arguments.folders[0] / "report"
    names = write_report(load_subject(*arguments.folders), folder)
    console.print(f"{folder / PAGE}, and {len(names) - 1} files beside it")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
