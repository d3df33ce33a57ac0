"""Train many runs of one experiment: lvfl sweep SWEEP [key=value ...] [--jobs N] [--on ray] [--out DIR].

The same command continues where it was interrupted or killed. DIR/sweep.csv has a line per run; TensorBoard's page
"HParams" of DIR compares them; lvfl report DIR draws them.
Exit codes: 0 done, 2 bad input or a run that failed (one line on stderr), 75 what may succeed later (disk, memory),
130 interrupted after checkpoints.
"""

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.console import BAD_INPUT, DONE, TRY_LATER, OneLineParser, ShowConsole, add_executor_options, command

if TYPE_CHECKING:
    from vfl.sweeps.executor import AnyExecutor, Resources


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "sweep", type=Path, metavar="SWEEP", help="YAML file or shipped sweep, such as sweep_quickstart"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings to override in all runs")
    add_executor_options(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the sweep (default: runs/NAME)")
    parser.add_argument(
        "--keep-checkpoints", action="store_true", help="keep those of finished runs, for lvfl predict and lvfl export"
    )
    parser.add_argument("--shard", help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true", help="train nothing; list the runs and the minutes left")


def open_executor(arguments: argparse.Namespace, resources: "Resources") -> "AbstractContextManager[AnyExecutor]":
    """Return the executor that ``--on`` and ``--jobs`` choose. Raises ConfigError for impossible options."""
    from vfl.base.errors import ConfigError
    from vfl.sweeps.pool import LocalProcesses

    engine, _, address = arguments.on.partition("=")
    if arguments.on == "local":
        return nullcontext(LocalProcesses(arguments.jobs or 1, resources))
    if engine != "ray" or arguments.on == "ray=":
        raise ConfigError(f"--on: {arguments.on!r} is no place for runs; choose local, ray or ray=HOST:PORT")
    from vfl.sweeps.on_ray import on_ray  # an extra: only who asks for it needs it

    return on_ray(address or None, arguments.jobs, resources)


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train the sweep."""
    from vfl.config import ConfigError
    from vfl.sweeps.sweep_plan import load_sweep

    if arguments.shard is not None:
        raise ConfigError("--shard: removed in 0.2.0; --on ray trains on many machines")
    sweep = load_sweep(arguments.sweep, arguments.overrides)
    from vfl.runs.atomic import follow_links
    from vfl.sweeps.sweep import foresee, train_sweep
    from vfl.sweeps.sweep_view import names

    folder = follow_links(arguments.out) if arguments.out else Path("runs") / sweep.name
    with open_executor(arguments, sweep.resources) as executor:
        if arguments.dry_run:
            for line in foresee(sweep, folder, executor):
                console.print(line)
            return DONE
        keep = arguments.keep_checkpoints
        state = train_sweep(sweep, folder, executor, console, keep_checkpoints=keep)
    console.print(f"{len(state.summaries)} of {len(state.runs)} runs finished: {folder / 'sweep.csv'}")
    if state.failures:
        print(f"error: failed: {names(list(state.failures))}; see {folder / 'sweep.csv'}", file=sys.stderr)
        return TRY_LATER if state.may_pass else BAD_INPUT
    return DONE


if __name__ == "__main__":
    sys.exit(main())
