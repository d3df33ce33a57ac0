"""What a serving party asks for its own rows by key: a file, a database and an HTTP service answer alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vfl.core.finished_party import FinishedParty
from vfl.data.samples import Samples


@dataclass(frozen=True, eq=False)
class FoundRows:
    """Rows of a table, prepared for the party's model, and where each key's is."""

    raw: Samples
    samples: Samples
    places: dict[bytes, int]
    known_as: tuple[list[bytes], ...]
    """Keys of the rows at each other owner that uses other keys, in the order of the owners' names."""
    away: frozenset[bytes] = frozenset()
    """Keys of which it is not known whether there is a row."""


class RowsByKey(Protocol):
    """Where an owner's rows to be scored are."""

    def find(self, party: FinishedParty, keys: Sequence[bytes]) -> FoundRows:
        """Return rows as the party's model takes them, those of ``keys`` among them as far as they are there.

        What is wrong with a row, or with where it is, is told in the owner's log and raises nothing.
        """
        ...

    def is_at_hand(self, party: FinishedParty) -> bool:
        """Return whether rows are found for this party without waiting or preparing anything."""
        ...

    def close(self) -> None:
        """End what looks after the rows."""
        ...
