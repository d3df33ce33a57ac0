"""Predict with a trained split model: lvfl predict RUN [--data FILE] [--absent PARTY --when-absent W].

Writes a CSV with a line per sample: its id, its label where known, the predicted class, all probabilities; with
--reasons also what moved its score (docs/tables.md). Who predicts:

  RUN                    this process, with all models rebuilt from RUN's last checkpoint
  RUN --processes        processes on this machine, for a RUN of lvfl train --processes
  RUN --listen CONFIG    this server (CONFIG as for lvfl server) with the parties; every owner starts lvfl party

FILE is an .npz with images uint8 [N, C, H, W] of the training images' shape and, where known, labels and ids. With
--listen it has only ids and labels, and the parties have the features (vfl/data/prediction_files.py).

Exit codes: 0 done, 2 bad input (one line on stderr), 3 a party is absent without replacement, 75 what may succeed
later (disk, memory, port), 130 interrupted.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from vfl.base.errors import WhenAbsent
from vfl.console import DONE, PLAIN, OneLineParser, ShowConsole, command, to_stderr, whole_number
from vfl.runs.atomic import check_output, csv_text, escape_formula, is_special, write_atomically, write_output

if TYPE_CHECKING:
    from vfl.config import ExperimentConfig
    from vfl.predict.predict import Prediction
    from vfl.predict.reasons import ReasonsWanted
    from vfl.runs.stored_run import Run


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a vertical run")
    parser.add_places()
    parser.add_where("ask processes of this machine")
    parser.add_argument("--data", type=Path, metavar="FILE", help="samples to predict (default: the test set)")
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="[OWNER=]FILE",
        help="new rows of an owner to predict; repeated for each. A single table needs no OWNER if its columns show "
        "whose it is, or if it has all owners' columns; with --listen only the label owner's",
    )
    parser.add_argument(
        "--split",
        choices=("test", "validation"),
        help="of the run's own samples (default: those that it evaluated)",
    )
    parser.add_argument(
        "--absent", action="append", default=[], metavar="PARTY", help="predict without it; may be repeated"
    )
    parser.add_argument(
        "--when-absent",
        choices=get_args(WhenAbsent),
        default="refuse",
        help="what replaces the embeddings of a party that is absent or has no row: nothing; its learned placeholder "
        "(zeros if none was learned); zeros; its mean embedding of the training; own: the mean answer of the present "
        "parties' own classifiers (default: refuse)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE.csv",
        help="a file, a pipe or /dev/stdout (default: RUN/predictions.csv); with --database a new table",
    )
    parser.add_argument(
        "--database",
        metavar="URI",
        help="write into a new table of it, which --out names: sqlite:FILE, or postgresql://USER@HOST/NAME without a "
        "password (PGPASSWORD, PGPASSFILE)",
    )
    add_reasons(parser)
    parser.add_log(PLAIN)


def add_reasons(parser: OneLineParser) -> None:
    """Add the arguments that ask for reasons."""
    parser.add_argument(
        "--reasons",
        nargs="?",
        type=partial(whole_number, 0),
        const=0,
        metavar="N",
        help="also what each owner moved, and what each of its columns moved as far as it agrees; with N the names of "
        "the N columns that lowered the score most",
    )
    parser.add_argument(
        "--reasons-of",
        metavar="CLASS",
        help="explain its log odds (default: of two the positive one, else the predicted)",
    )
    parser.add_argument(
        "--reasons-steps",
        type=partial(whole_number, 1),
        default=16,
        metavar="S",
        help="steps of the path to a row (default: 16)",
    )


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Predict and write the table."""
    from vfl.data.experiments import load_user_config
    from vfl.runs.stored_run import Run

    run = Run(arguments.run, arguments.places)
    listening = load_user_config(arguments.listen) if arguments.listen else None
    if arguments.places and (arguments.processes or arguments.listen):
        raise ValueError(f"{arguments.places[0]}: goes with a run in this process")
    if arguments.database is not None:
        from vfl.predict.score_table import check_score_table

        if not arguments.out:
            raise ValueError("--database: goes with --out, which names the new table")
        check_score_table(arguments.database, str(arguments.out))
    elif arguments.out:
        check_output(arguments.out)
    run.saved_rounds()
    absent, when_absent = tuple(dict.fromkeys(arguments.absent)), arguments.when_absent
    tables = new_tables(run, arguments)
    if arguments.split and (arguments.data or tables or arguments.listen or arguments.processes):
        raise ValueError("--split: goes with a run in this process and without --data and --table")
    if arguments.insecure and not arguments.listen:
        to_stderr("warning: --insecure: ignored; it goes with --listen")
    reasons = wanted_reasons(arguments)
    from vfl.predict.open_run import HERE, SamplesWanted

    wanted = SamplesWanted(arguments.data, tables, arguments.split, absent, when_absent)
    if arguments.processes:
        from vfl.parties.launch.local_launch import predict_together

        return predict_together(run.folder, wanted, arguments.out, console, reasons, arguments.database)
    from vfl.predict.predict import predict_run

    where = HERE
    if listening is not None:
        from vfl.parties.uses.dialled_run import Dialled

        data = labels_table(listening, tables) if tables else arguments.data
        wanted, where = replace(wanted, data=data), Dialled(listening, console, arguments.insecure)
    prediction = predict_run(run, where, wanted, reasons)
    save(prediction, arguments, console)
    return DONE


def wanted_reasons(arguments: argparse.Namespace) -> "ReasonsWanted | None":
    """Return which reasons to compute, if any. Raises ValueError for options that go only with ``--reasons``."""
    if arguments.reasons is None:
        if arguments.reasons_of is not None:
            raise ValueError("--reasons-of: goes with --reasons")
        return None
    from vfl.predict.reasons import ReasonsWanted

    return ReasonsWanted(arguments.reasons_of, arguments.reasons_steps, arguments.reasons)


def new_tables(run: "Run", arguments: argparse.Namespace) -> dict[str, Path]:
    """Return the tables of new rows by owner. Raises ValueError as ``owned_tables``, and beside other samples."""
    if not arguments.table:
        return {}
    if arguments.data:
        raise ValueError("--table: goes without --data")
    from vfl.predict.predict import owned_tables

    return owned_tables(run, arguments.table, serve=arguments.listen is not None)


def labels_table(config: "ExperimentConfig", tables: dict[str, Path]) -> Path:
    """Return the only table that the server reads, the label owner's. Raises ValueError for others."""
    from vfl.predict.open_run import samples_table

    if len(set(tables.values())) > 1:
        raise ValueError(
            "--table: with --listen name only the label owner's; the others give theirs to party --samples"
        )
    return samples_table(config, tables)


def save(prediction: "Prediction", arguments: argparse.Namespace, console: ShowConsole) -> None:
    """Write the table, for its user only, and show the scores."""
    from vfl.runs.run_folder import private_files

    path = arguments.out or arguments.run / "predictions.csv"
    if arguments.database is not None:
        from vfl.predict.score_table import write_scores

        write_scores(prediction, arguments.database, str(path))
        replaced = " (a new table)"
    else:
        replaced = " (in place of earlier ones)" if path.is_file() and not is_special(path) else ""
        table = csv_text([escape_formula(cell) for cell in row] for row in prediction.rows())
        with private_files():
            (write_output if arguments.out else write_atomically)(path, table)
    if prediction.scores:
        console.print(", ".join(f"{name} {value}" for name, value in prediction.scores.items()))
    lacking = ", ".join(f"{count} at {owner}" for owner, count in prediction.lacking.items())
    without = f", without a row: {lacking}" if lacking else ""
    console.print(f"{len(prediction.ids_N)} predictions{without}: {path}{replaced}")


if __name__ == "__main__":
    sys.exit(main())
