"""The search asks for the same runs whatever was interrupted, and concludes with the cheapest pair that is allowed."""

import sys

import pytest

from vfl.config import ConfigError
from vfl.runs.experiments.search import ALPHA, BETA, Search
from vfl.runs.experiments.sweep_plan import RatioRange, SearchConfig, Settings, folder_name

CONFIG = SearchConfig(trials=12, points=2.0, seeds=(0, 1))


def train(settings: Settings) -> dict[str, float]:
    """Stand for a training: pruning costs twice the accuracy that sparsification costs."""
    alpha, beta = settings[ALPHA], settings[BETA]
    accuracy = 0.9 - 0.06 * alpha**2 - 0.03 * beta**2 + 0.001 * settings["seed"]
    return {"test_accuracy": accuracy, "savings_compute": 1 - (1 - alpha) ** 2, "savings_communication": beta}


def search(summaries: dict[str, dict[str, float]], jobs: int) -> tuple[Search, list[str]]:
    searching, asked = Search(CONFIG), []
    for points in searching.batches(summaries, jobs):
        for settings in points:
            asked.append(folder_name(settings))
            summaries.setdefault(folder_name(settings), train(settings))
    return searching, asked


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_search_that_goes_on_asks_for_the_same_runs(jobs: int):
    undisturbed: dict[str, dict[str, float]] = {}
    _, asked = search(undisturbed, jobs)
    half = dict(list(undisturbed.items())[: len(undisturbed) // 2])
    _, again = search(half, jobs)
    assert again == asked
    assert half == undisturbed
    assert asked[:2] == ["alpha0-beta0-seed0", "alpha0-beta0-seed1"]


def test_the_conclusion_is_the_cheapest_tried_pair_within_the_points():
    summaries: dict[str, dict[str, float]] = {}
    searching, _ = search(summaries, 2)
    pairs = [(trial.params["alpha"], trial.params["beta"]) for trial in searching.study.trials]
    assert len(pairs) == CONFIG.trials

    def cost(pair: tuple[float, float]) -> float:
        return 0.5 * (1 - pair[0]) ** 2 + 0.5 * (1 - pair[1])

    allowed = [pair for pair in pairs if 6 * pair[0] ** 2 + 3 * pair[1] ** 2 <= CONFIG.points + 1e-9]
    assert allowed
    assert len(allowed) < len(pairs)
    alpha, beta = min(allowed, key=cost)
    assert f"alpha {alpha:g}, beta {beta:g};" in searching.conclusion(summaries)


def test_a_failed_run_takes_its_pair_out_of_the_running():
    summaries: dict[str, dict[str, float]] = {}
    searching = Search(CONFIG)
    for points in searching.batches(summaries, 1):
        for settings in points:
            if settings[ALPHA] == 0 and settings[BETA] == 0:
                summaries[folder_name(settings)] = train(settings)
    assert searching.conclusion(summaries).startswith("cheapest with at most 2 points lost: alpha 0, beta 0;")


def test_without_the_run_to_compare_with_nothing_is_concluded():
    searching = Search(CONFIG)
    assert [[folder_name(settings) for settings in points] for points in searching.batches({}, 4)] == [
        ["alpha0-beta0-seed0", "alpha0-beta0-seed1"]
    ]
    assert searching.conclusion({}).startswith("nothing was tried")


def test_where_nothing_keeps_the_accuracy_that_is_said():
    searching = Search(CONFIG.model_copy(update={"alpha": RatioRange(low=0.2)}))
    summaries: dict[str, dict[str, float]] = {}
    for points in searching.batches(summaries, 4):
        for settings in points:
            lost = 0.5 if settings[ALPHA] or settings[BETA] else 0.0
            summaries[folder_name(settings)] = train(settings) | {"test_accuracy": 0.9 - lost}
    tried = (len(summaries) - len(CONFIG.seeds)) // len(CONFIG.seeds)  # a pair that was chosen twice is one
    assert searching.conclusion(summaries) == f"no alpha and beta of {tried} keep the accuracy within 2 points"


def test_without_optuna_there_is_one_line_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'lvfl\[search\]'"):
        Search(CONFIG)
