"""Train one experiment: lvfl train CONFIG [key=value ...] [--run-dir DIR] [--resume] [--processes], or
lvfl train --table bank=bank.yaml --table insurer=insurer.yaml [key=value ...], each as lvfl describe writes it.

A run's folder instead of CONFIG continues it: lvfl train --resume RUN [training.rounds=20].

Experiments with clients can share them: torchrun --nproc-per-node 2 -m vfl train CONFIG ...

Exit codes: 0 done, 2 bad input (one line on stderr), 3 a party process stayed away, 75 what may succeed later (disk,
memory, port), 130 interrupted after a checkpoint.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from vfl.console import OneLineParser, command

if TYPE_CHECKING:
    from vfl.config import Experiment


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    of = "YAML file, or name of a shipped experiment (not with --table), and settings, such as training.rounds=20"
    parser.add_argument("settings", nargs="*", metavar="CONFIG key=value", help=of)
    parser.add_tables()
    parser.add_run_dir()
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue a run from its last checkpoint; rounds, patience and cadences may change",
    )
    parser.add_argument(
        "--processes", action="store_true", help="a process for the server and each party, over TLS on this machine"
    )


def read_experiment(arguments: argparse.Namespace) -> "Experiment":
    """Return the experiment of CONFIG, or of the tables. Raises ConfigError, one line, for anything else."""
    from vfl.config import ConfigError
    from vfl.config.files import parse_overrides
    from vfl.config.shipped import check_resumed
    from vfl.data.experiments import load_user_experiment

    settings: list[str] = arguments.settings
    if arguments.table:
        if arguments.resume:
            raise ConfigError("--resume: goes without --table; name the run's folder: lvfl train --resume RUN")
        from vfl.data.tables.fitting import experiment_of_arguments

        return experiment_of_arguments(arguments)
    if arguments.label or arguments.key:
        raise ConfigError("--label, --key: go with --table")
    if not settings:
        raise ConfigError("CONFIG: is missing; name a YAML file, or --table OWNER=FILE for each owner")
    if arguments.resume and (wrong := [each for each in settings[1:] if "=" not in each]):
        raise ConfigError(f"--resume: takes no folder; name it instead of CONFIG: lvfl train --resume {wrong[0]}")
    if arguments.resume:
        check_resumed(Path(settings[0]))
    return load_user_experiment(Path(settings[0]), parse_overrides(settings[1:]))


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Build the experiment, train it and show what it saved."""
    config = read_experiment(arguments)
    named = None if arguments.table else Path(arguments.settings[0])
    from vfl.runs.mode import mode_of
    from vfl.runs.run import run_experiment, show_outcome
    from vfl.runs.run_folder import find_run_dir
    from vfl.runs.torchrun_group import join_workers

    workers = join_workers(config, mode_of(config).check_workers)
    run_dir = find_run_dir(config, named, arguments.run_dir, resume=arguments.resume)
    run_dir = Path(workers.from_first(str(run_dir)))  # the others may find it begun
    if arguments.resume and not (run_dir / "config.yaml").exists():
        console.print(f"warning: --resume: nothing is saved in {run_dir}; a new run begins")
    from_processes = named is not None and named.is_dir() and (run_dir / "processes").is_dir()
    if arguments.processes or from_processes:
        from vfl.config import vertical
        from vfl.parties.launch.local_launch import run_together

        return run_together(vertical(config), run_dir, resume=arguments.resume, console=console)
    for line in config.warnings():
        console.print(f"warning: {line}")
    outcome = run_experiment(config, run_dir, resume=arguments.resume, console=console, workers=workers)
    workers.leave()
    return show_outcome(outcome, config, run_dir, console)


if __name__ == "__main__":
    sys.exit(main())
