"""Show how a run stands: lvfl status RUN [--json]; check a file before a start: lvfl status CONFIG [--party NAME].

RUN is the folder of a run, at the server or of lvfl train, or a party's own folder: rounds done, test metrics, who is
connected or lost and was last seen when, bytes, and whether it runs or how it has ended. It changes nothing.

CONFIG is a server's file. It takes the arguments of lvfl server, and checks the configuration, the data, the keys with
their dates, the folder, the disk, the port and the clock. Nothing is started.

With --party it takes the arguments of lvfl party, on that party's machine. It looks at the configuration, the data, the
keys and the folder, then dials the server as the party would: it tells a closed port, a refused, expired or wrongly
named certificate, another version and differing settings or data apart, and says how to mend each. It does not join, so
it may be run during a training.

Exit codes: 0 done, or nothing keeps the process out, 2 bad input or something to be mended, 3 the
server is not there (yet), 75 what may succeed later (disk, memory, port).
"""

import argparse
import json
import sys
from pathlib import Path

from vfl.console import BAD_INPUT, DONE, LOST, TRY_LATER, OneLineParser, ShowConsole, command


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN|CONFIG", help="a run's or a party's folder; or a file to check")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="with CONFIG: settings to override")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--party", metavar="NAME", help="check whether this party can join")
    parser.add_run_dir("with CONFIG: its folder (default: runs/NAME, of a party runs/NAME-PARTY)")
    parser.add_argument("--insecure", action="store_true", help="with CONFIG: plaintext; only on loopback")


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Print the status, or the checks of a file."""
    if arguments.party or is_server_file(arguments):
        if arguments.json:
            raise ValueError("--json: goes with RUN; the checks of a file are lines")
        return examine_file(arguments, console)
    if arguments.overrides or arguments.run_dir or arguments.insecure:
        raise ValueError("--party: is missing; settings, --run-dir and --insecure go with it, or with a server's file")
    from vfl.parties.network.status import lines_of, status_of

    status = status_of(arguments.run)
    console.print(json.dumps(status, indent=1) if arguments.json else "\n".join(lines_of(status)))
    return DONE


def is_server_file(arguments: argparse.Namespace) -> bool:
    """Return whether CONFIG is one of a process: it names a file of its own, or a table. Raises ConfigError."""
    from vfl.data.experiments import load_user_config

    if not arguments.run.is_file() or arguments.run.suffix not in (".yaml", ".yml"):
        return False
    data = load_user_config(arguments.run, arguments.overrides).data
    return data.file is not None or bool(data.tables)


def examine_file(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Show the result of every check as soon as it is known, and return who must act as an exit code."""
    from vfl.data.experiments import load_user_config

    config, party = load_user_config(arguments.run, arguments.overrides), arguments.party
    if party:
        from vfl.parties.launch.doctor import examine

        run_dir = arguments.run_dir or Path("runs") / f"{config.name}-{party}"
        checks, later = examine(config, party, run_dir, insecure=arguments.insecure), LOST
    else:
        from vfl.parties.launch.doctor import examine_server
        from vfl.runs.run_folder import find_run_dir

        run_dir = find_run_dir(config, arguments.run, arguments.run_dir, resume=True)
        checks, later = examine_server(config, arguments.run, run_dir, insecure=arguments.insecure), TRY_LATER
    code = DONE
    for check in checks:
        state = "ok" if check.good else "waits" if check.may_pass else "WRONG"
        console.print(f"{check.name:<10}  {state:<5}  {check.text}")
        if not check.good and code != BAD_INPUT:
            code = later if check.may_pass else BAD_INPUT
    return code


if __name__ == "__main__":
    sys.exit(main())
