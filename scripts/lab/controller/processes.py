"""The controller deadline between processes: one held to a quarter of a core, one behind 2 Mbit/s that later fall.

    python -m scripts.lab.controller.processes DIR [--plot-only] [key=value ...]

DIR is the run's folder (processes.yaml) and gets the plot processes.png. A process is held by stopping it for three
quarters of every 20 ms.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from scripts.lab.benchmarks.shaped_link import Shape, ShapedLink
from scripts.lab.studies.plots import Panel, draw_panels
from vfl.config import ExperimentConfig, load_config
from vfl.console import DONE, OneLineParser, ShowConsole, command, to_stderr
from vfl.parties.launch.local_launch import prepare, process_configs
from vfl.parties.launch.supervisor import SERVER, Supervisor, party_command
from vfl.runs.run_folder import PROCESSES, Row, check_run
from vfl.runs.stored_run import Run

CONFIG = Path(__file__).with_name("processes.yaml")
HELD, BEHIND = "party_2", "party_3"
RUNS_S, STOPPED_S = 0.005, 0.015
LINK, FALLEN = Shape(rate_bits_per_s=2e6, delay_s=0.005), Shape(rate_bits_per_s=1e6, delay_s=0.005)
FALLS = 11
"""Round in which the link's rate falls."""
LEARNING = 3
"""Rounds before which predictions do not count."""
NOTES = {HELD: " (a quarter of a core)", BEHIND: " (2 Mbit/s)"}
POLL_S = 0.05


def hold(supervisor: Supervisor, ended: threading.Event) -> None:
    """Let a party's process run for a quarter of the time, until ``ended`` is set."""

    def tell(number: signal.Signals) -> None:
        process = supervisor.running.get(HELD)
        if process is not None and process.poll() is None:
            os.kill(process.pid, number)

    while not ended.wait(RUNS_S):
        tell(signal.SIGSTOP)
        ended.wait(STOPPED_S)
        tell(signal.SIGCONT)


def let_fall(link: ShapedLink, run_dir: Path, ended: threading.Event) -> None:
    """Slow the link down after round FALLS - 1."""
    while not ended.wait(POLL_S):
        with suppress(OSError):
            if len(Run(run_dir).metrics) >= FALLS:
                link.reshape(FALLEN)
                return


@contextmanager
def beside(*works: Callable[[threading.Event], None]) -> Generator[None]:
    """Run functions in threads meanwhile; an event tells them to end."""
    ended = threading.Event()
    threads = [threading.Thread(target=work, args=(ended,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def train(config: ExperimentConfig, run_dir: Path, console: ShowConsole) -> int:
    """Train with one party held and one behind the link; return the server's exit code."""
    folder = run_dir / PROCESSES
    configs = process_configs(config, folder)
    check_run(run_dir, configs[SERVER], resume=False)
    host, _, port = configs[SERVER].network.listen.rpartition(":")
    with ShapedLink((host, int(port)), LINK) as link:
        network = configs[BEHIND].network.model_copy(update={"server": f"127.0.0.1:{link.port}"})
        configs[BEHIND] = configs[BEHIND].model_copy(update={"network": network})
        prepare(config, folder, configs)
        parties = {name: party_command("party", folder, name) for name in config.parties}
        serve = ["server", str(folder / f"{SERVER}.yaml"), "--run-dir", str(run_dir)]
        supervisor = Supervisor(serve, parties, folder, console)
        with beside(lambda ended: hold(supervisor, ended), lambda ended: let_fall(link, run_dir, ended)):
            return supervisor.run()


def tell(config: ExperimentConfig, rows: Sequence[Row], console: ShowConsole) -> None:
    """Print the slowest party's seconds of every round, and the errors of the predictions."""
    for row in rows:
        seconds = {name: row[f"exchange_s/{name}"] for name in config.parties}
        slowest = max(seconds, key=lambda name: seconds[name])
        console.print(f"round {row['round']:>2}: {seconds[slowest]:.3f} s, {slowest}")
    off = [
        abs(row[f"predicted_exchange_s/{name}"] / row[f"exchange_s/{name}"] - 1)
        for row in rows[LEARNING:]
        for name in config.parties
    ]
    console.print(
        f"predictions after {LEARNING} rounds: off by {median(off):.1%} in the median, {max(off):.0%} at most"
    )


def draw(config: ExperimentConfig, rows: Sequence[Row], path: Path) -> None:
    """Draw seconds of an exchange, predicted seconds, alpha and beta of every party over the rounds."""
    across = [row["round"] for row in rows]
    limit_s = config.lightweighting.seconds_per_exchange
    assert isinstance(limit_s, float)

    def curves(quantity: str) -> dict[str, list[tuple[list[float], list[float]]]]:
        every = {name: [row.get(f"{quantity}/{name}", float("nan")) for row in rows] for name in config.parties}
        return {f"{name}{NOTES.get(name, '')}": [(across, values)] for name, values in every.items()}

    deadline = {"deadline": [(across, [limit_s] * len(rows))]}
    panels = [
        Panel(title, "round", title, curves(tag) | more, marks=(FALLS,), mark_label="the link falls to 1 Mbit/s")
        for title, tag, more in (
            ("seconds of an exchange", "exchange_s", deadline),
            ("predicted seconds", "predicted_exchange_s", deadline),
            ("alpha", "alpha", {}),
            ("beta", "beta", {}),
        )
    ]
    draw_panels(panels, path)


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="of the run and the plot")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that differ")
    parser.add_argument("--plot-only", action="store_true", help="train nothing")


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train, unless only the plot is requested, and draw."""
    config = load_config(CONFIG, arguments.overrides)
    if not arguments.plot_only and (code := train(config, arguments.folder, console)) != DONE:
        return code
    rows = Run(arguments.folder).metrics
    tell(config, rows, console)
    draw(config, rows, arguments.folder / "processes.png")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
