"""Report on a run or a sweep, or compare several of any kinds: lvfl report RUN|SWEEP ... [--out DIR|FILE.html].

Writes DIR/report.html (one file that opens offline), report.md and the figures as PNG; or only FILE.html. With
--figures DIR also every figure as PDF and SVG, for a paper.
Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory).
"""

import argparse
import sys
from pathlib import Path

from vfl.console import DONE, OneLineParser, ShowConsole, command, to_stderr


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN|SWEEP", help="folder of lvfl train or lvfl sweep")
    parser.add_argument("--out", type=Path, metavar="DIR|FILE.html", help="where to (default: report in the first)")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="write the figures there as PDF and SVG as well")


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Write the report."""
    from vfl.runs.run_folder import finished_runs

    for folder in arguments.folders:
        finished_runs(folder)
    from vfl.reports.runs import load_subject
    from vfl.reports.write import PAGE, write_figures, write_page, write_report
    from vfl.runs.atomic import follow_links, is_special

    out = follow_links(arguments.out) if arguments.out else arguments.folders[0] / "report"
    subject = load_subject(*arguments.folders)
    if out.suffix == ".html" or is_special(out):
        write_page(subject, out)
        console.print(str(out))
    else:
        names = write_report(subject, out)
        console.print(f"{out / PAGE}, and {len(names) - 1} files beside it")
    if arguments.figures:
        console.print(f"{len(write_figures(subject, follow_links(arguments.figures)))} figures in {arguments.figures}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
