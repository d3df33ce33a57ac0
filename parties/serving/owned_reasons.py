"""A serving owner's side of reasons: what each of its columns moved in the scores of keys, within its consent.

EXPLAIN names keys that were looked up just before, and ATTRIBUTE belongs to the last EXPLAIN. So both are of the rows
that were scored, also where the table is replaced meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from vfl.base.errors import one_line
from vfl.core.finished_party import FinishedParty
from vfl.data.samples import Samples
from vfl.messages.control import Explained
from vfl.messages.keys import Found, read_keys
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.parties.network.clock_and_threads import SYSTEM, System
from vfl.parties.network.party.owner_notes import OwnReasons

NOTED_S = 60.0
"""Seconds between lines of the log about keys that were explained."""


@dataclass(eq=False)
class ExplainedKeys:
    """Keeps for the owner what its columns moved, and counts the keys in its log."""

    file: OwnReasons
    note: Callable[[str], None]
    """Adds a line to the log of actions."""
    say: Callable[[str], None]
    """Shows a line."""
    machine: System = SYSTEM
    _keys: int = 0
    _noted_s: float = -NOTED_S
    _failed: bool = False

    def keep(self, keys: Sequence[object], moved_nC: Tensor, errors_n: Tensor) -> None:
        """Keep what each column moved; a file that cannot be written is reported once, and spoils no answer."""
        self._keys += len(keys)
        try:
            self.file.append(keys, moved_nC, errors_n)
            if self.machine.now_s() - self._noted_s >= NOTED_S:
                self.flush()
            self._failed = False
        except OSError as error:
            if not self._failed:
                self.say(f"{self.file.path}: cannot be written: {one_line(error)}")
            self._failed = True

    def flush(self) -> None:
        """Note the keys that were explained since the last line. Raises OSError."""
        if self._keys:
            self.note(f"{self._keys} keys")
        self._keys, self._noted_s = 0, self.machine.now_s()

    def close(self) -> None:
        """Note what is left; where the log cannot be written, what ends the process must be seen."""
        with suppress(OSError):
            self.flush()


@dataclass(eq=False)
class OwnedReasons:
    """Answers OFFER, EXPLAIN and ATTRIBUTE for one model."""

    party: FinishedParty
    take: Callable[[int], Found | None]
    """Counts keys; returns why the owner does not agree to answer for them, if so."""
    hashed: bool
    """Keys travel as HMAC."""
    _rows: tuple[Samples, Tensor, list[str]] | None = None
    """Those of the last EXPLAIN, and their keys."""

    def answer(self, request: Message, samples: Samples | None, places: Mapping[bytes, int]) -> tuple[Part, ...]:
        """Return the parts of the reply. Raises MessageError for a request that is not due or agreed to.

        ``samples`` and ``places`` are those of the last look-up, the places by key.
        """
        if request.kind is Kind.OFFER:
            return (self.party.offer().part(),)
        if self.party.offer().tells == "nothing":
            raise MessageError("the reasons of scores are asked for; network.consent.reasons does not agree")
        wanted = Explained.of(request)
        if request.kind is Kind.EXPLAIN:
            return (self._explain(wanted, read_keys(request.only(PartKind.KEYS)), samples, places),)
        if self._rows is None:
            raise MessageError("ATTRIBUTE came without an EXPLAIN that was answered")
        (rows, rows_n, keys), self._rows = self._rows, None
        return self.party.attribute(rows, rows_n, wanted, request.only(PartKind.GRADIENT), keys)

    def _explain(
        self, wanted: Explained, keys: Sequence[bytes], samples: Samples | None, places: Mapping[bytes, int]
    ) -> Part:
        """Return the paths to the rows of keys; none where the owner declines, or has no such row any more."""
        self._rows = None
        if (wanted.start, wanted.stop) != (0, len(keys)):
            raise MessageError(f"EXPLAIN names samples {wanted.start} to {wanted.stop} and {len(keys)} keys")
        # A point of a path reveals as much as a row does.
        declined = self.take(len(keys) * wanted.steps)
        if declined is not None or samples is None or not all(key in places for key in keys):
            return Part(PartKind.EMBEDDING, b"")
        rows_n = torch.tensor([places[key] for key in keys])
        self._rows = samples, rows_n, [key.hex() if self.hashed else key.decode() for key in keys]
        return self.party.embed_paths(samples, rows_n, wanted.steps)
