"""Keep a model for when the others are gone: lvfl distill RUN [--out DIR].

Trains a model of the label owner's columns alone on the joint model's scores of all training rows, and beside it the
same model on the labels, with the run's settings and from the same seeds. Shows the gain with its interval over the
seeds (95 %, Student), and exports the run's own seed's model (ONNX, torch.export, preparation, card) to DIR/export. RUN
stays as it is; its owners' tables are read again. Needs: pip install 'lvfl[export]'.
Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory), 130 interrupted.
"""

import argparse
import sys
from pathlib import Path

from vfl.cli import DONE, OneLineParser, ShowConsole, command, numbers_table, to_stderr


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run on tables of several owners")
    parser.add_argument("--out", type=Path, metavar="DIR", help="new folder (default: RUN-distilled)")
    weight = "of the scores in the targets, from 0 (the labels alone) to 1 (default: 1)"
    parser.add_argument("--weight", type=float, default=1.0, metavar="W", help=weight)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds from the run's own on (default: 5)")


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Distill, compare, show."""
    from parties.distill import distill
    from vfl.config import ConfigError
    from vfl.metrics import shown, title

    if not 0 <= arguments.weight <= 1:
        raise ConfigError(f"--weight: {arguments.weight:g}: give a number from 0 to 1")
    if arguments.seeds < 1:
        raise ConfigError(f"--seeds: {arguments.seeds}: give 1 or more")
    run = arguments.run.resolve()
    folder = arguments.out or run.with_name(f"{run.name}-distilled")
    found = distill(run, folder, console, arguments.weight, arguments.seeds)
    models = numbers_table(title(found.metric), ("model", "mean", "by seed"), "")
    models.add_row("all owners", shown(found.metric, found.joint), "")
    for name, values in (("distilled", found.distilled), ("labels alone", found.alone)):
        each = " ".join(shown(found.metric, value) for value in values)
        models.add_row(name, shown(found.metric, sum(values) / len(values)), each)
    console.print(models)
    console.print(found.headline())
    console.print(f"exported: {folder / 'export' / 'card.md'}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
