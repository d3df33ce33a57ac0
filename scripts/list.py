"""Name the shipped experiments and sweeps, with a line each, and the feature models: lvfl list.

Each name stands for CONFIG in lvfl train and the other commands, or for SWEEP in lvfl sweep; a YAML file of your own
may begin with base: NAME. Exit codes: 0 done.
"""

import argparse
import sys

from vfl.console import DONE, OneLineParser, ShowConsole, command


def add_arguments(parser: OneLineParser) -> None:
    """Add no arguments: there is nothing to choose."""


@command(__doc__, add_arguments)
def main(_arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Print a line for each file, in three groups, and the kinds of feature models."""
    from vfl.config.components import FEATURE_MODELS
    from vfl.config.shipped import shipped_summaries

    for group, summaries in shipped_summaries().items():
        console.print(f"{group}:")
        for name, summary in summaries.items():
            console.print(f"  {name:<29}  {summary}")
    console.print("feature models (models.feature.kind):")
    console.print(f"  {', '.join(FEATURE_MODELS.names())}, my_models.py:Net, package.module:Net")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
