"""Soak the transport: python -m scripts.lab.soak [--exchanges N] [--megabytes X] [--json FILE].

A server and two party processes exchange large messages over mutual TLS while memory, threads and file descriptors
of each are watched. Shown is what they held in the second quarter of the exchanges and in the last.

Exit codes: 0 done (whether flat or not), 2 bad input (one line on stderr), 75 what may succeed later (disk, memory),
130 interrupted.
"""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from vfl.console import DONE, OneLineParser, command, numbers_table


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--exchanges", type=int, default=2000, help="(%(default)s)")
    parser.add_argument("--megabytes", type=float, default=2.0, help="of one embedding or gradient (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample of the processes")


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Soak, show and save."""
    from scripts.lab.benchmarks.report import check_output, provenance
    from scripts.lab.benchmarks.soak import as_json, judge, soak
    from vfl.runs.atomic import write_atomically

    check_output(arguments.json)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("exchanges", total=arguments.exchanges)
        usages = soak(arguments.exchanges, arguments.megabytes, lambda done: progress.update(task, completed=done))
    title = f"{arguments.exchanges} exchanges of {arguments.megabytes:g} MB per party and direction"
    table = numbers_table(title, ("process", "memory [MB]", "threads", "descriptors", ""))
    for verdict in judge(usages):
        before, after = (size / 1e6 for size in verdict.memory_bytes)
        table.add_row(
            verdict.process,
            f"{before:.1f} -> {after:.1f}",
            f"{verdict.threads[0]} -> {verdict.threads[1]}",
            f"{verdict.descriptors[0]} -> {verdict.descriptors[1]}",
            "flat" if verdict.flat else "GROWS",
        )
    console.print(table)
    if arguments.json is not None:
        about = provenance(" ".join(["python -m scripts.lab.soak", *sys.argv[1:]]))
        write_atomically(arguments.json, json.dumps(about | as_json(usages), indent=1) + "\n")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
