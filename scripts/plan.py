"""Show what alpha and beta would cost and save each party, before training: lvfl plan CONFIG [key=value ...].

Multiply-accumulates per sample, parameters, bytes and seconds of an exchange, by ratio (alpha for the left half, beta
of all parties for the right one), and of the whole run as configured: costs, saved shares, and the time that it takes
here, by a few exchanges trained now. Seconds of an exchange are those of simulation.parties;
without a speed there this machine's.
Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory).
"""

import argparse
import sys

from vfl.console import DONE, OneLineParser, ShowConsole, command, print_table, to_stderr


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_experiment("training.rounds=20")


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Build the experiment, ask its parties, show."""
    from vfl.data.experiments import load_user_config

    config = load_user_config(arguments.config, arguments.overrides)
    from vfl.core.local import build_in_process
    from vfl.plan.plan import measured_time, plan_tables
    from vfl.runs.runtime import start_runtime

    for line in config.warnings():
        to_stderr(f"warning: {line}")
    built = build_in_process(config, start_runtime(config))
    for table in plan_tables(built.server, built.parties):
        print_table(console, table)
    console.print(measured_time(built.server))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
