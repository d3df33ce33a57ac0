"""Train one experiment: lvfl train CONFIG [key=value ...] [--run-dir DIR] [--resume] [--processes].

A run's folder instead of CONFIG continues it: lvfl train --resume RUN [training.rounds=20].

Horizontal experiments can share their clients: torchrun --nproc-per-node 2 -m vfl train CONFIG ...

Exit codes: 0 done, 2 bad input (one line on stderr), 3 a party process stayed away, 75 what may succeed later (disk,
memory, port), 130 interrupted after a checkpoint.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from vfl.console import OneLineParser, command


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_experiment("training.rounds=20")
    parser.add_run_dir()
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue a run from its last checkpoint; rounds, patience and cadences may change",
    )
    parser.add_argument(
        "--processes", action="store_true", help="a process for the server and each party, over TLS on this machine"
    )


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Build the experiment, train it and show what it saved."""
    from vfl.config import ConfigError, load_config
    from vfl.config.shipped import check_resumed

    if arguments.resume and (wrong := [each for each in arguments.overrides if "=" not in each]):
        raise ConfigError(f"--resume: takes no folder; name it instead of CONFIG: lvfl train --resume {wrong[0]}")
    if arguments.resume:
        check_resumed(arguments.config)
    config = load_config(arguments.config, arguments.overrides)
    from vfl.runs.mode import mode_of
    from vfl.runs.run import run_experiment, show_outcome
    from vfl.runs.run_folder import find_run_dir
    from vfl.runs.torchrun_group import join_workers

    workers = join_workers(config, mode_of(config).check_workers)
    run_dir = find_run_dir(config, arguments.config, arguments.run_dir, resume=arguments.resume)
    run_dir = Path(workers.from_first(str(run_dir)))  # the others may find it begun
    if arguments.resume and not (run_dir / "config.yaml").exists():
        console.print(f"warning: --resume: nothing is saved in {run_dir}; a new run begins")
    from_processes = arguments.config.is_dir() and (run_dir / "processes").is_dir()
    if arguments.processes or from_processes:
        from vfl.parties.launch.local_launch import run_together

        return run_together(config, run_dir, resume=arguments.resume, console=console)
    for line in config.warnings():
        console.print(f"warning: {line}")
    outcome = run_experiment(config, run_dir, resume=arguments.resume, console=console, workers=workers)
    workers.leave()
    return show_outcome(outcome, config, run_dir, console)


if __name__ == "__main__":
    sys.exit(main())
