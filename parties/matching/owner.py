"""An owner's side of a match: its keys as points, others' points times its scalar, and its rows in the common order."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vfl.data.tables.columns import Indices
from vfl.data.tables.matching_input import OwnKeys, shuffled
from vfl.data.tables.matching_result import Match, read_match, write_match
from vfl.messages.matching import CHUNK, Brought, ListRange, Matched, OwnList
from vfl.messages.messages import REPLIES, Buffer, Kind, Message, MessageError, Part, PartKind
from vfl.parties.matching.group import POINT_BYTES, SUMS, new_scalar, prove, public_key, raise_keys, raise_points

S = TypeVar("S", Sequence[str], Buffer)
PLACE = np.dtype("<i4")
"""Type of an index in messages; -1 for none."""
MOST_AT_ONCE = 1 << 20
"""Most keys or samples that a message may ask for."""


@dataclass(eq=False)
class MatchingOwner:
    """Answers one match, with scalars and orders that are drawn for it and never leave memory."""

    name: str
    keys: OwnKeys
    """The owner's input to the match."""
    join: str
    """inner or left"""
    path: Path
    """File of the result."""
    pool: Executor
    """Processes that multiply points."""
    workers: int
    """Number of parts of a message computed at the same time."""
    most_keys: int
    """Most keys of another owner's list, and most samples: network.consent.keys."""
    others: int
    """Number of other owners, whose lists pass this one."""
    raised: int = field(default=0, init=False)
    """Number of others' points multiplied so far, sums in proofs included."""

    def __post_init__(self) -> None:
        self._scalars = [new_scalar() for _ in self.keys.lists]
        self._orders = [shuffled(len(each)) for each in self.keys.lists]
        self._samples = _sample_order(self.keys)
        self._due = [0] * len(self.keys.lists)
        """Sums of what each scalar has multiplied whose proofs are due."""
        self._places: list[Indices] = []
        """Parts of the result received so far."""
        self._masks: list[list[npt.NDArray[np.bool_]]] = []
        """Label owner only: the same parts' masks, one per other owner, True if it has a row."""

    def handle(self, request: Message) -> Message:
        """Answer a message. Raises MessageError for one that is not due, OSError if the result cannot be saved."""
        return Message(REPLIES[request.kind], request.round_index, request.exchange, (*self._answer(request),))

    def _answer(self, request: Message) -> tuple[Part, ...]:
        match request.kind:
            case Kind.MATCH:
                publics = b"".join(map(public_key, self._scalars))
                return (self._brought().part(), Part(PartKind.POINTS, publics))
            case Kind.LIST:
                wanted = ListRange.of(request)
                order = self._orders[self._own(wanted)][self._within(wanted, len(self._orders[wanted.list]))]
                keys = self.keys.lists[wanted.list].take(order).to_pylist()
                return (Part(PartKind.POINTS, self._in_parts(raise_keys, wanted.list, keys, 1)),)
            case Kind.RAISE:
                place, points = self._own(OwnList.of(request)), bytes(request.only(PartKind.POINTS))
                self._count(len(points) // POINT_BYTES)
                self._due[place] += min(len(points) // POINT_BYTES, SUMS)
                return (Part(PartKind.POINTS, self._in_parts(raise_points, place, points, POINT_BYTES)),)
            case Kind.PROVE:
                place, points = self._own(OwnList.of(request)), request.only(PartKind.POINTS)
                self._count_sums(place, len(points) // POINT_BYTES)
                return (Part(PartKind.PROOF, prove(self._scalars[place], points)),)
            case Kind.PLACES if self.keys.known_as is not None:
                return (Part(PartKind.PLACES, self._placed(ListRange.of(request))),)
            case Kind.MATCHED:
                part = Matched.of(request)
                self._take(part, read_places(request.only(PartKind.PLACES)), request.payloads(PartKind.PRESENCE))
                return ()
            case _:
                raise MessageError(f"{self.name} cannot answer {request.kind.name}")

    def _brought(self) -> Brought:
        leads, tested = self.keys.known_as is not None, self.keys.tested
        return Brought(
            order=_order_held(self.path, self.name, self.keys, self.join),
            lists=tuple(map(len, self.keys.lists)),
            samples=len(self.keys.rows) if leads else None,
            tested=None if tested is None else int(tested.sum()),
            known_as=dict(self.keys.known_as) if self.keys.known_as is not None else None,
        )

    def _own(self, wanted: OwnList) -> int:
        if wanted.list >= len(self.keys.lists):
            raise MessageError(f"list {wanted.list} is asked for, {self.name} has {len(self.keys.lists)}")
        return wanted.list

    def _within(self, wanted: ListRange, size: int) -> slice:
        if not wanted.start <= wanted.stop <= min(size, wanted.start + MOST_AT_ONCE):
            raise MessageError(
                f"{wanted.start} to {wanted.stop} of {size} is asked for, at most {MOST_AT_ONCE} at once"
            )
        return slice(wanted.start, wanted.stop)

    def _count(self, points: int) -> None:
        """Count others' points; raise MessageError beyond all lists and their sums: more could test guesses."""
        self.raised += points
        sums = min(self.most_keys, SUMS * -(-self.most_keys // CHUNK))
        if self.raised > self.others * (self.most_keys + sums):
            lists = f"{self.others} lists of {self.most_keys:,} keys"
            raise MessageError(f"{self.raised:,} points came to be multiplied, network.consent.keys allows {lists}")

    def _count_sums(self, place: int, sums: int) -> None:
        """Count sums to prove; raise MessageError beyond those of what was multiplied: a proof reveals a product."""
        if sums > self._due[place]:
            raise MessageError(f"a proof of {sums} sums came where {self._due[place]} are due")
        self._due[place] -= sums
        self._count(sums)

    def _in_parts(self, multiply: Callable[[bytes, S], bytes], place: int, items: S, width: int) -> bytes:
        step = max(1, -(-len(items) // width // self.workers)) * width
        parts = [items[start : start + step] for start in range(0, len(items), step)]
        try:
            return b"".join(self.pool.map(partial(multiply, self._scalars[place]), parts))
        except BrokenProcessPool:
            raise OSError("a process that multiplied points was killed; start again") from None

    def _placed(self, wanted: ListRange) -> bytes:
        order, samples = self._orders[self._own(wanted)], self._samples[self._within(wanted, len(self._samples))]
        place_of = np.empty(len(order), np.int64)
        place_of[order] = np.arange(len(order))
        return place_of[self.keys.places[wanted.list][samples]].astype(PLACE).tobytes()

    def _take(self, part: Matched, places: Indices, masks: Sequence[Buffer]) -> None:
        """Store a part of the result, and write the file with the last one."""
        came = sum(map(len, self._places))
        if part.samples > self.most_keys:
            raise MessageError(f"{part.samples:,} samples are matched, network.consent.keys allows {self.most_keys:,}")
        if not len(places) and part.samples:
            raise MessageError("a part of the result came without a place")
        if part.start != came or came + len(places) > part.samples:
            raise MessageError(f"{len(places)} places from {part.start} on came where {part.samples - came} are due")
        others = sorted(self.keys.known_as or {})  # as JSON has them
        if [len(mask) for mask in masks] != [len(places)] * len(others):
            raise MessageError(f"{len(masks)} masks came where {len(others)} of {len(places)} samples are due")
        order = self._orders[0] if self.keys.known_as is None else self._samples
        if len(places) and (places.min() < -1 or places.max() >= len(order)):
            raise MessageError(f"a place outside the {len(order)} entries of the list came")
        self._places.append(np.append(self.keys.rows[order], -1)[places])
        self._masks.append([np.frombuffer(mask, np.uint8).astype(bool) for mask in masks])
        if came + len(places) == part.samples:
            self._write(part, others)

    def _write(self, part: Matched, others: Sequence[str]) -> None:
        rows = np.concatenate(self._places)
        masks = {
            owner: np.concatenate(each) for owner, each in zip(others, zip(*self._masks, strict=True), strict=True)
        }
        self._places.clear()
        self._masks.clear()
        write_match(self.path, Match(self.name, part.order, self.keys.digest, self.join, rows, part.tested, masks))


def read_places(payload: Buffer) -> Indices:
    """Return the indices in a message's bytes. Raises MessageError for other bytes."""
    if len(payload) % PLACE.itemsize:
        raise MessageError(f"{len(payload)} bytes are no places of {PLACE.itemsize} bytes")
    return np.frombuffer(payload, PLACE).astype(np.int64)


def _sample_order(keys: OwnKeys) -> Indices:
    """Return the label owner's samples in an unpredictable order, the test samples last."""
    order = shuffled(len(keys.rows))
    return order if keys.tested is None else order[np.argsort(keys.tested[order], kind="stable")]


def _order_held(path: Path, name: str, keys: OwnKeys, join: str) -> str | None:
    """Return the order of an earlier match that still fits, or None."""
    try:
        held = read_match(path, name)
    except ValueError:
        return None
    fits = (held.keys, held.join) == (keys.digest, join)
    if keys.known_as is not None:
        same_test = held.test is None if keys.tested is None else held.tests(keys.rows[keys.tested])
        fits = fits and held.others.keys() == keys.known_as.keys() and same_test
    return held.order if fits else None
