"""Find the fastest settings for an experiment on this machine, in a few seconds: lvfl tune CONFIG [key=value ...].

Times a training step of the largest party in every precision and memory layout, without pruning and pruned as
configured, and shows the settings to write. It trains nothing and changes nothing.

Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory), 130 interrupted.
"""

import argparse
import sys

from vfl.console import DONE, OneLineParser, ShowConsole, command, print_table


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_experiment("threads=2")


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Measure, show and advise."""
    from vfl.data.experiments import load_user_config

    config = load_user_config(arguments.config, arguments.overrides)
    from vfl.plan import tune

    table, advice = tune.advise(config)
    print_table(console, table)
    console.print(advice)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
