"""Take part in a training: lvfl party CONFIG --party NAME [key=value ...] [--run-dir DIR].

It dials network.server (only the server listens), trains on data.file as the server's messages say, and keeps its
checkpoints in its own folder. Started again after a crash with the same command, it continues where all parties are.
The same command answers lvfl predict --listen with the trained model. Under torchrun its processes share every batch.

Exit codes: 0 done, 2 bad input or refused by the server (one line on stderr), 3 the server or another party is lost,
75 what may succeed later (disk, memory, port), 130 interrupted after a checkpoint. What ends the server ends its
parties, with the same code.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from rich.console import Console

from vfl.console import DONE, TEXT, OneLineParser, command


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_party()
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help="samples to predict instead of the test samples; for tables the owner's new rows",
    )
    parser.add_argument(
        "--accept", action="store_true", help="agree to the server's terms where they differ from CONFIG"
    )
    parser.add_log(TEXT)
    parser.add_argument(
        "--serve", action="store_true", help="answer lvfl serve for the rows of data.tables.NAME.serve, train nothing"
    )


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Take part until the server says goodbye."""
    from vfl.data.experiments import load_user_config

    config = load_user_config(arguments.config, arguments.overrides)
    from vfl.parties.network.party.party_process import check_team, follow_party, run_party
    from vfl.runs.torchrun_group import Workers, join_workers

    run_dir = arguments.run_dir or Path("runs") / f"{config.name}-{arguments.party}"
    if arguments.serve:
        from vfl.parties.serving.serving_party import serve_party

        goodbye = serve_party(config, arguments.party, run_dir, insecure=arguments.insecure, console=console)
        console.print(goodbye.reason)
        return goodbye.exit_code
    workers = join_workers(config, partial(check_team, arguments.party))
    if isinstance(workers, Workers) and workers.rank > 0:
        follow_party(config, arguments.party, run_dir, arguments.samples, workers)
        return DONE
    goodbye = run_party(
        config,
        arguments.party,
        run_dir,
        insecure=arguments.insecure,
        console=console,
        samples=arguments.samples,
        accept=arguments.accept,
        workers=workers,
    )
    console.print(goodbye.reason)
    return goodbye.exit_code


if __name__ == "__main__":
    sys.exit(main())
