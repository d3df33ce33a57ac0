"""Train one experiment: python scripts/train.py CONFIG [key=value ...] [--run-dir DIR] [--resume].

Exit codes: 0 done, 2 bad input (one line on stderr), 130 interrupted after a checkpoint.
"""

import argparse
import sys
import warnings
from pathlib import Path

from rich.console import Console

from parties.local import build_in_process
from vfl.callbacks import Callback, EarlyStop, JsonLines, ShowProgress, TensorBoard
from vfl.checkpoint import CheckpointStore, CheckpointWriteError
from vfl.config import load_config
from vfl.loop import TrainingLoop, stop_on_signal
from vfl.run_folder import choose_run_dir, open_run, write_summary
from vfl.runtime import start_runtime
from vfl.vertical.table import summary_table


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="YAML file of the experiment, as configs/quickstart.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that differ, as training.rounds=20")
    parser.add_argument("--run-dir", type=Path, help="folder of the run (default: the next free runs/NAME)")
    parser.add_argument("--resume", action="store_true", help="continue a run from its last checkpoint")
    return parser.parse_intermixed_args()


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Build the experiment, train it and show what it saved."""
    config = load_config(arguments.config, arguments.overrides)
    for line in config.warnings():
        console.print(f"warning: {line}", highlight=False)
    run_dir = arguments.run_dir or choose_run_dir(config.name, Path("runs"), resume=arguments.resume)
    runtime = start_runtime(config)
    progress = ShowProgress(console)
    algorithm = build_in_process(config, runtime, progress.on_step)
    open_run(run_dir, config, resume=arguments.resume)
    console.print(
        f"{config.name}: run folder {run_dir}; watch it with: tensorboard --logdir {run_dir}", highlight=False
    )
    callbacks: list[Callback] = [TensorBoard(run_dir), JsonLines(run_dir / "metrics.jsonl"), progress]
    if config.training.patience is not None:
        callbacks.append(EarlyStop(config.training.patience))
    loop = TrainingLoop(
        algorithm,
        config.training.rounds,
        callbacks,
        checkpoints=CheckpointStore(run_dir / "checkpoints", keep=config.checkpoint.keep),
        checkpoint_every=config.checkpoint.every,
        evaluate_every=config.evaluation.every,
    )
    interrupted: list[str] = []

    def interrupt(signal_name: str) -> None:
        interrupted.append(signal_name)
        loop.request_stop(signal_name)
        console.print(f"{signal_name}: ending after this round and its checkpoint (again: at once)", highlight=False)

    with stop_on_signal(interrupt):
        summary = loop.run()
    if interrupted and loop.next_round < loop.rounds:
        console.print(f"interrupted after round {loop.next_round}; go on with --run-dir {run_dir} --resume")
        return 130
    write_summary(run_dir, summary)
    if loop.stop_reason:
        console.print(f"stopped early: {loop.stop_reason}")
    console.print(summary_table(summary))
    return 0


def main() -> int:
    """Run, and turn errors into one line and an exit code."""
    console = Console()
    warnings.showwarning = lambda message, *rest: console.print(f"warning: {message}", highlight=False)
    try:
        return run(parse_arguments(), console)
    except (ValueError, CheckpointWriteError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the last checkpoint stays", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
