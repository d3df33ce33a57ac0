"""Reproduce Fig. 2 and 3 of the LVFL paper: train every run once, draw the figures, write the report.

lvfl paper-lvfl [CONFIG] [key=value ...] --out DIR [--seeds 0,1,2] [--figures 2,3a,3b] [--rounds R]

The dynamic ratios of Fig. 2 are the configuration's lightweighting.alpha and .beta. Each run has its folder below
DIR/runs; the same command goes on where it was interrupted, and with --plots-only draws what is finished.
Exit codes: 0 done, 2 bad input (one line on stderr), 130 interrupted after a checkpoint.
"""

import argparse
import shlex
import sys
from pathlib import Path

from vfl.cli import DONE, INTERRUPTED, OneLineParser, ShowConsole, exit_code, whole_numbers
from vfl.config import ConfigError, load_config
from vfl.errors import Diverged
from vfl.shipped import shipped_folder
from vfl.studies.lvfl.output import Output
from vfl.studies.lvfl.plan import make_plan, parse_figures, scale_rounds
from vfl.studies.lvfl.report import describe_schedules
from vfl.studies.runner import train_missing
from vfl.studies.runs import StudyResult, StudyRun

DEFAULT_CONFIG = shipped_folder() / "cifar10_quadrants.yaml"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "settings", nargs="*", metavar="CONFIG | key=value", help="YAML file (default: the paper's), and what differs"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the runs and the report")
    parser.add_argument("--seeds", help="as 0,1,2 (default: 0); a seed is finished before the next begins")
    parser.add_argument("--figures", help="of 2,3a,3b (default: all)")
    parser.add_argument("--rounds", type=int, help="train so many rounds, and move all schedules in proportion")
    parser.add_argument("--data-note", help="what the report says about the data")
    parser.add_argument("--plots-only", action="store_true", help="train nothing; settings are those of the last call")
    return parser.parse_intermixed_args()


def plots_only(arguments: argparse.Namespace) -> int:
    """Draw what is finished, with the settings under which it was trained unless others are given."""
    if arguments.settings or arguments.rounds is not None:
        raise ConfigError("--plots-only: takes its settings and rounds from --out; leave them out")
    output = Output(arguments.out)
    base, about = output.read()
    seeds = whole_numbers("--seeds", arguments.seeds) if arguments.seeds else about.seeds
    figures = parse_figures(arguments.figures) if arguments.figures else about.figures
    note = about.data_note if arguments.data_note is None else arguments.data_note
    written = output.write_results(make_plan(base, figures, seeds), about.with_note(note))
    print(f"{written} finished runs: {arguments.out / 'README.md'}")
    return DONE


def train(arguments: argparse.Namespace) -> int:
    """Train what is missing and write the results after every seed."""
    files = [text for text in arguments.settings if "=" not in text]
    if len(files) > 1:
        raise ConfigError(f"one configuration, not {len(files)} ({', '.join(files)}); overrides are key=value")
    overrides = [text for text in arguments.settings if "=" in text]
    base = load_config(Path(files[0]) if files else DEFAULT_CONFIG, overrides)
    for line in base.warnings():
        print(f"warning: {line}", file=sys.stderr)
    scaled_from = None
    if arguments.rounds is not None:
        scaled_from, base = base.training.rounds, scale_rounds(base, arguments.rounds)
    plan = make_plan(
        base, parse_figures(arguments.figures or "2,3a,3b"), whole_numbers("--seeds", arguments.seeds or "0")
    )
    output = Output(arguments.out)
    command = shlex.join(["python", "scripts/paper_lvfl.py", *sys.argv[1:]])
    about = output.start_session(plan, command, arguments.data_note, scaled_from)
    print(f"{len(plan.runs)} runs; {describe_schedules(plan, scaled_from)}", flush=True)

    def show(run: StudyRun, result: StudyResult) -> None:
        position = plan.runs.index(run)
        print(
            f"{position + 1}/{len(plan.runs)} {run.method} seed {run.seed}: test accuracy "
            f"{result.accuracy:.2%}, compute saved {result.macs_saved:.1%}, communication saved "
            f"{result.bytes_saved:.1%}, {result.summary['wall_time_s']:.0f} s",
            flush=True,
        )
        if position + 1 == len(plan.runs) or plan.runs[position + 1].seed != result.seed:
            output.write_results(plan, about)

    def show_diverged(run: StudyRun, error: Diverged) -> None:
        print(f"diverged: {run.folder}: {error}", flush=True)

    console = ShowConsole(stderr=True, quiet=not sys.stderr.isatty())
    signal_name = train_missing(plan.runs, output.runs, console, show, show_diverged, plan.forks)
    if signal_name:
        print(f"{signal_name}: the same command goes on; --plots-only --out {arguments.out} draws what is finished")
        return INTERRUPTED
    output.write_results(plan, about)
    print(f"done: {arguments.out / 'README.md'}")
    return DONE


def main() -> int:
    """Run, and turn errors into one line and an exit code."""
    arguments = parse_arguments()
    return exit_code(
        lambda: plots_only(arguments) if arguments.plots_only else train(arguments),
        warn=lambda line: print(line, file=sys.stderr),
    )


if __name__ == "__main__":
    sys.exit(main())
