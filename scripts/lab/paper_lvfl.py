"""Reproduce Fig. 2 and 3 of the LVFL paper: train every run once, draw the figures, write the page.

python -m scripts.lab.paper_lvfl [CONFIG] [key=value ...] --out DIR [--seeds 0,1,2] [--figures 2,3a,3b] [--rounds R]
    [--ends 3a=R,3b=R]

The dynamic ratios of Fig. 2 are the configuration's lightweighting.alpha and .beta. Each run has its folder below
DIR/runs; the same command goes on where it was interrupted, and with --plots-only draws what is finished.
Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory), 130 interrupted after a
checkpoint.
"""

import argparse
import sys
from pathlib import Path

from scripts.lab.studies.command import add_study_arguments, run_study, whole_numbers
from scripts.lab.studies.lvfl.page import write_results
from scripts.lab.studies.lvfl.plan import make_plan, parse_ends, parse_figures, scale_rounds
from vfl.config import ConfigError, ExperimentConfig, load_config
from vfl.config.shipped import shipped_folder
from vfl.console import OneLineParser, ShowConsole, command, to_stderr

DEFAULT_CONFIG = shipped_folder() / "cifar10_quadrants.yaml"


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    add_study_arguments(parser)
    parser.add_argument(
        "settings", nargs="*", metavar="CONFIG | key=value", help="YAML file (default: the paper's), then overrides"
    )
    parser.add_argument("--figures", default="2,3a,3b", help="of 2,3a,3b (default: all)")
    parser.add_argument("--rounds", type=int, help="number of rounds; moves all schedules in proportion")
    parser.add_argument("--ends", default="", help="rounds of a figure's own runs, where fewer, as 3a=52,3b=41")


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train the missing runs and write the results."""
    base = load_base(arguments.settings)
    for line in base.warnings():
        to_stderr(f"warning: {line}")
    if arguments.rounds is not None:
        base = scale_rounds(base, arguments.rounds)
    figures, seeds = parse_figures(arguments.figures), whole_numbers("--seeds", arguments.seeds)
    plan = make_plan(base, figures, seeds, parse_ends(arguments.ends))
    return run_study(arguments, plan.runs, lambda: write_results(plan, arguments.out), console, plan.forks)


def load_base(settings: list[str]) -> ExperimentConfig:
    """Return the experiment. Raises ConfigError for more than one file."""
    files = [text for text in settings if "=" not in text]
    if len(files) > 1:
        raise ConfigError(f"one configuration, not {len(files)} ({', '.join(files)}); overrides are key=value")
    return load_config(Path(files[0]) if files else DEFAULT_CONFIG, [text for text in settings if "=" in text])


if __name__ == "__main__":
    sys.exit(main())
