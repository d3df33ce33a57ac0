"""Train a served run on, and serve the new model if it is as good: lvfl update RUN training.rounds=12 [key=value ...].

RUN is a run of lvfl train --processes, which lvfl serve may be serving meanwhile. It is trained on in a copy, RUN-next.
If the copy's test metric is not worse than the served model's by over --points, its checkpoints are put into RUN, and
Then it calls lvfl serve at serving.listen. Killed at any instant, RUN is served as it was; the same command goes on.

The model before stays in RUN. To go back to it, move the server's newest checkpoint away, and send lvfl serve a SIGHUP.

Exit codes: 0 done, 2 bad input or a model that is worse (one line on stderr), 3 a party lost, 75 what may succeed later
(disk, memory, port), 130 interrupted: the same command goes on.
"""

import argparse
import sys
from pathlib import Path

from vfl.console import DONE, OneLineParser, ShowConsole, command, to_stderr


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run of lvfl train --processes")
    of = "training.rounds, and settings of the service: serving.listen, serving.token, serving.certificate"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=of)
    lost = "percentage points of the test metric (of an error: percent of it) that may be lost (default: 0)"
    parser.add_argument("--points", type=float, default=0.0, metavar="P", help=lost)


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train on, judge, swap, tell."""
    from vfl.config.files import load_stored_config, vertical
    from vfl.runs.run_folder import run_to_serve
    from vfl.runs.stored_run import Run

    run = Run(arguments.run)
    run_to_serve(run.folder)
    serving = vertical(load_stored_config(run.folder / "config.yaml", arguments.overrides)).serving
    run.saved_rounds()
    from vfl.parties.launch.update import tell_service, update

    settings = [each for each in arguments.overrides if not each.startswith("serving.")]
    if code := update(run, settings, arguments.points, console):
        return code
    console.print(tell_service(serving))
    newest = run.checkpoints.directory / f"round_{run.saved_rounds()[-1]:06d}"
    console.print(f"to go back: move {newest} away, and send lvfl serve a SIGHUP")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
