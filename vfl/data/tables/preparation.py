"""What is learned from an owner's training rows to turn its columns into the numbers that a model takes.

Numbers are standardised; a missing one is the mean, and an indicator column says so where training rows have gaps.
Categories become codes: 0 for values that are rare in the training rows or not in them, else 1 + a place among the
known ones. All of it stays with the owner.

Shapes: N rows, W = numbers + indicators + categories, in this order.
"""

import warnings
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vfl.config.fields import Section
from vfl.data.tables.cells import TableError
from vfl.data.tables.columns import Categories, ColumnKind, Numbers, Table

MIN_COUNT = 5
"""Training rows with a category of its own embedding; rarer ones share one."""
_NUMBER: ColumnKind = "number"
_CATEGORY: ColumnKind = "category"
MIN_STD = 1e-12
"""Of the mean's amount: a column that varies less is constant, and only centred."""


class NumberFit(Section):
    """How a column of numbers is prepared: (value - mean) / std."""

    mean: float
    std: float
    indicator: bool
    """Whether a column of 0 and 1 says where the number is missing."""


class CategoryFit(Section):
    """How a column of categories is prepared: code 1 + place in ``known``, 0 for all others."""

    known: tuple[str | None, ...]
    """Sorted; None is the missing value."""


class Preparation(Section):
    """All that was fitted on one owner's training rows. ``model_dump_json`` is its file."""

    numbers: dict[str, NumberFit]
    categories: dict[str, CategoryFit]

    @property
    def width(self) -> int:
        """Numbers and indicators together."""
        return len(self.numbers) + sum(fit.indicator for fit in self.numbers.values())

    @property
    def category_sizes(self) -> tuple[int, ...]:
        """Codes of each column of categories."""
        return tuple(1 + len(fit.known) for fit in self.categories.values())

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The columns that are read."""
        return {**dict.fromkeys(self.numbers, _NUMBER), **dict.fromkeys(self.categories, _CATEGORY)}

    def column_names(self) -> list[str]:
        """Return what each of the W prepared columns is."""
        missing = [f"{name} is missing" for name, fit in self.numbers.items() if fit.indicator]
        return [*self.numbers, *missing, *self.categories]

    def apply(self, table: Table, rows: npt.NDArray[np.int64]) -> Tensor:
        """Return some rows prepared, float32 [N, W], in the order given; codes are whole numbers.

        Memory: 4 bytes per row and column of the result, and one column in float64.
        """
        prepared = np.empty((len(rows), self.width + len(self.categories)), np.float32)
        indicator = len(self.numbers)
        for place, (name, fit) in enumerate(self.numbers.items()):
            column = table.columns[name]
            assert isinstance(column, Numbers)
            values = column.values[rows]
            gaps = np.isnan(values)
            prepared[:, place] = np.where(gaps, 0.0, (values - fit.mean) / fit.std)
            if fit.indicator:
                prepared[:, indicator] = gaps
                indicator += 1
        for place, (name, fit) in enumerate(self.categories.items(), start=self.width):
            column = table.columns[name]
            assert isinstance(column, Categories)
            prepared[:, place] = _codes_of(column, fit)[column.codes[rows]]
        return torch.from_numpy(prepared)  # pyright: ignore[reportUnknownMemberType]  # partly untyped


def fit(table: Table, rows: npt.NDArray[np.int64]) -> Preparation:
    """Fit the preparation of a table's columns on its training rows.

    Raises TableError for a column without any value there; warns of constant ones.
    """
    numbers: dict[str, NumberFit] = {}
    categories: dict[str, CategoryFit] = {}
    for name, column in table.columns.items():
        where = f"{table.path}: column {name!r}"
        if isinstance(column, Numbers):
            numbers[name] = _fit_numbers(where, column.values[rows])
        else:
            categories[name] = _fit_categories(where, column.take(rows))
    if not (numbers or categories):
        raise TableError(f"{table.path}: no column is left as a feature; name some under features")
    return Preparation(numbers=numbers, categories=categories)


def _fit_numbers(where: str, values: npt.NDArray[np.float64]) -> NumberFit:
    present = values[~np.isnan(values)]
    if len(present) == 0:
        raise TableError(f"{where}: has no value in the training rows; make it ignore under features")
    mean, std = float(present.mean()), float(present.std())
    complete = len(present) == len(values)
    if std <= MIN_STD * abs(mean):
        std = 1.0
        if complete:
            warnings.warn(f"{where}: is constant ({mean:g}) in the training rows", stacklevel=3)
    return NumberFit(mean=mean, std=std, indicator=not complete)


def _fit_categories(where: str, column: Categories) -> CategoryFit:
    counts = np.bincount(column.codes + 1, minlength=len(column.names) + 1)
    if counts[0] == len(column.codes):
        raise TableError(f"{where}: has no value in the training rows; make it ignore under features")
    if counts.max() == len(column.codes):
        warnings.warn(f"{where}: is constant in the training rows", stacklevel=3)
    frequent = [name for name, count in zip(column.names, counts[1:], strict=True) if count >= MIN_COUNT]
    missing: list[str | None] = [None] if counts[0] >= MIN_COUNT else []
    return CategoryFit(known=(*missing, *sorted(frequent)))


def _codes_of(column: Categories, fit: CategoryFit) -> npt.NDArray[np.float32]:
    """Return the code of each of a column's names; the last one is that of the missing value, which has place -1."""
    codes: Mapping[str | None, int] = {name: place for place, name in enumerate(fit.known, start=1)}
    return np.array([codes.get(name, 0) for name in (*column.names, None)], np.float32)
