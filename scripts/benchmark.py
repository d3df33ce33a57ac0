"""Measure on this machine: lvfl benchmark doctor CONFIG [key=value ...].

Finds out which precision and memory layout is the fastest for an experiment. From a checkout, python
scripts/benchmark.py also offers the benchmarks of this software against bare PyTorch (BENCHMARK [--pairs N]
[--json FILE]); run them on a machine that does nothing else.

Exit codes: 0 done (whether targets are met or not), 2 bad input (one line on stderr), 75 what may succeed later (disk,
memory), 130 interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from vfl.console import DONE, OneLineParser, exit_code

PIPE_WIDTH = 170
"""Columns of the tables if there is no terminal."""
ROOT = Path(__file__).parents[1]
LABORATORY = __package__ != "vfl.commands" and (ROOT / "scripts" / "lab").is_dir()
"""True for scripts/benchmark.py of a checkout; the package does not contain the laboratory."""
if LABORATORY and str(ROOT) not in sys.path:
    sys.path.insert(1, str(ROOT))  # a script's own folder is there, not the checkout's
DOCTOR = "find out in a few seconds which precision and memory layout trains an experiment fastest on this machine"


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    doctor = commands.add_parser("doctor", help=DOCTOR, description=DOCTOR)
    doctor.add_experiment("threads=2")
    if LABORATORY:
        from scripts.lab.benchmarks.door import add_commands

        add_commands(commands)
    commands.metavar = f"{{{','.join(commands.choices)}}}"
    return parser.parse_args(argv)


def advise(arguments: argparse.Namespace, console: Console) -> int:
    """Show the fastest settings for an experiment."""
    from vfl.config import ConfigError, load_config
    from vfl.plan import tune

    config = load_config(arguments.config, arguments.overrides)
    if config.mode != "vertical":
        raise ConfigError(f"mode: {config.mode} is not measured, engines choose their own form; use vertical")
    table, lines = tune.advise(config)
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True)
    return DONE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; errors become one line and an exit code."""
    arguments = parse_arguments(argv)
    command = " ".join(["scripts/benchmark.py", *(sys.argv[1:] if argv is None else argv)])
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    if arguments.benchmark == "doctor":
        return exit_code(lambda: advise(arguments, console), warn=console.print)
    from scripts.lab.benchmarks.door import run

    return exit_code(lambda: run(arguments, command, console), warn=console.print)


if __name__ == "__main__":
    sys.exit(main())
