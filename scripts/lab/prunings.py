"""Train the studies of prunings.yaml: runs of one seed share their rounds up to the first difference.

python -m scripts.lab.prunings STUDY[:METHOD,METHOD] ... --out DIR [--seeds 0,1,2]

Each run has its folder below DIR/runs; the same command goes on where it was interrupted. A row per run and round is
written to DIR/results.csv. Exit codes: 0 done, 2 bad input, 130 interrupted after a checkpoint.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.lab.studies.command import add_study_arguments, run_study, whole_numbers
from scripts.lab.studies.forks import Fork
from scripts.lab.studies.lvfl.findings import AFTER, BEFORE
from scripts.lab.studies.lvfl.plan import longest_fork
from scripts.lab.studies.page import cells
from scripts.lab.studies.runs import ACCURACY, StudyRun, load_results, results_table
from scripts.lab.studies.study import Study
from vfl.config import ConfigError
from vfl.config.files import read_yaml
from vfl.console import OneLineParser, ShowConsole, command, to_stderr
from vfl.runs.atomic import write_csv

COLUMNS = cells(ACCURACY, BEFORE, AFTER, "loss/train", "loss/test", "savings/compute", "savings/communication")


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    add_study_arguments(parser)
    parser.add_argument("studies", nargs="+", metavar="STUDY[:METHOD,METHOD]", help="of prunings.yaml, in this order")


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train the missing runs and write the rows."""
    runs = make_runs(arguments.studies, whole_numbers("--seeds", arguments.seeds))
    forks = {run.folder: longest_fork(run, runs[:place]) for place, run in enumerate(runs)}
    known: dict[str, Fork] = {folder: fork for folder, fork in forks.items() if fork}
    return run_study(arguments, runs, lambda: write_rows(runs, arguments.out), console, known)


def make_runs(asked: Sequence[str], seeds: Sequence[int]) -> list[StudyRun]:
    """Return the requested runs in order, each study seed by seed. Raises ConfigError."""
    studies = {
        name: Study.model_validate({key: values[key] for key in ("title", "config", "settings", "methods")})
        for name, values in read_yaml(Path(__file__).with_suffix(".yaml")).items()
    }
    runs: list[StudyRun] = []
    for each in asked:
        name, _, chosen = each.partition(":")
        if name not in studies:
            raise ConfigError(f"there is no study {name!r}; choose from {', '.join(studies)}")
        methods = chosen.split(",") if chosen else list(studies[name].methods)
        if unknown := set(methods) - studies[name].methods.keys():
            raise ConfigError(f"{name} has no method {min(unknown)!r}; choose from {', '.join(studies[name].methods)}")
        runs += [studies[name].run(name, method, seed, {}) for seed in seeds for method in methods]
    return runs


def write_rows(runs: Sequence[StudyRun], folder: Path) -> int:
    """Write a row per round of the finished runs; return their number."""
    results = load_results(runs, folder / "runs")
    write_csv(folder / "results.csv", results_table(results, COLUMNS))
    return len(results)


if __name__ == "__main__":
    sys.exit(main())
