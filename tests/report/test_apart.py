"""What training together adds to owners that learn alone, and what each knows alone, in compare and in reports."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import PARTIES, ROUNDS, vertical_rows, vertical_summary, write_run
from scipy import stats
from shorthand import examples

from vfl.base.estimates import Estimate, meeting_line, over_seeds
from vfl.reports.apart import own_rows, own_variants
from vfl.reports.runs import load_subject
from vfl.reports.write import first


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
@examples(100)
def test_the_interval_over_seeds_is_students(differences: list[float]):
    estimate = over_seeds(differences)
    half = stats.sem(differences) * stats.t.ppf(0.975, len(differences) - 1)
    assert estimate.value == pytest.approx(sum(differences) / len(differences), abs=1e-9)
    assert estimate.high - estimate.value == pytest.approx(half, abs=1e-6)
    assert estimate.value - estimate.low == pytest.approx(half, abs=1e-6)


def test_one_seed_decides_nothing():
    for only in (3.0, -3.0):
        assert "train alone" not in meeting_line(over_seeds([only]), "points", 1000, 1.0)
    assert "train alone" in meeting_line(Estimate(0.5, -0.1, 1.1), "points", 1000, 1.0)
    assert "train alone" not in meeting_line(Estimate(0.5, 0.1, 0.9), "points", 1000, 1.0)


def made(folder: Path, gains: dict[int, float]) -> list[Path]:
    """Runs of owners who meet and who never do, by seed, in which meeting gains so much."""
    runs: list[Path] = []
    alone = {"alone": {name: {"accuracy": 0.4 + 0.1 * place} for place, name in enumerate(PARTIES)}}
    for seed, gain in gains.items():
        for local, final in ((0, 0.5 + gain), (ROUNDS, 0.5)):
            summary = vertical_summary(0, 0, final) | (alone if local else {})
            if local:
                summary |= {"uplink_bytes": 10, "downlink_bytes": 10}
            training = {"rounds": ROUNDS, "local_rounds": local}
            rows = vertical_rows(0, 0, final)
            runs.append(write_run(folder / f"{local}-{seed}", {"seed": seed, "training": training}, rows, summary))
    return runs


@pytest.mark.parametrize(("gains", "adds"), [({0: 0.1, 1: 0.11, 2: 0.12}, True), ({0: 0.1, 1: -0.1, 2: 0.0}, False)])
def test_a_report_says_whether_owners_should_meet(tmp_path: Path, gains: dict[int, float], adds: bool):
    subject = load_subject(*made(tmp_path / "runs", gains))
    (line,) = (each for each in first(subject) if "learn alone" in each)
    assert ("train alone" not in line) == adds
    assert f"{100 * sum(gains.values()) / 3:.3f}" in line
    variants = own_variants(subject)
    assert [row[0] for row in own_rows(variants)] == list(PARTIES)
    assert own_rows(variants)[1][1].startswith("50")
