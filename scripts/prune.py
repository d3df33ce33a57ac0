"""Make a finished run's models smaller, without training: lvfl prune RUN alpha=0.4 [key=value ...] [--out DIR].

Writes a new run: every party's model pruned to alpha, the layers that read what was removed fitted to their former
outputs by least squares over the party's own training rows (lightweighting.pruning.refit), the head as it was. Shows
what that costs in the test and saves. Settings are those of lightweighting: alpha, a number or {PARTY: number}, and
pruning.refit, pruning.importance, pruning.round_to. DIR is used as any run: lvfl predict, lvfl export, lvfl report.

Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory).
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.console import DONE, OneLineParser, ShowConsole, command, numbers_table, to_stderr
from vfl.runs.atomic import check_new_folder

if TYPE_CHECKING:
    from vfl.runs.stored_run import Run


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run of one process")
    of = "alpha=0.4, pruning.round_to=16; and where the run's data lie now, as data.tables.bank.file=bank.csv"
    parser.add_argument("settings", nargs="*", metavar="key=value", help=of)
    parser.add_argument("--out", type=Path, metavar="DIR", help="new folder (default: RUN-pruned)")


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Prune, and show before and after."""
    from vfl.config.files import parse_overrides
    from vfl.predict.prune_settings import pruned_config
    from vfl.runs.stored_run import Run

    places = [each for each in arguments.settings if each.startswith(("data.", "training.start_from="))]
    before = Run(arguments.run, places)
    settings = parse_overrides([each for each in arguments.settings if each not in places])
    pruned_config(before, settings)
    if arguments.out is not None:
        check_new_folder(arguments.out)
    before.saved_rounds()
    from vfl.predict.prune_run import prune

    show(before, prune(before, settings, run_dir=arguments.out), console)
    return DONE


def show(before: "Run", after: "Run", console: ShowConsole) -> None:
    """Show each party's costs and the test, of both runs."""
    from vfl.base.costs import amount, savings
    from vfl.base.metrics import format_metric, title

    table = numbers_table("a sample", ("party", "alpha", "MACs before", "after", "saved", "parameters before", "after"))
    for name, old in before.summary["parties"].items():
        new = after.summary["parties"][name]
        pairs = [[amount(each[key]) for each in (old, new)] for key in ("macs_per_sample", "parameters")]
        saved = f"{savings(new['macs_per_sample'], old['macs_per_sample']):.0%}"
        table.add_row(name, f"{new['alpha']:g}", *pairs[0], saved, *pairs[1])
    console.print(table)
    key = f"{before.config.data.evaluated}_metrics"
    for name, value in before.summary[key].items():
        now = after.summary[key][name]
        console.print(f"{title(name)}: {format_metric(name, value)} before, {format_metric(name, now)} after")
    console.print(f"the new run: {after.folder}")


if __name__ == "__main__":
    sys.exit(main())
