"""Drift: the stability index is that of its definition, and tells a shift at the column that has one."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shorthand import examples

from vfl.data.drift import FEWEST, MOST_BINNED, NUMBER_BINS, SHIFTED, WINDOW, Histograms, Window
from vfl.runs.checkpoint import CheckpointStore

CELLS = st.one_of(st.just(math.nan), st.floats(-5, 5), st.sampled_from([0.0, 1.0]))


def table(draw: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = draw.normal(size=(rows, 3))
    numbers[draw.random(rows) < 0.2, 1] = math.nan
    numbers[:, 2] = draw.integers(2, size=rows)
    return numbers, draw.integers(40, size=(rows, 2)) ** 2


def test_the_index_is_that_of_its_definition():
    histograms = Histograms(np.arange(100.0)[:, None], np.zeros((100, 0), np.int64))
    assert histograms.counts[:NUMBER_BINS, 0].tolist() == [10] * 10
    found = histograms.stability(
        histograms.bins(np.repeat([[5.0], [15.0]], [30, 10], axis=0), np.zeros((40, 0), np.int64))
    )
    expected = 0.0
    for bin_ in range(10):
        p, q = 10.5 / 105, ({0: 30, 1: 10}.get(bin_, 0) + 0.5) / 45
        expected += (q - p) * math.log(q / p)
    assert found.tolist() == pytest.approx([expected])


@examples(100)
@given(st.lists(st.tuples(CELLS, st.integers(-1, 30)), min_size=1, max_size=60))
def test_rows_are_as_the_training_rows_that_they_are(rows):
    numbers, categories = np.array([[row[0]] for row in rows]), np.array([[row[1]] for row in rows])
    histograms = Histograms(numbers, categories)
    bins = histograms.bins(numbers, categories)
    assert histograms.stability(bins) == pytest.approx([0, 0])
    assert histograms.counts.sum(axis=0).tolist() == [len(rows)] * 2
    assert (histograms.stability(bins[:1]) >= 0).all()


@examples(50)
@given(st.integers(0, 2**32), st.integers(0, 4))
def test_a_shift_is_told_at_its_column_alone(seed, shifted):
    draw = np.random.default_rng(seed)
    window = Window(Histograms(*table(draw, 3 * MOST_BINNED)))
    columns = ["a", "b", "c", "d", "e"]
    numbers, categories = table(draw, 2 * WINDOW)
    window.add(numbers, categories)
    assert len(window) == WINDOW
    assert window.shifted(columns) == []
    if shifted == 2:
        numbers[:, 2] = 0
    elif shifted < 3:
        numbers[:, shifted] += 1
    else:
        categories[:, shifted - 3] //= 4
    window.add(numbers[: WINDOW // 2], categories[: WINDOW // 2])
    window.add(numbers[WINDOW // 2 : WINDOW], categories[WINDOW // 2 : WINDOW])
    assert window.shifted(columns) == [columns[shifted]]
    assert window.stability(columns)[columns[shifted]] > SHIFTED


def test_too_few_rows_tell_nothing():
    draw = np.random.default_rng(0)
    window = Window(Histograms(*table(draw, 1000)))
    assert window.stability(["a"]) == {}
    numbers, categories = table(draw, FEWEST)
    window.add(numbers[1:] + 5, categories[1:])
    assert window.shifted(list("abcde")) == []
    window.add(numbers[:1] + 5, categories[:1])
    assert window.shifted(list("abcde"))[0] in "abc"


def test_histograms_are_saved(tmp_path):
    draw = np.random.default_rng(0)
    histograms, rows = Histograms(*table(draw, 1000)), table(draw, 50)
    CheckpointStore(tmp_path).save(1, {"party": {"histograms": histograms.state_dict()}})
    again = Histograms.of_state(CheckpointStore(tmp_path).load(1)["party"]["histograms"])
    assert torch.from_numpy(again.bins(*rows)).equal(torch.from_numpy(histograms.bins(*rows)))
    assert again.stability(again.bins(*rows)).tolist() == histograms.stability(histograms.bins(*rows)).tolist()
