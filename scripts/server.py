"""Serve a training to party processes: lvfl server CONFIG [key=value ...] [--run-dir DIR] [--resume].

It listens at network.listen, waits for every party of data.partition, and trains. A party that is lost is waited
for (network.on_party_loss); then the training continues from the last round that all have saved.

Exit codes: 0 done, 2 bad input (one line on stderr), 3 a party stayed away, 75 what may succeed later (disk, memory,
port), 130 interrupted after a checkpoint.
"""

import argparse
import sys

from rich.console import Console

from vfl.console import TEXT, OneLineParser, command


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_experiment("training.rounds=20", "YAML file of the experiment, with data.file and network")
    parser.add_run_dir()
    parser.add_argument("--resume", action="store_true", help="continue a run from its last checkpoint")
    parser.add_argument("--insecure", action="store_true", help="plaintext; only where network.listen is loopback")
    parser.add_log(TEXT)


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Serve the experiment and show what it saved."""
    from vfl.data.experiments import load_user_config

    config = load_user_config(arguments.config, arguments.overrides)
    from vfl.parties.network.server.server_process import run_server
    from vfl.runs.run import show_outcome
    from vfl.runs.run_folder import find_run_dir

    for line in config.warnings():
        console.print(f"warning: {line}")
    run_dir = find_run_dir(config, arguments.config, arguments.run_dir, resume=arguments.resume)
    outcome = run_server(config, run_dir, resume=arguments.resume, insecure=arguments.insecure, console=console)
    return show_outcome(outcome, config, run_dir, console)


if __name__ == "__main__":
    sys.exit(main())
