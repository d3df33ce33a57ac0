"""Export a trained split model: lvfl export RUN [--out DIR].

Writes every party's pruned feature model and the head as torch.export (.pt2) and ONNX files, checks both against
PyTorch, and adds a card (card.json, card.md: what goes in and comes out, and code that uses them). RUN may also be a
party's own folder (of lvfl party): then only its model. Needs: pip install 'lvfl[export]'.
Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory).
"""

import argparse
import sys
from pathlib import Path

from vfl.console import DONE, OneLineParser, ShowConsole, command, to_stderr
from vfl.runs.atomic import check_new_folder


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a vertical run, or of one of its parties")
    parser.add_argument("--out", type=Path, metavar="DIR", help="new folder (default: RUN/export)")


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Export, and show the folder."""
    from vfl.runs.stored_run import Run

    folder = arguments.out or arguments.run / "export"
    check_new_folder(folder)
    Run(arguments.run).saved_rounds()
    from vfl.core.export_model import check_tools
    from vfl.predict.export_run import export_run

    check_tools()
    card = export_run(arguments.run, folder)
    models = ", ".join(card["models"])
    console.print(f"{models}, checked to {card['checked_to']:g}: {folder / 'card.md'}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
