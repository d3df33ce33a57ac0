"""Vertical federated learning that is cheap for weak parties: lvfl COMMAND [ARGUMENT ...].

COMMAND --help explains a command. CONFIG and SWEEP are YAML files, or names of shipped ones, such as quickstart.
"""

import argparse
import sys
from importlib import import_module
from importlib.metadata import version

from vfl.console import OneLineParser

COMMANDS = {
    "train": "train one experiment",
    "plan": "show what alpha and beta would cost and save each party, before training",
    "compare": "tell what the other owners add, and at what cost",
    "sweep": "train many runs of one experiment",
    "report": "show a run or a sweep on one page",
    "predict": "predict with a trained split model",
    "serve": "serve scores by key, while the owners are at work",
    "describe": "look at a table, and propose which columns to use",
    "align": "match the keys of several owners' tables in private",
    "audit": "attack a finished run, to see what its messages reveal",
    "export": "write a trained model as torch.export and ONNX files",
    "server": "serve a training to party processes",
    "party": "take part in a training",
    "status": "show how a run stands, from either side's folder",
    "split-data": "write what each process of an experiment holds",
    "certs": "make and look at certificates",
    "doctor": "find out why a party cannot join",
    "benchmark": "find the fastest settings for an experiment on this machine",
}
"""Summary of each command, by the name of its module."""
REMOVED_COMMANDS = {
    "distill": "distill: removed in 0.2.0; lvfl compare trains the label owner alone",
}
"""Answer to each command of earlier releases that is no more."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command's name; the command parses the arguments after it."""
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {line}" for name, line in COMMANDS.items())
    parser = OneLineParser(__doc__, prog="lvfl", epilog=f"commands:\n{listing}")
    parser.add_argument("--version", action="version", version=f"lvfl {version('lvfl')}")
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of those below")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="those of the command")
    if told := REMOVED_COMMANDS.get("".join(sys.argv[1:2])):
        parser.error(told)
    return parser.parse_args(sys.argv[1:] or ["--help"])


def main() -> int:
    """Import only the named command, and run it."""
    arguments = parse_arguments()
    sys.argv = [f"lvfl {arguments.command}", *arguments.arguments]
    return import_module(f"vfl.commands.{arguments.command.replace('-', '_')}").main()


if __name__ == "__main__":
    sys.exit(main())
