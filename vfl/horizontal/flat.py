"""A model as two vectors, so that every algorithm is arithmetic on vectors.

Shapes: P entries of all parameters, Q entries of all floating-point buffers (BatchNorm's running statistics).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from vfl.base.costs import Direction, PartyCosts
from vfl.compression.codec import dense_frame_size
from vfl.horizontal.config import HorizontalConfig
from vfl.messages.messages import MESSAGE_BYTES, PART_BYTES, control

ALIGNMENT = 16
"""Multiple to which every tensor's offset is rounded up, in entries: 64 bytes, so that kernels get aligned
addresses."""


class FlatModel:
    """A module whose trained parameters are views of ``weights_P``, and its floating-point buffers of ``statistics_Q``.

    The vectors hold zeros between the tensors (see ``ALIGNMENT``), which no arithmetic of an algorithm changes. Frozen
    parameters and integer buffers (BatchNorm's counters) stay the module's own: they are never sent nor averaged. Move
    the module to its device first. Raises ValueError if either vector would mix several types, or nothing is trained.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise ValueError(
                "models.classifier: all its parameters are frozen, or it has none: there is nothing to train"
            )
        self.buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        self.weights_P, self._weight_slots = _flatten(self.parameters)
        self.statistics_Q, self._statistic_slots = _flatten(self.buffers)
        self.weight_count = sum(parameter.numel() for parameter in self.parameters)
        self.statistic_count = sum(buffer.numel() for buffer in self.buffers)

    def load(self, weights_P: Tensor, statistics_Q: Tensor) -> None:
        """Copy weights and statistics into the module."""
        self.weights_P.copy_(weights_P)
        self.statistics_Q.copy_(statistics_Q)

    def learned(self) -> dict[str, Tensor]:
        """Return the module's learned tensors by name: all but integer buffers."""
        return {name: tensor for name, tensor in self.module.state_dict().items() if tensor.is_floating_point()}

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return the views of a vector [..., P] that belong to each parameter [..., *its shape]."""
        return _views(vector, self._weight_slots, self.parameters)

    def split_statistics(self, vector: Tensor) -> list[Tensor]:
        """Return the views of a vector [..., Q] that belong to each floating-point buffer [..., *its shape]."""
        return _views(vector, self._statistic_slots, self.buffers)


def _views(vector: Tensor, slots: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    return [
        vector[..., start : start + tensor.numel()].view((*vector.shape[:-1], *tensor.shape))
        for start, tensor in zip(slots, tensors, strict=True)
    ]


def _flatten(tensors: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Move tensors into one new vector, turn each into a view of it, and return the vector and the offsets."""
    slots: list[int] = []
    size = 0
    for tensor in tensors:
        slots.append(size)
        size += -(-tensor.numel() // ALIGNMENT) * ALIGNMENT
    like = tensors[0] if tensors else torch.empty(0)  # a model without BatchNorm has no buffers: an empty vector
    vector = torch.zeros(size, dtype=like.dtype, device=like.device)
    for start, tensor in zip(slots, tensors, strict=True):
        if tensor.dtype != vector.dtype:
            raise ValueError(
                f"models.classifier: its weights or buffers mix {vector.dtype} and {tensor.dtype}; use one"
            )
        view = vector[start : start + tensor.numel()].view(tensor.shape)
        view.copy_(tensor.detach())
        tensor.data = view  # the Parameter stays the same object: the optimizer and the module go on holding it
    return vector, slots


def frame_bytes(entries: int) -> int:
    """Return the bytes of a dense float32 vector as a part of a message."""
    return PART_BYTES + dense_frame_size((entries,))


def book_message(
    costs: PartyCosts, direction: Direction, entries: Mapping[str, int], settings: Mapping[str, float]
) -> None:
    """Record one message of named vectors with these numbers of ``entries``; nothing is sparsified."""
    for name, count in entries.items():
        size = frame_bytes(count)
        costs.record_bytes(direction, name, size, size)
    size = MESSAGE_BYTES + control(settings).size
    costs.record_bytes(direction, "control", size, size)


def message_bytes(horizontal: HorizontalConfig, model: FlatModel, vectors: Sequence[str]) -> int:
    """Return ``transfer_bytes`` of vectors of a model's size, and of its statistics if they are sent."""
    statistics = [model.statistic_count] if horizontal.buffers == "average" and model.statistic_count else []
    return transfer_bytes([model.weight_count] * len(vectors) + statistics)


def transfer_bytes(vectors: Sequence[int]) -> int:
    """Return the bytes of a message of vectors, for the simulated seconds, without its few settings."""
    return MESSAGE_BYTES + sum(frame_bytes(entries) for entries in vectors)
