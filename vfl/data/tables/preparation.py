"""Preparation of a table's rows: from an owner's columns to the numbers that a model takes, fitted to training rows.

Numbers are standardised; a missing one becomes the mean, with an indicator column if training rows have gaps. Or they
become positions among quantiles, 0 to the number of bins, with 0 for a missing one; the model turns a position into the
piecewise linear encoding (Gorishniy et al., NeurIPS 2022), so that rows stay as narrow as before. Or both. Categories
become codes: 0 for values that are rare or unknown in the training rows, else 1 + the index among the known ones. All
of it stays with the owner.

Shapes: N rows, F numbers, K columns of categories, W = F + indicators.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Signatures of torch and numpy are partly untyped.

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vfl.config.data import Numbers
from vfl.data.drift import Histograms
from vfl.data.samples import ROWS_AT_ONCE, Samples
from vfl.data.source import Preparation
from vfl.models.features import TableFeatures
from vfl.runs.checkpoint import State

MIN_COUNT = 5
"""Fewest training rows of a category with its own embedding; rarer ones share one."""
FARTHEST = 1e4
"""Standard deviations from the training mean at which a number is clipped. A training row of N is never farther than
sqrt(N): only a cell that is wrong, or of another unit, is. Unclipped it could end all rows' evaluation."""
STANDARDISED = f"(value - mean) / std, clipped to -{FARTHEST:g} and {FARTHEST:g},"
POSITION = "linear interpolation between edges, the first one 0, the second 1 and so on, clamped to the outer ones,"
BINS = 16
"""Bins of a number by quantiles, if it has so many different values."""
MOST_RANKED = 1 << 17
"""Most rows from which quantiles are computed; of more rows, evenly spaced ones are used."""
MIN_STD = 1e-12
"""Smallest standard deviation relative to the mean; a column that varies less is constant."""


class TablePreparation(Preparation):
    """Preparation fitted to raw training rows: float64 [N, F], NaN if missing, and hashes of categories, int64 [N,
    K]."""

    def __init__(self, train: Samples, numbers: Numbers = "standardised") -> None:
        numbers_NF, (hashes_NK,) = train.features, train.more
        self.mean_F, self.std_F, self.constant_F = _means_and_stds(numbers_NF)
        self.gaps = torch.tensor([bool(column_N.isnan().any()) for column_N in numbers_NF.unbind(1)], dtype=torch.bool)
        self.edges = [] if numbers == "standardised" else [_edges(column_N) for column_N in numbers_NF.unbind(1)]
        """Ascending edges of each number's bins, float64; empty if numbers are only standardised."""
        self.both = numbers == "both"
        self.known = [_frequent(column_N) for column_N in hashes_NK.unbind(1)]
        """Sorted hashes of the categories with their own embeddings, by column."""
        self.constant_K = torch.tensor([len(column_N.unique()) == 1 for column_N in hashes_NK.unbind(1)]).bool()
        """Columns of one category in all training rows."""
        self._counted: State | None = Histograms(numbers_NF.numpy(), hashes_NK.numpy()).state_dict()

    @cached_property
    def histograms(self) -> Histograms | None:  # pyright: ignore[reportIncompatibleVariableOverride]  # read at its first use
        """Counts of the training rows, numbers first; None of a run from before there were any."""
        return None if self._counted is None else Histograms.of_state(self._counted)

    @classmethod
    def of_state(cls, state: State, *, both: bool) -> "TablePreparation":
        """Return the preparation in a fitted state; ``both``: it gives numbers in both forms."""
        preparation = cls.__new__(cls)
        preparation.both = both
        preparation.load_state_dict(state)
        return preparation

    @property
    def features(self) -> TableFeatures:
        """Columns of a prepared row, and the numbers of codes of its categories."""
        sizes = tuple(1 + len(known) for known in self.known)
        indicators = int(self.gaps.sum())
        # An indicator is 0 or 1 as it is: a position in one bin.
        bins = (*(len(edges) - 1 for edges in self.edges), *[1] * indicators) if self.edges else ()
        width = (1 + self.both) * (len(self.mean_F) + indicators) + len(sizes)
        return TableFeatures("table", (width,), sizes, bins, self.both)

    @property
    def column_places(self) -> list[list[int]]:
        """Places in a prepared row of each raw column's values: its number and indicator in each form, or its code."""
        numbers, gaps = len(self.mean_F), self.gaps.nonzero()[:, 0].tolist()
        width, forms = numbers + len(gaps), 1 + self.both
        indicators = {number: numbers + place for place, number in enumerate(gaps)}
        one_form = [[number, *([indicators[number]] if number in gaps else [])] for number in range(numbers)]
        of_numbers = [[form * width + place for form in range(forms) for place in own] for own in one_form]
        return of_numbers + [[forms * width + code] for code in range(len(self.known))]

    def apply(self, samples: Samples) -> Samples:
        """Return float32 [N, W + K]: numbers, indicators, codes; with both forms numbers and indicators come twice.

        Raises ValueError for other columns.

        Memory: 4 bytes per row and column, and some rows in float64.
        """
        numbers_NF, hashes_NK = self._columns(samples)
        # A missing number becomes 0, which is the mean once standardised. No indicator says so where training rows have
        # no gaps: a model could not have learned what it means.
        prepared, place = torch.empty(len(samples), *self.features.shape), 0
        missing = [numbers_NF[:, number].isnan() for number in self.gaps.nonzero()[:, 0].tolist()]
        codes = [_codes(hashes_N, known) for hashes_N, known in zip(hashes_NK.unbind(1), self.known, strict=True)]
        forms = [self._standardised] if self.both or not self.edges else []
        forms += [self._position] if self.edges else []
        for form in forms:
            for start in range(0, len(samples), ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                prepared[rows, place : place + numbers_NF.shape[1]] = form(numbers_NF[rows]).nan_to_num(nan=0.0)
            place += numbers_NF.shape[1]
            place = _fill(prepared, place, missing)
        _fill(prepared, place, codes)
        return replace(samples, features=prepared, more=())

    def reference(self) -> Tensor:
        """Return the prepared row [W] of the numbers' means and the columns' most frequent categories."""
        commonest = [self._commonest(place) for place in range(len(self.known))]
        hashes_1K = torch.tensor([commonest], dtype=torch.int64).reshape(1, len(self.known))
        return self.apply(Samples(torch.arange(1), self.mean_F[None], more=(hashes_1K,))).features[0]

    def _commonest(self, place: int) -> int:
        """Return the hash of a column's most frequent category; of a run without counts one that is known."""
        if self.histograms is None:
            return int(self.known[place][0]) if len(self.known[place]) else -1
        frequent = self.histograms.frequent[place]
        counts = self.histograms.counts[1 : 1 + len(frequent), len(self.mean_F) + place]
        return int(frequent[counts.argmax()])

    def freeze(self, samples: Samples) -> Samples:
        """Return raw samples whose constant columns hold what all training rows held.

        A model could not learn what another value means: its weights would be as they were drawn. Raises as ``apply``.
        """
        differing = self._differing(samples, 0.0)
        if not any(cells_N.any() for cells_N in differing.values()):
            return samples
        numbers_NF, hashes_NK = samples.features.clone(), samples.more[0].clone()
        for column, cells_N in differing.items():
            if column < len(self.mean_F):
                numbers_NF[cells_N, column] = self.mean_F[column]
            else:
                hashes_NK[cells_N, column - len(self.mean_F)] = self.known[column - len(self.mean_F)][0]
        return replace(samples, features=numbers_NF, more=(hashes_NK,))

    def changed(self, samples: Samples) -> list[int]:
        """Return by column, numbers first, how many cells differ from what is constant in the training rows."""
        counts = [0] * (len(self.mean_F) + len(self.known))
        for column, cells_N in self._differing(samples.held(), MIN_STD).items():
            counts[column] = int(cells_N.sum())
        return counts

    def _differing(self, samples: Samples, tolerance: float) -> dict[int, Tensor]:
        """Return the cells [N] that differ, by constant column; a missing number is the mean and does not."""
        numbers_NF, hashes_NK = self._columns(samples)
        cells: dict[int, Tensor] = {}
        for column in self.constant_F.nonzero()[:, 0].tolist():
            mean = self.mean_F[column]
            cells[column] = (numbers_NF[:, column] - mean).abs() > tolerance * mean.abs()
        for column in self.constant_K.nonzero()[:, 0].tolist():
            if len(known := self.known[column]):  # else all categories have one code
                cells[len(self.mean_F) + column] = hashes_NK[:, column] != known[0]
        return cells

    def _columns(self, samples: Samples) -> tuple[Tensor, Tensor]:
        numbers_NF, (hashes_NK,) = samples.features, samples.more
        if numbers_NF.shape[1] != len(self.mean_F) or hashes_NK.shape[1] != len(self.known):
            raise ValueError(
                f"table: expected {len(self.mean_F)} numbers and {len(self.known)} categories, got "
                f"{numbers_NF.shape[1]} and {hashes_NK.shape[1]}"
            )
        return numbers_NF, hashes_NK

    def _standardised(self, numbers_BF: Tensor) -> Tensor:
        return ((numbers_BF - self.mean_F) / self.std_F).clamp(-FARTHEST, FARTHEST)

    def _position(self, numbers_BF: Tensor) -> Tensor:
        columns = zip(numbers_BF.numpy().T, (edges.numpy() for edges in self.edges), strict=True)
        places = [np.interp(column, edges, np.arange(len(edges), dtype=np.float64)) for column, edges in columns]
        return torch.from_numpy(np.array(places).reshape(len(places), len(numbers_BF))).T

    def outliers(self, samples: Samples, names: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Yield the row of each cell that is clipped, and a line about it; none if numbers are only positions."""
        if self.edges and not self.both:
            return
        for number, column_N in enumerate(samples.features.unbind(1)):
            far_N = ((column_N - self.mean_F[number]) / self.std_F[number]).abs() > FARTHEST
            for row in [] if self.constant_F[number] else far_N.nonzero()[:, 0].tolist():
                far = f"{float(column_N[row]):g} is over {FARTHEST:g} standard deviations from the training mean"
                yield row, f"column {names[number]!r}: {far}; mend it or leave it empty"

    def unseen_values(self, samples: Samples, names: Sequence[str]) -> str:
        """Return a line that counts, by column, new or rare categories and cells that differ from a constant."""
        rare = [0] * len(self.mean_F) + self.unknown(samples)
        counts = {
            f"hold a category of fewer than {MIN_COUNT} training rows and are taken as unknown": rare,
            "differ from what their column holds in all training rows, and are taken for it": self.changed(samples),
        }
        lines: list[str] = []
        for what, cells in counts.items():
            if any(cells):
                by_column = [f"{n} of column {name!r}" for name, n in zip(names, cells, strict=True) if n]
                lines.append(f"cells that {what}: {', '.join(by_column)}")
        return "; ".join(lines)

    def unknown(self, samples: Samples) -> list[int]:
        """Return by column how many present cells hold a category that is new, or was rare in the training rows."""
        columns = zip(samples.held().more[0].unbind(1), self.known, self.constant_K.tolist(), strict=True)
        return [
            0 if constant else int(((_codes(hashes_N, known) == 0) & (hashes_N >= 0)).sum())
            for hashes_N, known, constant in columns
        ]

    def module(self) -> None:
        """Return None: an exported model takes prepared rows, as it cannot hold text. `fitted_text` describes them."""

    def fitted_text(self, names: Sequence[str]) -> str:
        """Return the fitted values as JSON, by the columns' names, in the order of the prepared row."""
        numbers, categories = names[: len(self.mean_F)], names[len(self.mean_F) :]
        fitted = zip(numbers, self.mean_F.tolist(), self.std_F.tolist(), self.gaps.tolist(), strict=True)
        known = zip(categories, self.known, self.constant_K.tolist(), strict=True)
        columns = [{"column": name, "mean": mean, "std": std, "indicator": gaps} for name, mean, std, gaps in fitted]
        for column, edges in zip(columns, self.edges, strict=False):  # none of standardised numbers
            column["edges"] = edges.tolist()
        for column, constant in zip(columns, self.constant_F.tolist(), strict=True):
            column["constant"] = constant
        return json.dumps(
            {
                "numbers": columns,
                "categories": [
                    {"column": name, "known": hashes.tolist(), "constant": constant} for name, hashes, constant in known
                ],
                "hash": "first 63 bits of BLAKE2b (8 bytes, big-endian) of the value's UTF-8 text; -1 where missing",
                "code": "1 + place in known, 0 for all other values",
                "constant": "column that is taken for its mean, or its known category, in all rows",
                "row": f"{'; then '.join(self._forms())}; the code of each category",
            },
            indent=2,
        )

    def _forms(self) -> list[str]:
        forms = [STANDARDISED] if self.both or not self.edges else []
        forms += [POSITION] if self.edges else []
        missing = "of each number, 0 where missing; 1 where missing, else 0, of each number with an indicator"
        return [f"{form} {missing}" for form in forms]

    def drawn(self, like: Samples) -> Samples:
        """Return plausible random rows: numbers with the training rows' means and deviations, known categories."""
        stream = torch.Generator().manual_seed(0)
        normal = torch.randn(like.features.shape, generator=stream, dtype=torch.float64)
        hashes = torch.zeros_like(like.more[0])
        for place, known in enumerate(self.known):
            if len(known):
                hashes[:, place] = known[torch.randint(len(known), (len(like),), generator=stream)]
        return replace(like, features=normal * self.std_F + self.mean_F, more=(hashes,))

    def state_dict(self) -> State:
        """Return the fitted tensors by name; known categories' hashes and edges are a tensor per column."""
        known = {f"known_{place}": hashes for place, hashes in enumerate(self.known)}
        edges = {f"edges_{place}": each for place, each in enumerate(self.edges)}
        counts = {} if self._counted is None else {"histograms": self._counted}
        constant = {"constant_F": self.constant_F, "constant_K": self.constant_K}
        return {"mean_F": self.mean_F, "std_F": self.std_F, "gaps": self.gaps, **constant, **known, **edges, **counts}

    def load_state_dict(self, state: State) -> None:
        """Restore the fitted values."""
        self.mean_F, self.std_F, self.gaps = state["mean_F"], state["std_F"], state["gaps"]
        self.known = [each for name, each in state.items() if name.startswith("known_")]
        # The scores of a run from before this distinction stay as they were.
        self.constant_F = state.get("constant_F", torch.zeros_like(self.gaps))
        self.constant_K = state.get("constant_K", torch.zeros(len(self.known), dtype=torch.bool))
        self.edges = [each for name, each in state.items() if name.startswith("edges_")]
        self._counted = state.get("histograms")
        vars(self).pop("histograms", None)


def _fill(prepared: Tensor, place: int, columns: Sequence[Tensor]) -> int:
    """Write columns [N] side by side from ``place`` on; return the place behind them."""
    for column_N in columns:
        prepared[:, place] = column_N
        place += 1
    return place


def _means_and_stds(numbers_NF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, deviations (1 of a constant) and which columns are constant, all [F]."""
    mean_F, std_F = (torch.empty(numbers_NF.shape[1], dtype=torch.float64) for _ in range(2))
    for place, column_N in enumerate(numbers_NF.unbind(1)):  # one column at a time, for memory
        present_N = column_N[~column_N.isnan()]
        mean_F[place], std_F[place] = present_N.mean(), present_N.std(correction=0)
    # Relative to the mean: equal numbers far from 0 have a std above 0 by rounding, which would blow rounding up to 1.
    varied_F = std_F > MIN_STD * mean_F.abs()
    return mean_F, torch.where(varied_F, std_F, 1.0), ~varied_F


def _edges(column_N: Tensor) -> Tensor:
    """Return the edges of bins with equally many rows, float64 [2 or more]; equal edges once."""
    present = column_N[~column_N.isnan()].numpy()
    present = present[:: -(-len(present) // MOST_RANKED)]
    edges = np.unique(np.quantile(present, np.linspace(0, 1, BINS + 1)))
    # A constant is at the lower end of a bin that nothing else reaches.
    return torch.from_numpy(edges if len(edges) > 1 else np.append(edges, edges + 1))


def _frequent(hashes_N: Tensor) -> Tensor:
    # Sorted, as searchsorted needs it. The -1 of missing cells is a value as any other: often missing, it is known.
    hashes, counts = hashes_N.unique(return_counts=True)
    return hashes[counts >= MIN_COUNT]


def _codes(hashes_N: Tensor, known: Tensor) -> Tensor:
    if len(known) == 0:
        return torch.zeros(len(hashes_N))
    # The place at which a hash would be inserted: clamped, because above all known ones that is behind the last.
    place_N = torch.searchsorted(known, hashes_N.contiguous()).clamp(max=len(known) - 1)
    return torch.where(known[place_N] == hashes_N, place_N + 1, 0)
