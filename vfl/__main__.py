"""Vertical federated learning that is cheap for weak parties: lvfl COMMAND [ARGUMENT ...].

COMMAND --help explains a command. CONFIG and SWEEP are YAML files, or names of shipped ones (lvfl list); RUN is a
training's folder.
"""

import argparse
import sys
from importlib import import_module
from importlib.metadata import version

from vfl.base.errors import did_you_mean
from vfl.console import OneLineParser

GROUPS = {
    "train": {
        "train": "train one experiment",
        "list": "name the shipped experiments and sweeps",
        "plan": "tell before a training what it takes and saves",
        "tune": "find the fastest settings for this machine",
        "sweep": "train many runs of one experiment",
    },
    "look": {
        "report": "show runs or a sweep on one page",
        "status": "show how a run stands, or check a server's or a party's file",
        "compare": "measure what the other owners add, and at what cost",
        "audit": "attack a finished run, to see what its messages reveal",
    },
    "several owners": {
        "describe": "look at a table, and propose which columns to use",
        "align": "match the keys of several owners' tables in private",
        "split-data": "write what each owner holds of one data set",
        "certs": "make and look at certificates",
        "server": "lead a training of party processes",
        "party": "take part in a training",
    },
    "use a model": {
        "predict": "predict with a trained split model",
        "prune": "make a finished run's models smaller, without training",
        "serve": "answer scores by key, while the owners are at work",
        "update": "train a served run on in a copy, and serve it if it is as good",
        "export": "write a trained model as torch.export and ONNX files",
    },
}
"""Commands with a summary each, by what they are for."""
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}
"""Summary of each command, by the name of its module."""
OTHER_WORDS = {
    **dict.fromkeys(("validate", "check", "verify", "lint"), "status"),
    **dict.fromkeys(("evaluate", "eval", "test", "score"), "predict"),
    **dict.fromkeys(("fit", "run", "resume"), "train"),
}
"""Words of other programs for commands of this one."""
OPTIONS = ("-h", "--help", "--version")
REMOVED_COMMANDS = {
    "doctor": "doctor: removed in 0.2.0; lvfl status CONFIG --party NAME takes its place",
    "benchmark": "benchmark: removed in 0.2.0; lvfl tune CONFIG finds the fastest settings",
    "distill": "distill: removed in 0.2.0; lvfl compare trains only the label owner",
}
"""Answer to each command of earlier releases that is no more."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command's name; the command parses the arguments after it."""
    width = max(map(len, COMMANDS))
    listing = "\n\n".join(
        "\n".join([f"{group}:", *(f"  {name:<{width}}  {line}" for name, line in commands.items())])
        for group, commands in GROUPS.items()
    )
    parser = OneLineParser(__doc__, prog="lvfl", epilog=listing)
    parser.add_argument("--version", action="version", version=f"lvfl {version('lvfl')}")
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of those below")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="those of the command")
    first = "".join(sys.argv[1:2])
    if told := REMOVED_COMMANDS.get(first):
        parser.error(told)
    if meant := OTHER_WORDS.get(first):
        parser.error(f"argument COMMAND: unknown {first!r}; did you mean {meant!r}? It is to {COMMANDS[meant]}")
    if first.startswith("-") and first not in OPTIONS:
        parser.error(f"unrecognized arguments: {first}{did_you_mean(first, OPTIONS)}")
    return parser.parse_args(sys.argv[1:] or ["--help"])


def main() -> int:
    """Import only the named command, and run it."""
    arguments = parse_arguments()
    sys.argv = [f"lvfl {arguments.command}", *arguments.arguments]
    return import_module(f"vfl.commands.{arguments.command.replace('-', '_')}").main()


if __name__ == "__main__":
    sys.exit(main())
