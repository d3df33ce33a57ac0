"""Attack a finished run with what its parties and its server have seen: lvfl audit RUN.

Infers labels from gradients and embeddings, and features from embeddings, each beside a control that holds nothing.
Nothing is sent, and nothing of the run changes; RUN/leakage.json holds what is shown. docs/leakage.md explains it.
Exit codes: 0 done, 2 bad input (one line on stderr), 130 interrupted.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.cli import DONE, OneLineParser, ShowConsole, command, numbers_table, print_table, to_stderr

if TYPE_CHECKING:
    from parties.audit import Audit
    from vfl.leakage.audit import Finding
    from vfl.leakage.estimate import Estimate


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(__doc__)
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="folder of a run, with labels at the server for all attacks"
    )
    parser.add_argument(
        "--rows", type=int, default=2000, metavar="N", help="training rows to measure on (default: 2000)"
    )
    return parser.parse_args()


@command(parse_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Attack, show, write."""
    from parties.audit import audit
    from vfl.runs.atomic import write_atomically

    found = audit(arguments.run, arguments.rows)
    show(found, console)
    path = arguments.run / "leakage.json"
    write_atomically(path, json.dumps(found.as_json(), indent=1) + "\n")
    console.print(f"all of it, with intervals: {path}")
    return DONE


def show(found: "Audit", console: ShowConsole) -> None:
    """Print a line per attack, what was left out, and what a reader should know."""
    table = numbers_table("what leaks", ["attack", "attacker", "knows", "measure", "found", "control", "leaks"])
    for finding in found.findings:
        table.add_row(*cells(finding))
    print_table(console, table)
    for line in found.left_out:
        console.print(f"not measured: {line}")
    console.print("Each number with its 95 % interval. An attack that finds nothing here is no proof that none can.")


def cells(finding: "Finding") -> list[str]:
    """Return a finding as a line of the table."""
    knows = f"{finding.known} rows" if finding.known else "nothing"
    said = "yes" if finding.leaks else "no"
    return [
        finding.attack,
        finding.attacker,
        knows,
        finding.measure,
        _text(finding.found),
        _text(finding.control),
        said,
    ]


def _text(estimate: "Estimate") -> str:
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
