"""Reasons of scores by key: what each owner moved, and what each of its columns moved as far as it agrees.

The messages are those of a prediction (`vfl.predict.reasons`); EXPLAIN brings keys. Owners are asked beside each other,
and each once for many keys. One that is slow, lost or has not agreed leaves a score without its columns' reasons.

Shapes: as in `vfl.predict.reasons`; N the keys of a batch.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch's own signatures are partly untyped.

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from vfl.base.errors import Diverged, PeerLost
from vfl.core.link import read
from vfl.core.parties import PartyProxy
from vfl.core.row_by_row import is_light
from vfl.messages.control import Explained, ReasonsOffer
from vfl.messages.keys import keys_part
from vfl.messages.messages import Kind, Message, PartKind
from vfl.parties.serving.request_queue import Key, ReasonsAsked
from vfl.parties.serving.served_version import KeyRows, Served, Version, wait_for_replies
from vfl.predict.reasons import (
    EXACT_OWNERS,
    ORDERS,
    ColumnReasons,
    Reasons,
    ReasonsWanted,
    class_of,
    explained_classes,
    owners_of,
    pieces_of,
    read_path,
    read_told,
    score_of,
    slopes_part,
)

ColumnsDisclosed = Literal["amounts", "ranks", "itself", "nothing", "declined", "away", "none"]
"""What an owner disclosed of its columns for a key: amounts; places; that it keeps them itself; nothing, as it does not
agree; it declined, as its limit is reached; it was away or slow; it has no row."""
STEPS = ReasonsWanted().steps
"""Points of the path of a row."""
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ScoredBatch:
    """Keys that were scored together, or some of them."""

    version: Version
    keys: Sequence[Key]
    found: Mapping[str, KeyRows]
    embeddings: Mapping[str, Tensor]
    """Embeddings [N, D] by party, with replacements."""
    outputs_NC: Tensor


@dataclass(frozen=True, eq=False)
class ServedReasons:
    """Reasons of some keys, each for a class or, with None, the one that is explained by default."""

    places: Mapping[tuple[Key, int | None], int]
    reasons: Reasons
    columns_told: Mapping[str, Sequence[ColumnsDisclosed]]
    """By party, of each key what it disclosed of its columns."""

    def told(self, key: Key, asked: ReasonsAsked) -> dict[str, Any] | None:
        """Return a key's reasons as answers have them; None if it has no score."""
        place, found = self.places.get((key, asked.of)), self.reasons
        if place is None:
            return None
        of = found.classes[int(found.of_N[place])] if found.classes else None
        answer: dict[str, Any] = {
            "of": of,
            "score": _number(found.score_N[place]),
            "without_owners": _number(found.without_N[place]),
            "owners": dict(zip(found.owners, map(_number, found.moved_NK[place]), strict=True)),
            "disclosed": {name: told[place] for name, told in self.columns_told.items()},
        }
        if asked.most:
            return answer | {"lowered": found.lowered(place, asked.most)}
        by_kind: dict[str, dict[str, Any]] = {"columns": {}, "ranks": {}, "reference": {}, "error": {}}
        for name, own in found.columns.items():
            if not bool(own.error_N[place].isnan()):
                amounts = map(_number, own.moved_NC[place])
                if own.names:
                    by_kind["ranks" if own.ranked else "columns"][name] = dict(zip(own.names, amounts, strict=True))
                by_kind["reference"][name] = _number(own.reference_N[place])
                by_kind["error"][name] = _number(own.error_N[place])
        return answer | by_kind

    def outcomes(self) -> Counter[tuple[str, ColumnsDisclosed]]:
        """Return how many keys got what, by party."""
        return Counter((name, told) for name, each in self.columns_told.items() for told in each)


@dataclass(frozen=True, eq=False)
class Explainer:
    """Explains scores with the parties that are connected."""

    parties: Mapping[str, Served]
    lose: Callable[[str, PeerLost], None]
    """Called with a party that is lost."""
    timeout_s: float
    """Seconds that the parties have for the reasons of a batch."""

    async def explain(self, batch: ScoredBatch, wanted: Sequence[tuple[Key, int | None]]) -> ServedReasons:
        """Return the reasons of those of the wanted keys that are in the batch, each for its class."""
        version = batch.version
        rows = {key: row for row, key in enumerate(batch.keys)}
        explained = [*dict.fromkeys((key, of) for key, of in wanted if key in rows)]
        rows_N = torch.tensor([rows[key] for key, _ in explained])
        outputs_NC = batch.outputs_NC[rows_N].cpu()
        of_N = explained_classes(version.task, outputs_NC, class_of(version.task, None))
        given_N = torch.tensor([-1 if of is None else of for _, of in explained])
        of_N = torch.where(given_N >= 0, given_N, of_N)
        embeddings = {name: own_ND[rows_N] for name, own_ND in batch.embeddings.items()}
        mine = ScoredBatch(version, [key for key, _ in explained], batch.found, embeddings, outputs_NC)
        score_N, until_s = score_of(version.task, outputs_NC, of_N), time.monotonic() + self.timeout_s
        columns_told = asyncio.gather(
            *(self._columns(mine, party, of_N, score_N, until_s) for party in version.joint.parties)
        )
        try:
            await asyncio.sleep(0)  # the owners are asked now, and compute while what each moved is computed here
            owners = len(embeddings)
            sets = 2**owners if owners <= EXACT_OWNERS else 2 * ORDERS * owners
            moving = partial(owners_of, version.joint, embeddings, version.instead, outputs_NC, of_N)
            without_N, _, moved_NK = await _computed(version, sets * len(explained), moving)
            told = dict(zip(version.joint.names, await columns_told, strict=True))
        finally:
            columns_told.cancel()
        columns = {name: own.columns for name, own in told.items() if own.columns is not None}
        predictions_NC = version.task.predictions(outputs_NC)
        reasons = Reasons(version.task.names, of_N, score_N, without_N, (*told,), moved_NK, predictions_NC, columns)
        return ServedReasons(
            {each: place for place, each in enumerate(explained)},
            reasons,
            {name: own.told for name, own in told.items()},
        )

    async def _columns(
        self, mine: ScoredBatch, party: PartyProxy, of_N: Tensor, score_N: Tensor, until_s: float
    ) -> "_Disclosure":
        """Return what one owner discloses of its columns, as far as it comes in time."""
        found = mine.found[party.name]
        names, outcomes = [found.names.get(key, b"") for key in mine.keys], [found.outcome(key) for key in mine.keys]
        told = _Disclosure([outcome if outcome in ("none", "declined") else "away" for outcome in outcomes])
        here = [row for row, outcome in enumerate(outcomes) if outcome == "row"]
        try:
            offer = await self._offer(party.name, until_s)
            if offer.tells == "nothing":
                told.note(here, "nothing")
                return told
            told.columns = _nothing_yet(offer, len(mine.keys))
            for piece in pieces_of(len(here), STEPS, party.receiver.width) if here else ():
                rows = [here[place] for place in piece.tolist()]
                asked = Explained(start=0, stop=len(rows), steps=STEPS)
                request = Message(Kind.EXPLAIN, parts=(asked.part(), keys_part([names[row] for row in rows])))
                path = await self._asked(party.name, request, partial(_read_path, party, len(rows)), until_s)
                if path is None:
                    told.note(rows, "declined")
                    continue
                of_n, score_n = of_N[rows], score_N[rows]
                others = {name: own_ND[rows] for name, own_ND in mine.embeddings.items()}
                sloping = partial(slopes_part, mine.version.joint, party.name, path, others, of_n, score_n, asked)
                parts, reference_n = await _computed(mine.version, 4 * STEPS * len(rows), sloping)
                request = Message(Kind.ATTRIBUTE, parts=parts)
                came = await self._asked(party.name, request, partial(read_told, offer, len(rows)), until_s)
                told.columns.moved_NC[rows], told.columns.error_N[rows] = came
                told.columns.reference_N[rows] = reference_n
                told.note(rows, offer.tells)
        except (_Away, Diverged):
            pass  # what came before stays
        return told

    async def _offer(self, name: str, until_s: float) -> ReasonsOffer:
        """Return what a party discloses of its columns, which it is asked once. Raises _Away."""
        served = self._served(name)
        served.offer = served.offer or await self._asked(name, Message(Kind.OFFER), ReasonsOffer.of, until_s)
        return served.offer

    async def _asked(self, name: str, request: Message, parse: Callable[[Message], T], until_s: float) -> T:
        """Return what ``parse`` makes of a party's reply. Raises _Away if none comes in time, or one that is wrong."""
        served = self._served(name)
        try:
            if not served.usable:
                raise _Away
            reply = served.send(request)
            await wait_for_replies([reply], until_s)
            if not reply.done():
                raise _Away
            return read(served.link, reply, parse)
        except PeerLost as lost:
            self.lose(name, lost)
            raise _Away from None

    def _served(self, name: str) -> Served:
        if name not in self.parties:
            raise _Away
        return self.parties[name]


class _Away(Exception):  # noqa: N818 - says what happened
    """A party cannot be asked, or does not answer in time."""


@dataclass(eq=False)
class _Disclosure:
    """What an owner disclosed of its columns."""

    told: list[ColumnsDisclosed]
    """Of each key."""
    columns: ColumnReasons | None = field(default=None)

    def note(self, rows: Sequence[int], told: ColumnsDisclosed) -> None:
        for row in rows:
            self.told[row] = told


def _nothing_yet(offer: ReasonsOffer, rows: int) -> ColumnReasons:
    moved_NC = torch.full((rows, len(offer.columns)), math.nan, dtype=torch.float64)
    reference_N, error_N = (torch.full((rows,), math.nan, dtype=torch.float64) for _ in range(2))
    return ColumnReasons(offer.columns, offer.tells == "ranks", moved_NC, reference_N, error_N)


def _read_path(party: PartyProxy, rows: int, reply: Message) -> Tensor | None:
    """Return the embeddings of PATHS; None where the owner declines. Raises MessageError for others."""
    return read_path(party.receiver, rows, STEPS, reply) if len(reply.only(PartKind.EMBEDDING)) else None


async def _computed(version: Version, rows: int, compute: Callable[[], T]) -> T:
    """Return what is computed of so many rows at the head, in a thread if it takes long."""
    return compute() if is_light(version.macs, rows) else await asyncio.to_thread(compute)


def _number(value: Tensor) -> float | None:
    """Return a number with nine digits, None for what JSON cannot say."""
    return float(f"{float(value):.9g}") if bool(value.isfinite()) else None
