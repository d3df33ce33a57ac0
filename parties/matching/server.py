"""The server's side of a match: lists pass all their owners, the server joins the results, each owner gets its rows.

A list passes in chunks, so that no more than one of each is under way; results are kept, 33 bytes a key.

No owner can compare two lists that it sees. The first that raises a list sees it under its holder's scalar, which no
other list has; every later one sees it under a factor of the server that is new with each pass, and removed at the end.
Each owner proves that it raised every point by the one scalar of its public key (``group.py``).
"""

import hashlib
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from vfl.base.errors import PeerLost
from vfl.core.link import PartyLink, read
from vfl.data.tables.arrow import Column, pa, pc
from vfl.data.tables.columns import Indices
from vfl.messages.matching import CHUNK, MOST_LISTS, Brought, ListRange, Matched, OwnList
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.parties.matching.group import (
    POINT_BYTES,
    check_points,
    draw_weights,
    inverse_of_product,
    is_proven,
    new_scalar,
    raise_points,
    split_points,
    weighted_sums,
)
from vfl.parties.matching.owner import PLACE, read_places

How = Literal["inner", "left"]
K = TypeVar("K")
T = TypeVar("T")
PLACES_CHUNK = 1 << 20


@dataclass(frozen=True)
class MatchOutcome:
    """Result of a match, as the server knows it."""

    samples: int
    missing: Mapping[str, int]
    """Number of samples for which an owner has no row, by owner."""
    again: bool
    """All owners had the result of an earlier match, so nothing was done."""


class At(NamedTuple):
    """An owner, and one of its lists; owners who use the same key have a scalar for it there."""

    owner: str
    place: int = 0


@dataclass(frozen=True)
class KeyList:
    """A list of keys in transit."""

    holder: At
    size: int
    others: tuple[At, ...]
    """Owners that it passes."""


@dataclass(frozen=True)
class Offer:
    """An owner's input."""

    brought: Brought
    publics: tuple[bytes, ...]
    """Public key of each list."""


@dataclass(eq=False)
class MatchingPeer:
    """An owner as seen by the server's threads, which ask it one after another."""

    link: PartyLink
    stopped: threading.Event
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, kind: Kind, take: Callable[[Message], T], *parts: Part) -> T:
        """Return ``take`` of the answer. Raises PeerLost if the party is lost, also because of its answer."""
        request = Message(kind, parts=parts)
        with self._lock:
            if self.stopped.is_set():
                raise PeerLost("the match has ended")
            reply = self.link.send(request)
            wait([reply])  # it works for another thread while this one looks at what came
        return read(self.link, reply, take)


Sums = list[tuple[bytes, bytes]]
"""Sums of points before and after they passed an owner."""


@dataclass
class Passing:
    """A list that passes its owners.

    ``progress`` is called with the number of points that were computed.
    """

    peers: Mapping[str, MatchingPeer]
    publics: Mapping[At, bytes]
    keys: KeyList
    chunk: int
    progress: Callable[[int], None]

    def __post_init__(self) -> None:
        self._blinds = {at: new_scalar() for at in self.keys.others[1:]}
        """Change of the server's factor, by owner that sees the list under a factor."""
        self._sums: dict[At, Sums] = {at: [] for at in self.keys.others}

    def run(self) -> bytes:
        """Return the list under all owners' scalars, in its holder's order. Raises PeerLost as ``MatchingPeer.ask``."""
        result, unblind = bytearray(), inverse_of_product(self._blinds.values())
        for start in range(0, self.keys.size, self.chunk):
            points = self._part(start, min(start + self.chunk, self.keys.size))
            for at in self.keys.others:
                points = self._pass(at, raise_points(self._blinds[at], points) if at in self._blinds else points)
            result += raise_points(unblind, points) if self._blinds else points
        for at, sums in self._sums.items():
            self._require_proof(at, sums)
        return bytes(result)

    def _part(self, start: int, stop: int) -> bytes:
        holder, place = self.keys.holder
        wanted = ListRange(list=place, start=start, stop=stop).part()
        points = self.peers[holder].ask(
            Kind.LIST, lambda reply: check_points(reply.only(PartKind.POINTS), stop - start), wanted
        )
        self.progress(stop - start)
        return points

    def _pass(self, at: At, points: bytes) -> bytes:
        count = len(points) // POINT_BYTES

        def take(reply: Message) -> bytes:
            raised = bytes(reply.only(PartKind.POINTS))
            weights = draw_weights(count)  # now that the products are known
            after = weighted_sums(raised, weights)  # first: it checks the points
            self._sums[at] += zip(weighted_sums(points, weights), after, strict=True)
            return raised

        own = OwnList(list=at.place).part()
        raised = self.peers[at.owner].ask(Kind.RAISE, take, own, Part(PartKind.POINTS, points))
        self.progress(count)
        return raised

    def _require_proof(self, at: At, sums: Sums) -> None:
        """Require an owner's proof that it raised sums of points; raise PeerLost, blaming it, for a wrong one."""
        pairs = [each for each in sums if any(each)]  # the identity raised is the identity
        if not pairs:
            return
        before, after = (b"".join(each) for each in zip(*pairs, strict=True))

        def check(reply: Message) -> None:
            if not all(map(all, pairs)) or not is_proven(reply.only(PartKind.PROOF), self.publics[at], before, after):
                raise MessageError("its points are not those that it was given times the scalar of its public key")

        self.peers[at.owner].ask(Kind.PROVE, check, OwnList(list=at.place).part(), Part(PartKind.POINTS, before))


def match_keys(
    links: Sequence[PartyLink],
    leader: str,
    how: How,
    most_keys: int,
    progress: Callable[[float, int], None] = lambda share, keys: None,
    chunk: int = CHUNK,
) -> MatchOutcome:
    """Match the owners' keys and give each its result.

    If all of them have the result of the same earlier match, nothing is done. Raises PeerLost for an owner that is lost
    or misbehaves.

    Args:
        links: to all owners.
        leader: the label owner.
        how: all of its samples (left), or those that all owners have (inner).
        most_keys: in a list, and most samples.
        progress: called with the share of the work that is done, and the number of keys in all lists.
        chunk: points of a message.
    """
    stopped = threading.Event()
    peers = {link.name: MatchingPeer(link, stopped) for link in links}
    with ThreadPoolExecutor(MOST_LISTS) as threads:
        try:
            offers = _at_once(
                threads, {n: partial(_offer, each, {*peers}, leader, most_keys) for n, each in peers.items()}
            )
            orders = {each.brought.order for each in offers.values()}
            if len(orders) == 1 and None not in orders:
                return MatchOutcome(0, {}, again=True)
            brought = offers[leader].brought
            publics = {At(n, place): key for n, each in offers.items() for place, key in enumerate(each.publics)}
            lists = key_lists({name: each.brought for name, each in offers.items()}, leader)
            advance = _counted(progress, lists)
            raised = _at_once(threads, {each: Passing(peers, publics, each, chunk, advance).run for each in lists})
            rows = _join(peers, leader, brought, {each: raised[each] for each in lists}, how)
            tested = None
            if brought.tested is not None:
                tested = int((rows[leader] >= (brought.samples or 0) - brought.tested).sum())
            part = Matched(order=order_digest(rows), samples=len(rows[leader]), start=0, tested=tested)
            held = [rows[owner] >= 0 for owner in sorted(brought.known_as or {})]
            masks = {name: held if name == leader else [] for name in peers}
            _at_once(threads, {n: partial(_deliver, peer, part, rows[n], masks[n]) for n, peer in peers.items()})
            return MatchOutcome(part.samples, {name: int((each < 0).sum()) for name, each in rows.items()}, again=False)
        finally:
            stopped.set()


def key_lists(brought: Mapping[str, Brought], leader: str) -> list[KeyList]:
    """Return the lists to pass, the label owner's first; each goes to all who know samples by the same key."""
    known_as = brought[leader].known_as or {}
    groups: dict[int, list[str]] = {}
    for owner, place in known_as.items():
        groups.setdefault(place, []).append(owner)
    lists = [
        KeyList(At(leader, place), brought[leader].lists[place], tuple(map(At, group)))
        for place, group in groups.items()
    ]
    for owner, place in known_as.items():
        others = (At(leader, place), *(At(other) for other in groups[place] if other != owner))
        lists.append(KeyList(At(owner), brought[owner].lists[0], others))
    return lists


def _offer(peer: MatchingPeer, names: Collection[str], leader: str, most_keys: int) -> Offer:
    name = peer.link.name

    def take(reply: Message) -> Offer:
        brought = Brought.of(reply)
        if (brought.known_as is not None) != (name == leader):
            raise MessageError(f"known_as: must come from {leader}, the owner of the label, and from no other")
        if brought.known_as is not None and {*brought.known_as} != {*names} - {name}:
            raise MessageError(f"known_as: names {', '.join(brought.known_as)}, not all other owners")
        for what, size in (("keys in a list", max(brought.lists)), ("samples", brought.samples or 0)):
            if size > most_keys:
                raise MessageError(
                    f"it brings {size:,} {what}, network.consent.keys of the server allows {most_keys:,}"
                )
        publics = check_points(reply.only(PartKind.POINTS), len(brought.lists))
        return Offer(brought, tuple(split_points(publics)))

    return peer.ask(Kind.MATCH, take)


def _join(
    peers: Mapping[str, MatchingPeer], name: str, brought: Brought, raised: Mapping[KeyList, bytes], how: How
) -> dict[str, Indices]:
    """Return each owner's indices by sample; ``name`` has the label. Raises PeerLost for duplicate keys."""
    points = {each: as_column(of_list) for each, of_list in raised.items()}
    for each, column in points.items():
        if pc.count_distinct(column).as_py() < len(column):
            twice = MessageError("a point comes twice in its list: its keys are not all different")
            peers[each.holder.owner].link.reject_reply(twice)
    known_as = brought.known_as or {}
    own = {each.holder.owner: column for each, column in points.items() if each.holder.owner != name}
    theirs = {each.holder.place: column for each, column in points.items() if each.holder.owner == name}
    places = {place: _places(peers[name], place, brought.samples or 0, len(column)) for place, column in theirs.items()}
    return join_points(
        name,
        {owner: theirs[place] for owner, place in known_as.items()},
        {owner: places[place] for owner, place in known_as.items()},
        own,
        how,
    )


def _places(leader: MatchingPeer, place: int, samples: int, size: int) -> Indices:
    """Return the samples' indices in one of the label owner's lists."""
    parts = [np.empty(0, np.int64)]
    for start in range(0, samples, PLACES_CHUNK):
        wanted = ListRange(list=place, start=start, stop=min(start + PLACES_CHUNK, samples))

        def take(reply: Message, wanted: ListRange = wanted) -> Indices:
            places = read_places(reply.only(PartKind.PLACES))
            if len(places) != wanted.stop - wanted.start or places.min() < 0 or places.max() >= size:
                raise MessageError(f"{len(places)} places came, one below {size} is due for each sample")
            return places

        parts.append(leader.ask(Kind.PLACES, take, wanted.part()))
    return np.concatenate(parts)


def _deliver(peer: MatchingPeer, part: Matched, places: Indices, masks: Sequence[npt.NDArray[np.bool_]]) -> None:
    """Send an owner its rows, and the label owner the masks of the others' rows."""
    for start in range(0, max(len(places), 1), PLACES_CHUNK):
        here = slice(start, start + PLACES_CHUNK)
        parts = [Part(PartKind.PLACES, places[here].astype(PLACE).tobytes())]
        parts += [Part(PartKind.PRESENCE, mask[here].tobytes()) for mask in masks]
        peer.ask(Kind.MATCHED, lambda reply: None, part.model_copy(update={"start": start}).part(), *parts)


def _counted(progress: Callable[[float, int], None], lists: Sequence[KeyList]) -> Callable[[int], None]:
    """Return the function that the lists' threads call with the number of points computed."""
    total, keys = sum(each.size * (1 + len(each.others)) for each in lists), sum(each.size for each in lists)
    lock, done = threading.Lock(), 0

    def advance(points: int) -> None:
        nonlocal done
        with lock:
            done += points
            progress(done / total, keys)

    return advance


def _at_once(threads: ThreadPoolExecutor, work: Mapping[K, Callable[[], T]]) -> dict[K, T]:
    """Do the work in threads and return its results. Raises the first error."""
    futures = {threads.submit(each): key for key, each in work.items()}
    return {futures[future]: future.result() for future in as_completed(futures)}


def as_column(points: bytes) -> Column:
    """Return concatenated points as a column."""
    column = pa.FixedSizeBinaryArray.from_buffers
    return column(pa.binary(POINT_BYTES), len(points) // POINT_BYTES, [None, pa.py_buffer(points)])


def join_points(
    leader: str, wanted: Mapping[str, Column], places: Mapping[str, Indices], own: Mapping[str, Column], how: How
) -> dict[str, Indices]:
    """Return by owner the index in its list of each sample, int64 [N]; -1 if it has none.

    Args:
        leader: the label owner; its indices are those of its samples.
        wanted: by other owner, the label owner's list of keys under which that owner knows samples.
        places: by other owner, each sample's index in ``wanted``.
        own: by other owner, its list.
        how: all samples (left), or those that all owners have (inner).
    """
    found: dict[str, Indices] = {}
    for owner, points in own.items():
        # First where each key of the label owner's list is in the owner's own, then by sample.
        place_of = np.asarray(pc.fill_null(pc.index_in(wanted[owner], value_set=points), -1)).astype(np.int64)
        found[owner] = place_of[places[owner]]
    samples = len(next(iter(places.values())))
    kept = np.ones(samples, bool) if how == "left" else np.logical_and.reduce([rows >= 0 for rows in found.values()])
    return {leader: np.flatnonzero(kept)} | {owner: rows[kept] for owner, rows in found.items()}


def order_digest(rows: Mapping[str, Indices]) -> str:
    """Return a sha256 of all rows and 32 random bytes: it identifies an order and reveals nothing about it."""
    sha256 = hashlib.sha256(secrets.token_bytes(32))
    for owner in sorted(rows):
        sha256.update(rows[owner].tobytes())
    return sha256.hexdigest()
