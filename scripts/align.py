"""Match the keys of several owners' tables in private: lvfl align CONFIG [--party NAME | --processes] [key=value ...].

With --rows, new rows to be scored take the place of the tables: every side gives the option, an owner with its FILE.
The result is FILE.match, which lvfl predict --listen --table FILE and lvfl party --samples FILE read.

Neither the owners nor the server see each other's keys (docs/internals/matching.md says who learns what). The server
listens (without --party), each owner dials it (--party NAME, with its own table in data.tables). Each owner's result is
the file named by data.tables.NAME.match, which training reads; data.join says which samples stay. After a crash, start
the same command again: an unfinished match begins again, a finished one stays.

Exit codes: 0 done, 2 bad input or refused (one line on stderr), 3 somebody stayed away, 75 what may succeed later
(disk, memory, port), 130 interrupted.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from vfl.console import DONE, PLAIN, OneLineParser, command

SERVER_ROWS = Path()
"""``--rows`` without a file, as the server has it."""


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_experiment("data.join=left", "YAML file with data.tables and network")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--party", metavar="NAME", help="which owner this is (default: the server)")
    who.add_argument("--processes", action="store_true", help="the server and all owners, over TLS on this machine")
    parser.add_argument(
        "--rows", nargs="?", const=SERVER_ROWS, type=Path, metavar="FILE", help="match new rows; FILE: this owner's"
    )
    parser.add_run_dir("folder of logs (default: runs/NAME-align, runs/NAME-align-PARTY)")
    parser.add_argument("--insecure", action="store_true", help="plaintext; only on loopback")
    parser.add_log(PLAIN)


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Take the side that the arguments name."""
    from vfl.data.experiments import load_user_config

    config = load_user_config(arguments.config, arguments.overrides)
    from vfl.parties.matching.processes import describe_to_server, for_rows, match_owner, match_together, serve_match

    rows = arguments.rows is not None
    if rows:
        check_rows(arguments)
        config = for_rows(config, arguments.party, arguments.rows)
    of_party = f"-{arguments.party}" if arguments.party else ""
    run_dir = arguments.run_dir or Path("runs") / f"{config.name}-align{of_party}"
    if arguments.processes:
        if arguments.insecure:
            console.print("warning: --insecure: ignored; --processes make keys of their own")
        return match_together(config, run_dir, console)
    if arguments.party:
        goodbye = match_owner(config, arguments.party, run_dir, rows=rows, insecure=arguments.insecure, console=console)
        console.print(goodbye.reason)
        return goodbye.exit_code
    outcome = serve_match(config, run_dir, rows=rows, insecure=arguments.insecure, console=console)
    console.print(describe_to_server(outcome))
    return DONE


def check_rows(arguments: argparse.Namespace) -> None:
    """Raise ValueError unless ``--rows`` has a file exactly at an owner."""
    if arguments.processes:
        raise ValueError("--rows: goes without --processes; one machine with all rows joins them: lvfl predict --table")
    if arguments.party and arguments.rows == SERVER_ROWS:
        raise ValueError(f"--rows: name the table of {arguments.party}'s new rows")
    if not arguments.party and arguments.rows != SERVER_ROWS:
        raise ValueError(f"--rows: the server reads no rows; leave {arguments.rows} out")


if __name__ == "__main__":
    sys.exit(main())
