"""Predict with a trained split model: lvfl predict RUN [--data FILE] [--absent PARTY --when-absent W].

Writes a CSV with a line per sample: its id, its label where known, the predicted class, all probabilities. Who
predicts:

  RUN                    this process, with all models rebuilt from RUN's last checkpoint
  RUN --processes        processes on this machine, for a RUN of lvfl train --processes
  RUN --serve CONFIG     this server (CONFIG as for lvfl server) with the parties; every owner starts lvfl party

FILE is an .npz with images uint8 [N, C, H, W] of the training images' shape and, where known, labels and ids. With
--serve it has only ids and labels, and the parties have the features (vfl/data/prediction_files.py).

Exit codes: 0 done, 2 bad input (one line on stderr), 3 a party is absent without replacement, 75 what may succeed
later (disk, memory, port), 130 interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.cli import DONE, OneLineParser, ShowConsole, command, to_stderr
from vfl.runs.atomic import write_csv

if TYPE_CHECKING:
    from parties.predict import Prediction
    from vfl.config import ExperimentConfig


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a vertical run")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--processes", action="store_true", help="ask processes of this machine")
    where.add_argument("--serve", type=Path, metavar="CONFIG", help="ask the parties that dial in")
    parser.add_argument("--insecure", action="store_true", help="with --serve: plaintext; only on loopback")
    parser.add_argument("--data", type=Path, metavar="FILE", help="samples to predict (default: the test set)")
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="[PARTY=]FILE",
        help="new rows of a party to predict; repeated for each, or one table that has all columns; with --serve the "
        "label owner's alone",
    )
    parser.add_argument(
        "--absent", action="append", default=[], metavar="PARTY", help="predict without it; may be repeated"
    )
    parser.add_argument(
        "--when-absent",
        choices=("refuse", "placeholder", "zeros", "mean"),
        default="refuse",
        help="what replaces the embeddings of a party that is absent or has no row: nothing; its learned placeholder "
        "(zeros if none was learned); zeros; its mean embedding of the training (default: refuse)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="where to (default: RUN/predictions.csv)")
    return parser.parse_args()


@command(parse_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Predict and write the table."""
    out = arguments.out or arguments.run / "predictions.csv"
    absent, when_absent = tuple(dict.fromkeys(arguments.absent)), arguments.when_absent
    tables = new_tables(arguments.run, arguments.table)
    if tables and arguments.data:
        raise ValueError("--table: goes without --data")
    if arguments.insecure and not arguments.serve:
        to_stderr("warning: --insecure: ignored; it goes with --serve")
    if arguments.processes:
        from parties.remote.together import predict_together

        return predict_together(arguments.run, arguments.data, absent, when_absent, out, console, tables)
    if arguments.serve is None:
        from parties.predict import predict_in_process

        prediction = predict_in_process(arguments.run, arguments.data, absent, when_absent, tables)
    else:
        from parties.remote.server.prediction import serve_predictions
        from vfl.config import load_config

        config = load_config(arguments.serve)
        prediction = serve_predictions(
            config,
            arguments.run,
            labels_table(config, tables) if tables else arguments.data,
            absent,
            when_absent,
            insecure=arguments.insecure,
            console=console,
        )
    save(prediction, out, console)
    return DONE


def new_tables(run: Path, given: Sequence[str]) -> dict[str, Path]:
    """Return the tables by party; a file without one is everybody's. Raises ValueError for an unknown party."""
    from parties.trained import load_run
    from vfl.config.registry import nearest

    if not given:
        return {}
    names = load_run(run).config.parties
    tables: dict[str, Path] = {}
    for text in given:
        party, named, path = text.partition("=")
        if not named and len(given) == 1:
            return dict.fromkeys(names, Path(text))
        if not named or party in tables:
            raise ValueError(f"--table: {text!r}: write PARTY=FILE, once for each of {', '.join(names)}")
        if party not in names:
            raise ValueError(f"--table: unknown party {party!r}{nearest(party, names)}")
        tables[party] = Path(path)
    return tables


def labels_table(config: "ExperimentConfig", tables: dict[str, Path]) -> Path:
    """Return the one table that the server reads, the label owner's. Raises ValueError for others."""
    from parties.predict import samples_table

    if len(set(tables.values())) > 1:
        raise ValueError(
            "--table: with --serve name the label owner's alone; the others give theirs to party --samples"
        )
    return samples_table(config, tables)


def save(prediction: "Prediction", path: Path, console: ShowConsole) -> None:
    """Write the table and show the scores."""
    write_csv(path, prediction.rows())
    if prediction.scores:
        console.print(", ".join(f"{name} {value}" for name, value in prediction.scores.items()))
    console.print(f"{len(prediction.ids_N)} predictions: {path}")


if __name__ == "__main__":
    sys.exit(main())
