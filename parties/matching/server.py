"""The server's side of a match: lists pass all their owners, the server joins what comes out, each owner gets its rows.

A list passes in chunks, so that no more than one of each is under way; what comes out is kept, 33 bytes a key.
"""

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from parties.matching.owner import PLACE, read_places
from vfl.data.tables.keys import Rows
from vfl.errors import PeerLost, PeerMisbehaved
from vfl.matching.group import POINT_BYTES, add_points, check_points
from vfl.matching.join import How, as_column, has_doubled, join_points, order_digest
from vfl.vertical.link import PartyLink, read
from vfl.wire.matching import MOST_LISTS, Brought, ListRange, Matched
from vfl.wire.messages import Kind, Message, MessageError, Part, PartKind

K = TypeVar("K")
T = TypeVar("T")
CHUNK = 1 << 13
"""Points of a message: under half a second of work."""
PLACES_CHUNK = 1 << 20
SUMS = 16
"""Sums of points of each chunk that a party is asked to raise: a wrong point escapes them with probability 2^-16."""


@dataclass(frozen=True)
class Outcome:
    """What the server knows in the end."""

    samples: int
    missing: Mapping[str, int]
    """By owner, the samples that it has no row for."""
    again: bool
    """All owners had the result of an earlier match: nothing was done."""


@dataclass(frozen=True)
class KeyList:
    """A list of keys on its way."""

    holder: str
    place: int
    """Among the holder's lists."""
    size: int
    others: tuple[str, ...]
    """Whom it passes."""


@dataclass(eq=False)
class Peer:
    """An owner as the server's threads see it: they ask it one after another."""

    link: PartyLink
    stopped: threading.Event
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, kind: Kind, take: Callable[[Message], T], *parts: Part) -> T:
        """Return what ``take`` makes of the answer. Raises PeerLost where the party is lost, or by it."""
        request = Message(kind, parts=parts)
        with self._lock:
            if self.stopped.is_set():
                raise PeerLost("the match has ended")
            return read(self.link, request, self.link.send(request), take)

    def points(self, kind: Kind, part: Part, count: int) -> bytes:
        """Return as many points as are due."""
        return self.ask(kind, lambda reply: check_points(reply.only(PartKind.POINTS), count), part)

    def points_again(self, kind: Kind, part: Part, before: bytes) -> None:
        """Ask for points that came before. What is other now is the party's doing."""

        def compare(reply: Message) -> None:
            if reply.only(PartKind.POINTS) != before:
                raise MessageError("its points do not fit those before: another list, another scalar or order")

        self.ask(kind, compare, part)


@dataclass
class Passing:
    """A list that passes its owners.

    ``progress`` is called with the number of points that were computed.
    """

    peers: Mapping[str, Peer]
    keys: KeyList
    chunk: int
    progress: Callable[[int], None]
    seen: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict[str, list[tuple[bytes, bytes]]])
    """By owner, some sums of points before and after they passed it."""

    def run(self) -> bytes:
        """Return the list under all scalars, in its holder's order."""
        result = bytearray()
        for start in range(0, self.keys.size, self.chunk):
            points = self._part(start, min(start + self.chunk, self.keys.size))
            for name in self.keys.others:
                points = self._pass(name, points)
            result += points
        for name, pairs in self.seen.items():
            before, after = (b"".join(each) for each in zip(*pairs, strict=True))
            self.peers[name].points_again(Kind.RAISE, Part(PartKind.POINTS, before), after)
        return bytes(result)

    def _part(self, start: int, stop: int) -> bytes:
        peer = self.peers[self.keys.holder]
        points = peer.points(Kind.LIST, ListRange(list=self.keys.place, start=start, stop=stop).part(), stop - start)
        self.progress(stop - start)
        one = start + secrets.randbelow(stop - start)
        wanted = ListRange(list=self.keys.place, start=one, stop=one + 1).part()
        peer.points_again(Kind.LIST, wanted, points[(one - start) * POINT_BYTES :][:POINT_BYTES])
        return points

    def _pass(self, name: str, points: bytes) -> bytes:
        count = len(points) // POINT_BYTES
        raised = self.peers[name].points(Kind.RAISE, Part(PartKind.POINTS, points), count)
        self.progress(count)
        # Raising is linear. An owner that exchanged points could do so again, but cannot tell what a sum is of.
        choices = [_some_of(count) for _ in range(SUMS)]
        pairs = zip(add_points(points, choices), add_points(raised, choices), strict=True)
        self.seen.setdefault(name, []).extend((before, after) for before, after in pairs if before)
        return raised


def match_keys(
    links: Sequence[PartyLink],
    how: How,
    progress: Callable[[float, int], None] = lambda share, keys: None,
    chunk: int = CHUNK,
) -> Outcome:
    """Match the owners' keys and give each its result.

    Where all of them have the result of the same earlier match, nothing is done. ``progress`` is called with the share
    of the work that is done, and the number of keys in all lists. Raises PeerLost for an owner that is lost or
    misbehaves, ValueError where not just one of them is the label owner.
    """
    stopped = threading.Event()
    peers = {link.name: Peer(link, stopped) for link in links}
    with ThreadPoolExecutor(MOST_LISTS) as threads:
        try:
            brought = _at_once(threads, {name: partial(_brought, peer, peers.keys()) for name, peer in peers.items()})
            orders = {each.order for each in brought.values()}
            if len(orders) == 1 and None not in orders:
                return Outcome(0, {}, again=True)
            leader = _leader(brought)
            lists = key_lists(brought, leader)
            advance = _counted(progress, lists)
            raised = _at_once(threads, {each: Passing(peers, each, chunk, advance).run for each in lists})
            rows = _join(peers[leader], brought[leader], lists, raised, how)
            part = _described(brought[leader], rows, rows[leader])
            held = [rows[owner] >= 0 for owner in sorted(brought[leader].known_as or {})]
            masks = {name: held if name == leader else [] for name in peers}
            _at_once(threads, {n: partial(_deliver, peer, part, rows[n], masks[n]) for n, peer in peers.items()})
            return Outcome(part.samples, {name: int((each < 0).sum()) for name, each in rows.items()}, again=False)
        finally:
            stopped.set()


def key_lists(brought: Mapping[str, Brought], leader: str) -> list[KeyList]:
    """Return the lists that pass, the label owner's first: each goes to all who know samples by the same key."""
    known_as = brought[leader].known_as or {}
    groups: dict[int, list[str]] = {}
    for owner, place in known_as.items():
        groups.setdefault(place, []).append(owner)
    lists = [KeyList(leader, place, brought[leader].lists[place], tuple(group)) for place, group in groups.items()]
    for owner, place in known_as.items():
        others = (leader, *(other for other in groups[place] if other != owner))
        lists.append(KeyList(owner, 0, brought[owner].lists[0], others))
    return lists


def _brought(peer: Peer, names: Collection[str]) -> Brought:
    def read(reply: Message) -> Brought:
        brought = Brought.of(reply)
        if brought.known_as is not None and {*brought.known_as, peer.link.name} != set(names):
            raise MessageError(f"known_as: names {', '.join(brought.known_as)}, not all other owners")
        return brought

    return peer.ask(Kind.MATCH, read)


def _leader(brought: Mapping[str, Brought]) -> str:
    leaders = [name for name, each in brought.items() if each.known_as is not None]
    if len(leaders) != 1:
        raise MessageError(f"data.tables: {', '.join(leaders) or 'no owner'} names the label; one must")
    return leaders[0]


def _join(
    leader: Peer, brought: Brought, lists: Sequence[KeyList], raised: Mapping[KeyList, bytes], how: How
) -> dict[str, Rows]:
    """Return each owner's places by sample. Raises PeerMisbehaved for a list with a key twice."""
    points = {each: as_column(raised[each]) for each in lists}
    for each, column in points.items():
        if has_doubled(column):
            raise PeerMisbehaved(each.holder, "a point comes twice in its list: its keys are not all different")
    name, known_as = leader.link.name, brought.known_as or {}
    own = {each.holder: column for each, column in points.items() if each.holder != name}
    theirs = {each.place: column for each, column in points.items() if each.holder == name}
    places = {place: _places(leader, place, brought.samples or 0, len(column)) for place, column in theirs.items()}
    return join_points(
        name,
        {owner: theirs[place] for owner, place in known_as.items()},
        {owner: places[place] for owner, place in known_as.items()},
        own,
        how,
    )


def _described(brought: Brought, rows: Mapping[str, Rows], kept: Rows) -> Matched:
    tested = None
    if brought.tested is not None:
        tested = int((kept >= (brought.samples or 0) - brought.tested).sum())
    return Matched(order=order_digest(rows), samples=len(kept), start=0, tested=tested)


def _places(leader: Peer, place: int, samples: int, size: int) -> Rows:
    """Return the samples' places in one of the label owner's lists."""
    parts = [np.empty(0, np.int64)]
    for start in range(0, samples, PLACES_CHUNK):
        wanted = ListRange(list=place, start=start, stop=min(start + PLACES_CHUNK, samples))

        def read(reply: Message, wanted: ListRange = wanted) -> Rows:
            places = read_places(reply.only(PartKind.PLACES))
            if len(places) != wanted.stop - wanted.start or places.min() < 0 or places.max() >= size:
                raise MessageError(f"{len(places)} places came, one below {size} is due for each sample")
            return places

        parts.append(leader.ask(Kind.PLACES, read, wanted.part()))
    return np.concatenate(parts)


def _deliver(peer: Peer, part: Matched, places: Rows, masks: Sequence[npt.NDArray[np.bool_]]) -> None:
    """Send an owner its places, and the label owner who has a row."""
    for start in range(0, max(len(places), 1), PLACES_CHUNK):
        here = slice(start, start + PLACES_CHUNK)
        parts = [Part(PartKind.PLACES, places[here].astype(PLACE).tobytes())]
        parts += [Part(PartKind.PRESENCE, mask[here].tobytes()) for mask in masks]
        peer.ask(Kind.MATCHED, lambda reply: None, part.model_copy(update={"start": start}).part(), *parts)


def _some_of(count: int) -> list[int]:
    """Return about half of so many places, one at least; nobody can tell which."""
    drawn = np.unpackbits(np.frombuffer(secrets.token_bytes(count // 8 + 1), np.uint8), count=count)
    drawn[secrets.randbelow(count)] = 1
    return np.flatnonzero(drawn).tolist()


def _counted(progress: Callable[[float, int], None], lists: Sequence[KeyList]) -> Callable[[int], None]:
    """Return what the lists' threads call with the points that they have computed."""
    total, keys = sum(each.size * (1 + len(each.others)) for each in lists), sum(each.size for each in lists)
    lock, done = threading.Lock(), 0

    def advance(points: int) -> None:
        nonlocal done
        with lock:
            done += points
            progress(done / total, keys)

    return advance


def _at_once(threads: ThreadPoolExecutor, work: Mapping[K, Callable[[], T]]) -> dict[K, T]:
    """Do all of some work in threads. Raises the first error that comes."""
    futures = {threads.submit(each): key for key, each in work.items()}
    return {futures[future]: future.result() for future in as_completed(futures)}
