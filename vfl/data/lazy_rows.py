"""A Python program's tensors, arrays and datasets, read by row and never copied as a whole."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Signatures of torch and numpy are partly untyped.

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vfl.base.errors import ConfigError, one_line
from vfl.data.samples import ROWS_AT_ONCE

DIGESTED = 256
"""Number of evenly spaced rows whose digest identifies such data when a run continues."""


class MapDataset(Protocol):
    """A map-style dataset, as ``torch.utils.data`` has it: item i is a tensor or array of one sample's features."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class LazyRows:
    """Some rows of a user's data in place of a tensor [N, ...]: rows are read when a batch asks for them.

    It has those methods of a tensor that `Samples` and a party use. Floating-point numbers become float32. Raises
    ValueError if the data have no rows of one shape.
    """

    def __init__(
        self, name: str, read: Callable[[Tensor], Tensor], rows: Tensor, columns: Sequence[object] = ()
    ) -> None:
        self.name = name
        self.columns = columns
        """Names of a data frame's columns; empty for other data."""
        self.read = read
        self.rows = rows
        first = self[torch.arange(min(1, len(rows)))]
        self.dtype, self.shape = first.dtype, torch.Size([len(rows), *first.shape[1:]])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        try:
            read = self.read(self.rows[rows])
        except Exception as error:  # a user's dataset may fail in any way
            raise ConfigError(f"{self.name}: cannot be read ({type(error).__name__}: {one_line(error)})") from error
        return read.float() if read.is_floating_point() else read

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Read some rows; ``dim`` is 0."""
        return self[rows]

    def dim(self) -> int:
        """Return the number of dimensions, rows included."""
        return len(self.shape)

    def is_floating_point(self) -> bool:
        """Return False: rows are not checked before training, which ends if one is not finite."""
        return False

    def sampled(self) -> Tensor:
        """Return `DIGESTED` evenly spaced rows as a sample of all."""
        return self[torch.linspace(0, len(self) - 1, min(len(self), DIGESTED)).long()]

    def not_finite(self) -> Iterator[tuple[Tensor, str]]:
        """Yield each row [1, ...] that holds NaN, infinity or what is too large for float32, and where it does."""
        for places in torch.arange(len(self)).split(ROWS_AT_ONCE):
            read = self[places]
            for row in (~read.isfinite()).flatten(1).any(1).nonzero()[:, 0].tolist():
                at = (~read[row].isfinite()).nonzero()[0].tolist()
                column = repr(self.columns[at[0]]) if self.columns else ", ".join(map(str, at))
                what = f"row {int(self.rows[places[row]])}, column {column}, holds {float(read[row][tuple(at)]):g}"
                yield read[row : row + 1], what

    def take(self, rows: Tensor) -> "LazyRows":
        """Return some of the rows, not read."""
        return LazyRows(self.name, self.read, self.rows[rows], self.columns)


def rows_of(name: str, data: object) -> LazyRows:
    """Return a user's data as rows. Raises ValueError, one line, if the data have none."""
    read, count = _reader_of(name, data)
    columns = cast(Sequence[object], tuple(getattr(cast(Any, data), "columns", ())))
    rows = LazyRows(name, read, torch.arange(count), columns)
    if len(rows) == 0:
        raise ConfigError(f"{name}: holds no sample")
    if rows.dim() < 2:
        raise ConfigError(f"{name}: a sample needs features: expected [N, ...], got {list(rows.shape)}")
    return rows


def _reader_of(name: str, data: object) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return a function from rows to their features, and the number of rows."""
    if hasattr(data, "tocsr"):  # a sparse matrix of SciPy, whose length is ambiguous
        matrix = cast(Any, data).tocsr()
        return lambda rows: _tensor_of(matrix[rows.numpy()].toarray()), matrix.shape[0]
    if isinstance(data, np.ndarray) or hasattr(data, "to_numpy"):  # item i of a data frame would be a column
        array = _array_of(name, data)
        return lambda rows: _tensor_of(array[rows.numpy()]), len(array)
    if isinstance(data, Tensor):
        tensor = data.detach()
        return lambda rows: tensor.index_select(0, rows).to_dense(), len(tensor)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise ConfigError(f"{name}: {type(data).__name__} is no tensor, array or dataset with a length")
    dataset = cast(MapDataset, data)

    def read(rows: Tensor) -> Tensor:
        items = [_features_of(dataset[row]) for row in cast(list[int], rows.tolist())]
        return torch.stack(items) if items else torch.stack([_features_of(dataset[0])])[:0]

    return read, len(dataset)


def _array_of(name: str, data: object) -> NDArray[Any]:
    """Return an array of numbers; columns of a frame that are numbers and booleans become float64."""
    array: NDArray[Any] = np.asarray(cast(Any, data))
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ConfigError(f"{name}: an array of {array.dtype} holds no numbers") from None
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"{name}: an array of {array.dtype} holds no numbers")
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(cast(Any, data)):
        raise ConfigError(
            f"{name}: {int(np.ma.count_masked(cast(Any, data)))} cells are masked; fill them: filled(...)"
        )
    return array


def _tensor_of(array: NDArray[Any]) -> Tensor:
    """Return a copy that PyTorch can hold: in this machine's byte order, and no wider than float64."""
    kind = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return torch.from_numpy(np.ascontiguousarray(array, kind))


def _features_of(item: Any) -> Tensor:
    """Return a dataset's item; that of a TensorDataset of features is a tuple of one tensor."""
    if isinstance(item, tuple) and any(getattr(each, "shape", ()) for each in cast(tuple[Any, ...], item)):
        tensors = cast(tuple[Any, ...], item)
        if len(tensors) != 1:
            raise ValueError(
                f"an item is a tuple of {len(tensors)}; give a dataset of features only, and the labels as y"
            )
        item = tensors[0]
    return torch.as_tensor(item)
