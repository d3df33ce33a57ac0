"""Measure this software against bare PyTorch: python scripts/benchmark.py BENCHMARK [--pairs N] [--json FILE].

Run it from a checkout, on a machine that does nothing else. lvfl tune finds the fastest settings for an experiment.

Exit codes: 0 done (whether targets are met or not), 2 bad input (one line on stderr), 75 what may succeed later (disk,
memory), 130 interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from vfl.console import OneLineParser, exit_code

PIPE_WIDTH = 170
"""Columns of the tables if there is no terminal."""
ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(1, str(ROOT))  # a script's own folder is there, not the checkout's
REMOVED = "doctor: removed in 0.2.0; lvfl tune CONFIG takes its place"


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    from scripts.lab.benchmarks.door import add_commands

    parser = OneLineParser(__doc__)
    if (sys.argv[1:] if argv is None else argv)[:1] == ["doctor"]:
        parser.error(REMOVED)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    add_commands(commands)
    commands.metavar = f"{{{','.join(commands.choices)}}}"
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark; errors become one line and an exit code."""
    from scripts.lab.benchmarks.door import run

    arguments = parse_arguments(argv)
    command = " ".join(["scripts/benchmark.py", *(sys.argv[1:] if argv is None else argv)])
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    return exit_code(lambda: run(arguments, command, console), warn=console.print)


if __name__ == "__main__":
    sys.exit(main())
