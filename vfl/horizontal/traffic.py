"""Bytes of the messages between the server and its clients.

A simulation moves no bytes, so they are not counted but computed, from the same header and frames that a message
of these vectors has (``vfl/compression/codec.py``): a test packs messages and compares.
"""

from collections.abc import Mapping, Sequence

from vfl.base.costs import Direction, PartyCosts
from vfl.compression.codec import dense_frame_size
from vfl.config.horizontal import HorizontalConfig
from vfl.horizontal.flat import FlatModel
from vfl.messages.messages import MESSAGE_BYTES, PART_BYTES, control


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
