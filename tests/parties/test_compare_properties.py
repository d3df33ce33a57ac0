"""Properties of comparisons: AUC with ties, paired intervals, whole columns permuted, passes that are permutations."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score
from two_tables import sections_of, write_tables

from vfl.comparison.compare import Comparison, _estimate_difference, _train_boosting
from vfl.comparison.importance import metric_of
from vfl.config import ExperimentConfig
from vfl.core.local import build_in_process
from vfl.core.presence import batch_rows
from vfl.core.tasks import Classification, Task
from vfl.data.files import LabelData, PartyData
from vfl.data.samples import Labels, Samples
from vfl.data.source import Split
from vfl.messages.control import Permuted
from vfl.runs.runtime import start_runtime


@pytest.fixture
def task(configure: Callable[..., ExperimentConfig], tmp_path: Path) -> Task:
    config = configure(**sections_of(write_tables(tmp_path, range(80), labelled=True)))
    found = build_in_process(config, start_runtime(config)).server.joint.task
    assert isinstance(found, Classification)
    assert found.metric == "auc"
    return found


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_auc_counts_ties_half(task: Task, levels: int):
    draw = torch.Generator().manual_seed(levels)
    scores = torch.randint(levels, (200,), generator=draw).double() / levels
    labels = torch.randint(2, (200,), generator=draw)
    predictions = torch.stack([1 - scores, scores], 1)
    assert metric_of(task, predictions, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_a_model_differs_from_itself_by_nothing_in_every_resample(task: Task):
    """Intervals are paired: both models are measured on the same drawn rows."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.rand(100, generator=draw, dtype=torch.float64)
    labels = torch.randint(2, (100,), generator=draw)
    predictions = torch.stack([1 - scores, scores], 1)
    found = _estimate_difference(task, predictions, predictions.clone(), labels)
    assert (found.low, found.value, found.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("rows", "noise", "too_few"), [(12, 0.4, True), (2000, 1.0, False)])
def test_few_tested_rows_are_told_where_they_cannot_tell_a_gain_from_none(
    task: Task, rows: int, noise: float, too_few: bool
):
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(rows) % 2
    good = labels + torch.randn(rows, generator=draw)
    bad = good + noise * torch.randn(rows, generator=draw)
    alone, together = (torch.stack([-each, each], 1).softmax(1) for each in (good, bad))
    gain = _estimate_difference(task, alone, together, labels)
    told = Comparison("auc", "bank", ("shop",), {}, gain, {}, {}, {}, 0, 0).headline()
    assert ("tested rows" in told) == too_few


def test_a_permuted_column_moves_with_all_its_places(configure: Callable[..., ExperimentConfig], tmp_path: Path):
    """A number with gaps has a place for "it is missing": a row gets another row's number and gap, no mixture."""
    config = configure(**sections_of(write_tables(tmp_path, range(80), labelled=True)))
    shop = build_in_process(config, start_runtime(config)).parties[1]
    column, places = max(enumerate(shop.preparation.column_places), key=lambda each: len(each[1]))
    assert len(places) > 1
    rows = torch.arange(len(shop.test))
    (permuted,) = shop._permuted(rows, Permuted(column=column, draw=0))
    held = shop.test.features[:, list(places)]
    assert not torch.equal(permuted[:, list(places)], held)
    assert sorted(permuted[:, list(places)].tolist()) == sorted(held.tolist())
    others = [place for place in range(held.shape[1]) if place not in places]
    assert torch.equal(permuted[:, others], shop.test.features[:, others])


@pytest.mark.parametrize(("samples", "batch_size"), [(48, 16), (50, 16), (7, 7), (9, 1)])
def test_a_pass_is_a_permutation(samples: int, batch_size: int):
    per_pass = samples // batch_size
    batches = batch_rows(3, 1, 2 * per_pass, samples, batch_size)
    first, second = torch.cat(batches[:per_pass]), torch.cat(batches[per_pass:])
    for rows in (first, second):
        assert len(rows.unique()) == per_pass * batch_size
        assert set(rows.tolist()) <= set(range(samples))
    assert samples == 1 or not torch.equal(first, second)


@pytest.mark.timeout(20)
def test_many_rare_classes_do_not_keep_the_resamples_from_ending():
    labels = torch.arange(60)
    right, wrong = torch.eye(60, dtype=torch.float64), torch.eye(60, dtype=torch.float64).roll(1, 0)
    found = _estimate_difference(Classification(60), right, wrong, labels)
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)


def test_boosting_gives_a_class_without_training_rows_its_own_place():
    draw = torch.Generator().manual_seed(0)
    train_N, test_N = torch.arange(60) % 2 * 2, torch.arange(9) % 3  # class 1 is tested alone

    def samples(labels_N: torch.Tensor) -> Samples:
        numbers = labels_N[:, None].double() + torch.rand(len(labels_N), 1, generator=draw, dtype=torch.float64)
        return Samples(
            len(labels_N) + torch.arange(len(labels_N)),
            numbers,
            more=(torch.zeros(len(labels_N), 0, dtype=torch.int64),),
        )

    held = (Labels(len(each) + torch.arange(len(each)), each) for each in (train_N, test_N))
    split = Split((PartyData("all", samples(train_N), samples(test_N)),), LabelData(("a", "b", "c"), *held))
    told_MC = _train_boosting(split, Classification(3), seed=0)
    assert told_MC.shape == (9, 3)
    assert told_MC.argmax(dim=1)[test_N != 1].tolist() == test_N[test_N != 1].tolist()
    assert not told_MC[:, 1].any()
