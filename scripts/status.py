"""Show how a run stands: lvfl status RUN [--json].

RUN is the folder of a run, at the server or of lvfl train, or a party's own folder: rounds done, test metrics, who is
connected or lost and was last seen when, bytes, and whether it runs or how it has ended. It changes nothing.

Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory).
"""

import argparse
import json
import sys
from pathlib import Path

from vfl.console import DONE, OneLineParser, ShowConsole, command


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or of a party")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Print the status."""
    from vfl.parties.network.status import lines_of, status_of

    status = status_of(arguments.run)
    console.print(json.dumps(status, indent=1) if arguments.json else "\n".join(lines_of(status)))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
