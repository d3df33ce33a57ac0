"""Attack a finished run with what its parties and its server have seen: lvfl audit RUN.

Infers labels from gradients and embeddings, and features from embeddings, each beside a control that holds nothing.
Nothing is sent, and nothing of the run changes; RUN/leakage.json holds what is shown. docs/privacy.md explains it.
Exit codes: 0 done, 2 bad input (one line on stderr), 130 interrupted.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from vfl.console import DONE, OneLineParser, ShowConsole, command, print_table, to_stderr, whole_number
from vfl.reports.leakage import FEWEST_ROWS


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="folder of a run, with labels at the server for all attacks"
    )
    parser.add_places()
    parser.add_argument(
        "--rows",
        type=partial(whole_number, FEWEST_ROWS),
        default=2000,
        metavar="N",
        help="training rows to measure on (default: 2000)",
    )
    parser.add_argument(
        "--processes",
        type=Path,
        nargs="*",
        metavar="FOLDER",
        help="attack with what party processes recorded of themselves (privacy.record=true there) in these folders, or "
        "copies; without a FOLDER in those below RUN, whose configuration and data are read",
    )


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Attack, show, write."""
    from vfl.runs.stored_run import Run

    run = Run(arguments.run, arguments.places)
    _ = run.saved_rounds() if arguments.processes is None else run.vertical
    from vfl.audit.watch_run import audit, audit_recorded
    from vfl.core.privacy.message_recorder import SEEN
    from vfl.reports.leakage import AUDIT
    from vfl.runs.atomic import write_atomically
    from vfl.runs.run_folder import PROCESSES

    if arguments.processes is None:
        found = audit(arguments.run, arguments.rows, arguments.places).as_json()
    else:
        folders = arguments.processes or sorted(path.parent for path in (arguments.run / PROCESSES).glob(f"*/{SEEN}"))
        found = audit_recorded(arguments.run, folders, arguments.rows, arguments.places).as_json()
    show(found, console)
    path = arguments.run / AUDIT
    write_atomically(path, json.dumps(found, indent=1) + "\n")
    console.print(f"all of it: {path}; lvfl report and lvfl export show it too")
    return DONE


def show(found: Mapping[str, Any], console: ShowConsole) -> None:
    """Print a line per attack, what was left out, and what a reader should know."""
    from vfl.reports.leakage import EXPLANATION, HEADINGS, TITLE, audit_rows, verdict

    table = Table(title=TITLE.lower(), box=SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True)
    for row in audit_rows(found):
        if row[0] and table.rows:
            table.add_section()
        table.add_row(*row)
    print_table(console, table)
    for line in found["left_out"]:
        console.print(f"not measured: {line}")
    console.print(f"{verdict(found)} {EXPLANATION}")


if __name__ == "__main__":
    sys.exit(main())
