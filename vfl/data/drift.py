"""Drift: whether rows that are scored still look like the training rows, column by column.

The population stability index is the sum over bins of (q - p) ln(q / p), with p the share of the training rows in a bin
and q that of the present ones: Kullback and Leibler's symmetric divergence (1951), whose use for scores, with a shift
from 0.25 on, is Siddiqi's ("Credit Risk Scorecards", 2006).

Shapes: N rows, F numbers, K columns of categories, C = F + K, B bins.
"""
# pyright: reportUnknownMemberType=false
# Signatures of torch are partly untyped.

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bins = npt.NDArray[np.uint8]

NUMBER_BINS = 10
"""Bins of a number, by quantiles of its training rows; missing ones have one more."""
MOST_CATEGORIES = 19
"""Categories with a bin of their own, the most frequent ones; all others share one."""
MOST_BINNED = 1 << 14
"""Most training rows that are counted; of more rows, evenly spaced ones."""
WINDOW = 1000
"""Latest rows that are compared."""
MOST_ADDED = 100
"""Times that rows are added before they are counted."""
FEWEST = 200
"""Fewest rows for a shift index: with fewer it is large by chance."""
DRIFT = "drift.json"
"""A party's file of it, in its folder."""
SHIFTED = 0.25


class Histograms:
    """Counts of training rows by bin, for each column of numbers, float64 [N, F] (NaN if missing), and of categories,
    int64 [N, K]."""

    def __init__(self, numbers_NF: Floats, categories_NK: Ints) -> None:
        step = max(1, -(-len(numbers_NF) // MOST_BINNED))
        numbers_NF, categories_NK = numbers_NF[::step], categories_NK[::step]
        self.edges = _quantiles(numbers_NF)
        """Inner edges of the numbers' bins, float64 [9, F]."""
        self.frequent = [_most_frequent(column_N) for column_N in categories_NK.T]
        """Sorted categories with a bin of their own, by column."""
        self.counts = self.count(self.bins(numbers_NF, categories_NK))
        """Rows by bin and column, int64 [B, C]."""

    def bins(self, numbers_NF: Floats, categories_NK: Ints) -> Bins:
        """Return the bin of each cell [N, C]."""
        bins = np.zeros((len(numbers_NF), self.edges.shape[1] + len(self.frequent)), np.uint8)
        numbers = bins[:, : self.edges.shape[1]]
        for edge_F in self.edges:
            numbers += numbers_NF >= edge_F
        numbers[np.isnan(numbers_NF)] = NUMBER_BINS
        for place, (column_N, known) in enumerate(zip(categories_NK.T, self.frequent, strict=True)):
            for code, category in enumerate(known, start=1):
                bins[column_N == category, self.edges.shape[1] + place] = code
        return bins

    def count(self, bins_NC: Bins) -> Ints:
        """Return the number of rows by bin and column, int64 [B, C]."""
        return np.stack([(bins_NC == each).sum(axis=0) for each in range(1 + max(NUMBER_BINS, MOST_CATEGORIES))])

    def stability(self, bins_NC: Bins) -> Floats:
        """Return the stability index of each column [C] between the training rows and others.

        Half a row is added to every bin that either has, so that an empty one counts for a finite amount.
        """
        before_BC, now_BC = self.counts, self.count(bins_NC)
        used_BC = (before_BC + now_BC) > 0
        p_BC, q_BC = (_shares(counts_BC, used_BC) for counts_BC in (before_BC, now_BC))
        return ((q_BC - p_BC) * np.log(q_BC / p_BC)).sum(axis=0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return edges, categories and counts by name."""
        frequent = {f"frequent_{place}": torch.from_numpy(each) for place, each in enumerate(self.frequent)}
        return {"edges": torch.from_numpy(self.edges), "counts": torch.from_numpy(self.counts), **frequent}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Histograms":
        """Return the histograms of a state."""
        histograms = cls.__new__(cls)
        histograms.edges, histograms.counts = state["edges"].numpy(), state["counts"].numpy()
        histograms.frequent = [state[f"frequent_{place}"].numpy() for place in range(len(state) - 2)]
        return histograms


class Window:
    """The latest rows, by their bins; rows come in one thread, which also reads."""

    def __init__(self, histograms: Histograms) -> None:
        self.histograms = histograms
        self._bins_NC = np.zeros((0, histograms.counts.shape[1]), np.uint8)
        self._added: list[tuple[Floats, Ints]] = []
        """Rows that are not counted yet: many together take as long as a single one."""

    def __len__(self) -> int:
        return len(self._counted())

    def add(self, numbers_NF: Floats, categories_NK: Ints) -> None:
        """Replace the oldest rows by new ones."""
        self._added.append((numbers_NF, categories_NK))
        if len(self._added) == MOST_ADDED:
            self._counted()

    def _counted(self) -> Bins:
        """Return the bins [N, C] of the latest rows, those added since included."""
        if self._added:
            numbers, categories = zip(*self._added, strict=True)
            self._added.clear()
            bins_NC = self.histograms.bins(np.concatenate(numbers), np.concatenate(categories))
            self._bins_NC = np.concatenate([self._bins_NC, bins_NC])[-WINDOW:]
        return self._bins_NC

    def stability(self, columns: Sequence[str]) -> dict[str, float]:
        """Return the stability index of each column by its name; nothing of no rows."""
        indices = self.histograms.stability(self._counted()).tolist() if len(self) else ()
        return dict(zip(columns, indices, strict=False))

    def shifted(self, columns: Sequence[str]) -> list[str]:
        """Return the columns whose index is too large, largest first."""
        if len(self) < FEWEST:
            return []
        indices = self.stability(columns)
        return sorted((name for name, index in indices.items() if index > SHIFTED), key=lambda name: -indices[name])


def _quantiles(numbers_NF: Floats) -> Floats:
    """Return the values of each column at the inner multiples of a tenth of its present rows, [9, F]."""
    if not len(numbers_NF):
        return np.zeros((NUMBER_BINS - 1, numbers_NF.shape[1]))
    present_F = (~np.isnan(numbers_NF)).sum(axis=0)
    places_BF = np.arange(1, NUMBER_BINS)[:, None] * present_F // NUMBER_BINS
    return np.take_along_axis(np.sort(numbers_NF, axis=0), places_BF.clip(max=len(numbers_NF) - 1), axis=0)


def _most_frequent(column_N: Ints) -> Ints:
    values, counts = np.unique(column_N, return_counts=True)
    return np.sort(values[np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]])


def _shares(counts_BC: Ints, used_BC: npt.NDArray[np.bool_]) -> Floats:
    smoothed_BC = np.where(used_BC, counts_BC + 0.5, 0.5)  # of unused ones p and q are the same after all
    total_C = np.where(used_BC, smoothed_BC, 0).sum(axis=0)
    return np.where(used_BC, smoothed_BC / total_C, 1.0)
