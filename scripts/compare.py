"""Measure what the other owners add to the label owner: lvfl compare CONFIG [key=value ...] [--run-dir DIR], or
lvfl compare --table bank=bank.csv --table insurer=insurer.csv --label late [--key [OWNER=]COLUMN] [key=value ...],
or, of a run that processes have trained, lvfl compare RUN --processes or --listen CONFIG.

Trains the label owner alone, all owners together, and, in the open, a perceptron and gradient boosting on the joined
columns; all on the same samples, in this process. Shows the gain with its interval over the test samples (95 %,
bootstrap), what it costs, and by column what the test loses when its owner permutes it. Over processes nothing is
trained but the label owner alone, and columns have numbers: each owner finds its own by name in its own folder.
Exit codes: 0 done, 2 bad input (one line on stderr), 3 a party lost, 130 interrupted.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.console import DONE, OneLineParser, ShowConsole, command, numbers_table, to_stderr

if TYPE_CHECKING:
    from vfl.comparison.compare import Comparison
    from vfl.config import ExperimentConfig


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    of = "YAML file, or name of a shipped experiment (not with --table), and settings that override its own"
    parser.add_argument("settings", nargs="*", metavar="CONFIG key=value", help=of)
    parser.add_run_dir("folder of the runs (default: the next free one)")
    parser.add_tables()
    parser.add_where("of a RUN of lvfl train --processes: ask them again")


def read_experiment(arguments: argparse.Namespace) -> "ExperimentConfig":
    """Return the experiment of CONFIG, or of the tables. Raises ConfigError, one line, for anything else."""
    from vfl.config import ConfigError
    from vfl.data.experiments import load_user_config

    if arguments.table is None:
        if arguments.label or arguments.key:
            raise ConfigError("--label, --key: go with --table")
        if not arguments.settings:
            raise ConfigError("CONFIG: is missing; name a YAML file, or --table OWNER=FILE for each owner")
        return load_user_config(Path(arguments.settings[0]), arguments.settings[1:])
    from vfl.data.tables.fitting import experiment_of_arguments

    return experiment_of_arguments(arguments, "comparing")


def finished_run(arguments: argparse.Namespace) -> Path:
    """Return RUN. Raises ConfigError for other arguments beside it."""
    from vfl.config import ConfigError

    if len(arguments.settings) != 1 or any((arguments.table, arguments.label, arguments.key, arguments.run_dir)):
        raise ConfigError("--processes, --listen: work only with the folder of a RUN")
    return Path(arguments.settings[0])


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train, compare, show."""
    if arguments.insecure and not arguments.listen:
        to_stderr("warning: --insecure: ignored; it goes with --listen")
    if arguments.processes:
        from vfl.parties.launch.local_launch import compare_together

        return compare_together(finished_run(arguments), console)
    show(over_processes(arguments, console) if arguments.listen else in_process(arguments, console), console)
    return DONE


def over_processes(arguments: argparse.Namespace, console: ShowConsole) -> "Comparison":
    """Compare by the parties that dial in."""
    from vfl.data.experiments import load_user_config
    from vfl.runs.stored_run import Run

    run, config = Run(finished_run(arguments)), load_user_config(arguments.listen)
    run.saved_rounds()
    from vfl.parties.uses.dialled_run import Dialled, compare_run

    return compare_run(run, Dialled(config, console, arguments.insecure))


def in_process(arguments: argparse.Namespace, console: ShowConsole) -> "Comparison":
    """Compare with all tables in this process."""
    config = read_experiment(arguments)
    from vfl.comparison.compare import compare_models
    from vfl.runs.run_folder import choose_run_dir

    if arguments.table:
        known = (f"{owner} by {', '.join(table.key or ())}" for owner, table in config.data.tables.items())
        console.print(f"rows known at {'; '.join(known)}")
    folder = arguments.run_dir or choose_run_dir(f"{config.name}-compare", Path("runs"), resume=False)
    found = compare_models(config, folder, console)
    console.print(f"joint model: {folder / 'lvfl'}")
    return found


def show(found: "Comparison", console: ShowConsole) -> None:
    """Show scores, then losses without each owner and column, then the gain."""
    from vfl.base.metrics import CALIBRATION, format_metric, title

    calibrated = tuple(title(name) for name in CALIBRATION) if found.calibration else ()
    models = numbers_table(f"test {title(found.metric)}", ("model", "reached", "LVFL is better by", *calibrated), "")
    for name, value in found.reached.items():
        cells = [f"{each:.4g}" for each in found.calibration.get(name, {}).values()]
        difference = {"alone": found.gain, **found.against}.get(name)
        models.add_row(
            name, format_metric(found.metric, value), "" if difference is None else difference.text(), *cells
        )
    console.print(models)
    owners = numbers_table(
        f"{title(found.metric)} that LVFL's model loses without an owner",
        ("owner", "lost", *(["knows alone"] * bool(found.own))),
        "",
    )
    for owner, difference in found.owners.items():
        alone = [format_metric(found.metric, found.own[owner])] if owner in found.own else []
        owners.add_row(owner, difference.text(), *alone)
    console.print(owners)
    columns = numbers_table(f"{title(found.metric)} lost without a column", ("owner", "column", "lost"), "")
    for owner, lost in found.columns.items():
        for name, value in sorted(lost.items(), key=lambda item: -item[1]):
            columns.add_row(owner, name, f"{value:.4f}")
    console.print(columns)
    console.print(found.headline())
    if found.meeting:
        console.print(found.meeting["text"])


if __name__ == "__main__":
    sys.exit(main())
