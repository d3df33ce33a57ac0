"""Tell what the other owners add to the label owner alone: lvfl compare CONFIG [KEY=VALUE ...] [--run-dir DIR].

Trains the label owner alone, all owners together, and, in the open, a perceptron and gradient boosting on the joined
columns; all on the same samples, in this process. Shows the gain with its interval over the test samples (95 %,
bootstrap), what it costs, and by column what the test loses when its owner permutes it.
Exit codes: 0 done, 2 bad input (one line on stderr), 130 interrupted.
"""

import argparse
import sys
from pathlib import Path

from vfl.cli import DONE, OneLineParser, ShowConsole, command, numbers_table


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(__doc__)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="YAML file, or name of a shipped experiment")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that override the file's")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="folder of the runs (default: the next free one)")
    return parser.parse_args()


@command(parse_arguments)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train, compare, show."""
    from parties.compare import compare
    from vfl.config import load_config
    from vfl.metrics import shown, title
    from vfl.runs.run_folder import choose_run_dir

    config = load_config(arguments.config, arguments.overrides)
    folder = arguments.run_dir or choose_run_dir(f"{config.name}-compare", Path("runs"), resume=False)
    found = compare(config, folder, console)
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
    console.print(found.headline())
    return DONE


if __name__ == "__main__":
    sys.exit(main())
