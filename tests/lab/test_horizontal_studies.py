"""The comparison of the horizontal algorithms: its runs, its numbers, what its page says."""

import argparse
import runpy
import signal
import sys
import warnings
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import pytest

from scripts.lab.studies import command
from scripts.lab.studies.comparison import told_of
from scripts.lab.studies.page import spread
from scripts.lab.studies.runs import ACCURACY, StudyResult, results_table
from scripts.lab.studies.study import horizontal_studies, make_runs
from vfl.config import ConfigError
from vfl.runs.results import CLOCK

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
STUDIES = horizontal_studies()
SUMMARY = {"uplink_bytes": 3_000_000, "downlink_bytes": 1_000_000, "train_macs": 5_000_000}


def result(method: str, seed: int, accuracy: list[float], second_s: float = 1.0, study: str = "case1") -> StudyResult:
    rows = tuple(
        {"round": float(index), ACCURACY: value, CLOCK: second_s * (index + 1)} for index, value in enumerate(accuracy)
    )
    return StudyResult(rows, SUMMARY, study, method, seed)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_configured_without_a_warning(name: str):
    runs = make_runs([name], [0, 1], ["data.dataset.kind=digits"], 7)
    assert len({run.folder for run in runs}) == len(runs) == 2 * len(STUDIES[name].methods)
    assert {run.config.training.rounds for run in runs} == {7}
    assert {run.config.seed for run in runs} == {0, 1}
    # whose settings replace those of the configuration
    other_work = ("fedsgd", "fedavg_waiting", "fedavg_one_pass", "fedasync")
    lines = {line for run in runs if run.method not in other_work for line in run.config.warnings()}
    assert lines == set()


def test_a_study_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="--studies: there is no 'case9'; choose from heterogeneity, case1"):
        make_runs(["case9"], [0], [], None)


def test_targets_are_first_reached_in_rounds_and_simulated_seconds():
    own = result("dms", 0, [0.2, 0.5, 0.4, 0.6], second_s=4.0)
    assert (own.rounds_to(0.5), own.seconds_to(0.5)) == (2, 8.0)
    assert (own.rounds_to(0.7), own.seconds_to(0.7)) == (None, None)
    assert own.best == 0.6
    assert own.last == 0.6


def test_a_mean_says_how_many_seeds_it_is_of():
    form = "{:.0f}".format
    assert spread([10.0, 14.0, 12.0], form) == "12 ± 2"
    assert spread([10.0, None], form) == "10 (1 of 2 seeds)"
    assert spread([None, None], form) == "not reached"


def test_the_page_tells_which_orderings_hold_and_what_time_is_saved():
    results = [
        *(result("fedavg", seed, [0.3, 0.5, 0.75]) for seed in (0, 1)),
        *(result("fedavg_waiting", seed, [0.5, 0.6, 0.75], second_s=4.0) for seed in (0, 1)),
        *(result("dms", seed, [0.5, 0.75, 0.8]) for seed in (0, 1)),
        result("fedasync", 0, [0.1, 0.1, 0.9]),
        result("fedasync", 1, [0.1, 0.1, 0.1]),
        *(result("fedprox", seed, [0.9, 0.9, 0.9]) for seed in (0, 1)),
    ]
    page = "\n".join(told_of(STUDIES["case1"], results))
    assert "- dms better than fedavg: holds (+5.00 ± 0.00 points, 2 seeds)" in page
    assert "- dms better than fedprox: REVERSED (-10.00 ± 0.00 points, 2 seeds)" in page
    assert "fedasync_average:" not in page
    # The target is 0.72: fedavg takes 3 s, waiting 12 s, dms 2 s; fedasync reached it with one seed only.
    assert page.rstrip().endswith("(fedavg_waiting): fedavg 75%, dms 83%.")


def test_the_table_of_rows_has_one_line_per_round_and_run():
    headings, *rows = results_table(
        [result("dms", seed, [0.25, 0.5]) for seed in (0, 1)], {ACCURACY: itemgetter(ACCURACY)}
    )
    assert headings == ["study", "method", "seed", "round", "accuracy/test"]
    assert rows == [
        [*("case1", "dms", 0, 0, 0.25)],
        [*("case1", "dms", 0, 1, 0.5)],
        [*("case1", "dms", 1, 0, 0.25)],
        [*("case1", "dms", 1, 1, 0.5)],
    ]


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the script on one small study into tmp_path / "out"; return its exit code."""
    settings = ["data.dataset.kind=digits", "data.train_samples=300", "horizontal.clients=15", "threads=1"]
    settings += ["models.classifier.kind=logistic", "horizontal.local_epochs=2"]
    arguments = [*settings, "--studies", "heterogeneity", "--rounds", "2", "--out", str(tmp_path / "out")]

    def run(*overrides: str) -> int:
        monkeypatch.setattr(sys, "argv", ["paper_horizontal.py", *arguments, *overrides])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as end:
                runpy.run_path(str(ROOT / "scripts" / "lab" / "paper_horizontal.py"), run_name="__main__")
        finally:
            signal.signal(signal.SIGTERM, handler)
        assert isinstance(end.value.code, int)
        return end.value.code

    return run


def test_the_script_trains_once_draws_and_goes_on(compare: Callable[..., int], tmp_path: Path, capsys):
    assert compare("horizontal.fedlga.scale=0.001") == 0
    said = capsys.readouterr().out
    assert said.count("test accuracy") == 6
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("README.md", "command.txt", "heterogeneity.png", "results.csv", "runs")
    }
    page = (tmp_path / "out" / "README.md").read_text()
    assert "diverged" not in said + page
    assert "\npython -m scripts.lab.paper_horizontal data.dataset.kind=digits " in page
    assert compare("horizontal.fedlga.scale=0.001") == 0
    assert "test accuracy" not in capsys.readouterr().out
    assert (tmp_path / "out" / "README.md").read_text() == page


def test_the_command_of_a_page_is_one_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["scripts/lab/paper_flare.py", "--out", "a folder"])
    command._note(argparse.Namespace(out=tmp_path, data_note=""), [])
    assert (tmp_path / "command.txt").read_text().startswith("python -m scripts.lab.paper_flare --out 'a folder'\n")


@pytest.mark.filterwarnings("ignore:FedLGA's correction")
def test_a_method_that_diverges_ends_alone_and_the_page_says_so(compare: Callable[..., int], tmp_path: Path, capsys):
    assert compare("horizontal.fedlga.scale=1e30") == 0
    said = capsys.readouterr().out
    why = "fedlga/correction is not finite: lower training.optimizer."
    assert (said.count("test accuracy"), said.count(f"heterogeneity-fedlga-seed0: FAILED: {why}")) == (5, 1)
    page = (tmp_path / "out" / "README.md").read_text()
    assert f"diverged: heterogeneity-fedlga-seed0: {why}" in page
    assert "| fedavg |" in page
    assert "| fedlga |" not in page
