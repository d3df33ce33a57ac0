"""Train many runs of one experiment: lvfl sweep SWEEP [key=value ...] [--jobs N] [--out DIR].

The same command goes on where it was interrupted or killed. DIR/sweep.csv has a line per run; TensorBoard's page
"HParams" of DIR compares them; lvfl report DIR draws them.
Exit codes: 0 done, 2 bad input or a run that failed (one line on stderr), 130 interrupted after checkpoints.
"""

import argparse
import sys
from pathlib import Path

from vfl.cli import BAD_INPUT, DONE, OneLineParser, ShowConsole, command


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(__doc__)
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="YAML file, or a shipped one, as sweep_quickstart")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of all runs that differ")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at once; they share the threads")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the sweep (default: runs/NAME)")
    parser.add_argument(
        "--keep-checkpoints", action="store_true", help="of finished runs as well, for lvfl predict and lvfl export"
    )
    parser.add_argument(
        "--shard", default="1/1", metavar="I/N", help="train the I-th of N parts: for several hosts that share DIR"
    )
    parser.add_argument("--dry-run", action="store_true", help="train nothing; tell the runs, and the minutes left")
    return parser.parse_intermixed_args()


@command(parse_arguments)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train the sweep."""
    from vfl.config import ConfigError
    from vfl.experiments.sweep import foresee, parse_shard, train_sweep
    from vfl.experiments.sweep_plan import load_sweep
    from vfl.experiments.sweep_view import names

    if arguments.jobs < 1:
        raise ConfigError(f"--jobs: {arguments.jobs} runs at once train nothing; give at least 1")
    shard = parse_shard(arguments.shard)
    sweep = load_sweep(arguments.sweep, arguments.overrides)
    folder = arguments.out or Path("runs") / sweep.name
    if arguments.dry_run:
        for line in foresee(sweep, folder, arguments.jobs):
            console.print(line)
        return DONE
    state = train_sweep(
        sweep, folder, arguments.jobs, console, keep_checkpoints=arguments.keep_checkpoints, shard=shard
    )
    console.print(f"{len(state.summaries)} of {len(state.runs)} runs finished: {folder / 'sweep.csv'}")
    if state.failures:
        print(f"error: failed: {names(list(state.failures))}; see {folder / 'sweep.csv'}", file=sys.stderr)
        return BAD_INPUT
    return DONE


if __name__ == "__main__":
    sys.exit(main())
