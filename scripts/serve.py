"""Serve scores by key with a trained model, while the owners are at work: lvfl serve RUN [key=value ...].

RUN is the server's folder of a training by processes. Every owner starts lvfl party CONFIG --party NAME --serve, with
data.tables.NAME.serve, the table of its rows to be scored. Then:

  curl -X POST http://127.0.0.1:8080/v1/predict -H 'Content-Type: application/json' -d '{"keys": ["42"]}'

http://127.0.0.1:8080/docs shows the whole interface. SIGHUP takes the run's last checkpoint. Needs the extra serve:
pip install "lvfl[serve]".

Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory, port), 130 interrupted.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from vfl.console import DONE, TEXT, OneLineParser, command


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the server's folder of a training by processes")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings of this service, such as serving.listen"
    )
    parser.add_log(TEXT)
    parser.add_argument("--insecure", action="store_true", help="parties by plaintext; only on loopback")


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Serve until a signal ends it."""
    missing = [name for name in ("fastapi", "uvicorn", "httptools", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise ValueError(f'{missing[0]} is missing; pip install "lvfl[serve]"')
    from vfl.config.files import load_stored_config, vertical
    from vfl.runs.run_folder import PROCESSES, run_to_serve
    from vfl.runs.stored_run import Run

    stored = Run(arguments.run)
    run_to_serve(stored.folder)
    # Processes of this machine get a new address, all of them, each time that they are asked.
    together = stored.folder / PROCESSES / "server.yaml"
    file = together if together.exists() else stored.folder / "config.yaml"
    config = vertical(load_stored_config(file, arguments.overrides))
    stored.saved_rounds()
    from vfl.parties.serving.score_server import serve_scores

    serve_scores(arguments.run, config, insecure=arguments.insecure, console=console)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
