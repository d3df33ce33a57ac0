"""Tell what the other owners add to the label owner alone: lvfl compare CONFIG [KEY=VALUE ...] [--run-dir DIR], or
lvfl compare --table bank=bank.csv --table insurer=insurer.csv --label late [--key COLUMN] [KEY=VALUE ...].

Trains the label owner alone, all owners together, and, in the open, a perceptron and gradient boosting on the joined
columns; all on the same samples, in this process. Shows the gain with its interval over the test samples (95 %,
bootstrap), what it costs, and by column what the test loses when its owner permutes it.
Exit codes: 0 done, 2 bad input (one line on stderr), 130 interrupted.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.cli import DONE, OneLineParser, ShowConsole, command, numbers_table

if TYPE_CHECKING:
    from vfl.config import ExperimentConfig


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    of = "YAML file, or name of a shipped experiment (not with --table), and settings that override its own"
    parser.add_argument("settings", nargs="*", metavar="CONFIG KEY=VALUE", help=of)
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="folder of the runs (default: the next free one)")
    many = "an owner's CSV or Parquet file, in place of CONFIG; the first has the label; settings need no search"
    parser.add_argument("--table", action="append", metavar="OWNER=FILE", help=many)
    parser.add_argument("--label", metavar="COLUMN", help="with --table: what is to be predicted")
    parser.add_argument("--key", metavar="COLUMN", help="with --table: what rows are known by (default: a likely one)")


def read_experiment(arguments: argparse.Namespace) -> "ExperimentConfig":
    """Return the experiment of CONFIG, or of the tables. Raises ConfigError, one line, for anything else."""
    from parties.compare import experiment_of
    from vfl.config import ConfigError, load_config

    if arguments.table is None:
        if arguments.label or arguments.key:
            raise ConfigError("--label, --key: go with --table")
        if not arguments.settings:
            raise ConfigError("CONFIG: is missing; name a YAML file, or --table OWNER=FILE for each owner")
        return load_config(Path(arguments.settings[0]), arguments.settings[1:])
    tables: dict[str, Path] = {}
    for text in arguments.table:
        owner, _, file = text.partition("=")
        if not owner or not file or owner in tables:
            raise ConfigError(f"--table: {text!r}: write OWNER=FILE, once for each owner")
        tables[owner] = Path(file)
    if arguments.label is None:
        raise ConfigError("--label: is missing; name the column of the first table that is to be predicted")
    return experiment_of(tables, arguments.label, arguments.key, arguments.settings)


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train, compare, show."""
    from parties.compare import compare_models
    from vfl.metrics import shown, title
    from vfl.runs.run_folder import choose_run_dir

    config = read_experiment(arguments)
    if arguments.table:
        known = (f"{owner} by {', '.join(table.key or ())}" for owner, table in config.data.tables.items())
        console.print(f"rows known at {'; '.join(known)}")
    folder = arguments.run_dir or choose_run_dir(f"{config.name}-compare", Path("runs"), resume=False)
    found = compare_models(config, folder, console)
    models = numbers_table(f"test {title(found.metric)}", ("model", "reached", "LVFL is better by"), "")
    for name, value in found.reached.items():
        difference = {"alone": found.gain, **found.against}.get(name)
        models.add_row(name, shown(found.metric, value), "" if difference is None else difference.text())
    console.print(models)
    columns = numbers_table(f"{title(found.metric)} lost without a column", ("owner", "column", "lost"), "")
    for owner, lost in found.columns.items():
        for name, value in sorted(lost.items(), key=lambda item: -item[1]):
            columns.add_row(owner, name, f"{value:.4f}")
    console.print(columns)
    for owner, idle in found.idle.items():
        if idle:
            console.print(f"{owner} may drop {', '.join(idle)}: the test loss does not rise without")
    console.print(found.headline())
    return DONE


if __name__ == "__main__":
    sys.exit(main())
