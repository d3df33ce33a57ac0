"""Find out why a party cannot join: lvfl doctor CONFIG --party NAME [key=value ...] [--run-dir DIR].

Run it on the party's machine with the arguments of lvfl party. It looks at the configuration, the data, the keys
and the folder, then dials the server as the party would: it tells a closed port, a refused, expired or wrongly named
certificate, another version and differing settings or data apart, and says how to mend each. It changes nothing and
does not join, so it may be run during a training.

Exit codes: 0 the party would be let in, 2 something is to be mended, 3 the server is not there (yet).
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from vfl.console import BAD_INPUT, DONE, LOST, OneLineParser, command


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_party()


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Show the result of every check as soon as it is known."""
    from vfl.config import load_config
    from vfl.parties.launch.doctor import examine

    config = load_config(arguments.config, arguments.overrides)
    run_dir = arguments.run_dir or Path("runs") / f"{config.name}-{arguments.party}"
    code = DONE
    for check in examine(config, arguments.party, run_dir, insecure=arguments.insecure):
        state = "ok" if check.good else "waits" if check.may_pass else "WRONG"
        console.print(f"{check.name:<10}  {state:<5}  {check.text}")
        if not check.good and code != BAD_INPUT:
            code = LOST if check.may_pass else BAD_INPUT
    return code


if __name__ == "__main__":
    sys.exit(main())
