"""Sets of values that can only be removed together, found while a model computes.

Every value of a tensor carries the number of an *atom*: a channel that some layer produces, an input that some layer
reads, an entry of a parameter. Operations unite atoms. In the end an atom stands for its *unit*, all that must go with
it. Two atoms are special: ``CONSTANT`` for what depends on nothing that could go, and ``WHOLE`` for what must stay.

Labels are int64 tensors of the shape of the values. Along a dimension in which they do not differ they have stride 0,
so that those of a large image take no memory.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own signatures are partly untyped.

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CONSTANT, WHOLE = 0, 1
Numbers = NDArray[np.int64]


class Units:
    """Disjoint sets of atoms; of a set the smallest atom is the unit's number, so that ``WHOLE`` takes over all."""

    def __init__(self) -> None:
        self._parents: Numbers = np.arange(1024)
        self._size = 2

    def atoms(self, count: int) -> Tensor:
        """Return new atoms, each a unit of its own, [count]."""
        start, self._size = self._size, self._size + count
        if self._size > len(self._parents):
            self._parents = np.concatenate(
                [self._parents, np.arange(len(self._parents), max(self._size, 2 * len(self._parents)))]
            )
        return torch.arange(start, self._size)

    def find(self, labels: Tensor) -> Tensor:
        """Return the units of labels, of the same shape, with stride 0 where they do not differ."""
        small = _narrow(labels)
        found = torch.from_numpy(np.asarray(self._roots(small.numpy()))).view(small.shape)
        for dim in range(found.dim()):
            first = found.narrow(dim, 0, 1) if found.shape[dim] > 1 else found
            if found.shape[dim] > 1 and bool((found == first).all()):
                found = first
        return found.expand(labels.shape)

    def unite(self, left: Tensor, right: Tensor) -> None:
        """Unite the labels of two tensors value by value; constants join nothing."""
        left, right = torch.broadcast_tensors(left, right)
        if not left.numel():
            return
        fixed = [dim for dim in range(left.dim()) if left.stride(dim) == right.stride(dim) == 0]
        for dim in fixed:
            left, right = left.narrow(dim, 0, 1), right.narrow(dim, 0, 1)
        pairs = torch.stack([self.find(left).reshape(-1), self.find(right).reshape(-1)])
        pairs = pairs[:, (pairs[0] != pairs[1]) & (pairs > CONSTANT).all(dim=0)]
        one, other = self._roots(pairs.numpy())
        while (apart := one != other).any():
            one, other = one[apart], other[apart]
            above = np.maximum(one, other)
            np.minimum.at(self._parents, above, np.minimum(one, other))
            while ((higher := self._parents[self._parents[above]]) != self._parents[above]).any():
                self._parents[above] = higher  # a long chain becomes flat
            one, other = self._roots(np.stack([one, other]))

    def unite_along(self, labels: Tensor, dims: Iterable[int]) -> Tensor:
        """Unite the labels along dimensions; return them with these dimensions of length 1."""
        for dim in dims:
            if labels.shape[dim] == 0:
                continue
            labels = self.find(labels)
            largest = labels.amax(dim, keepdim=True)
            self.unite(labels, largest)
            labels = largest
        return self.find(labels)

    def keep(self, labels: Tensor) -> None:
        """Let nothing of these labels be removed."""
        self.unite(labels, torch.tensor(WHOLE))

    def _roots(self, atoms: Numbers) -> Numbers:
        while ((above := self._parents[atoms]) != atoms).any():
            atoms = above
        return atoms


def _narrow(labels: Tensor) -> Tensor:
    for dim in range(labels.dim()):
        if labels.stride(dim) == 0 and labels.shape[dim] > 1:
            labels = labels.narrow(dim, 0, 1)
    return labels


def differing(labels: Tensor) -> list[int]:
    """Return the dimensions in which found labels differ."""
    return [dim for dim in range(labels.dim()) if labels.shape[dim] > 1 and labels.stride(dim) != 0]


def aligned(shape: Sequence[int], dims: int) -> list[int]:
    """Return a shape with ones before it, as broadcasting reads it among tensors of ``dims`` dimensions."""
    return [*[1] * (dims - len(shape)), *shape]
