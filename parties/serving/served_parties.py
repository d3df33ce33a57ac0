"""The connected parties of a service of scores, and what they have answered for some keys."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vfl.base.errors import PeerLost
from vfl.messages.control import ReasonsOffer
from vfl.messages.messages import Message
from vfl.parties.network.server.connection import RemoteLink
from vfl.parties.serving.request_queue import Key, KeyOutcome

Row = tuple[Tensor, tuple[bytes, ...]]
"""An embedding [D]; at the label owner also the keys by which other owners know the row."""


@dataclass
class Served:
    """A party that is connected."""

    link: RemoteLink
    ready: "Future[None]"
    """Done when it has restored the version's model."""
    asked: "Future[Message] | None" = None
    """The last order; while it is open nothing more is asked."""
    offer: ReasonsOffer | None = None
    """What it discloses of its columns; None until it was asked."""

    @property
    def usable(self) -> bool:
        """Whether it has restored its model and answered what it was asked. Raises PeerLost."""
        if not self.ready.done():
            return False
        self.ready.result()
        return self.asked is None or self.asked.done()

    @property
    def answers(self) -> bool:
        """Whether it is usable; a lost party is not."""
        try:
            return self.usable
        except PeerLost:
            return False

    def send(self, request: Message) -> "Future[Message]":
        """Send a request; the future holds the reply. Both raise PeerLost."""
        self.asked = self.link.send(request)
        return self.asked


@dataclass
class KeyRows:
    """Outcomes and embeddings of some keys at one party."""

    names: Mapping[Key, bytes]
    """Name of each key at the party."""
    of: dict[bytes, KeyOutcome] = field(default_factory=dict[bytes, KeyOutcome])
    rows: dict[bytes, Row] = field(default_factory=dict[bytes, Row])
    asked: list[bytes] = field(default_factory=list[bytes])
    reply: "Future[Message] | None" = None
    """The answer that is out."""
    unnamed: Mapping[Key, KeyOutcome] = field(default_factory=dict[Key, KeyOutcome])
    """Outcomes of the keys without a name at this party."""

    def outcome(self, key: Key) -> KeyOutcome:
        """Return the outcome of a key."""
        return self.of.get(self.names[key], "away") if key in self.names else self.unnamed.get(key, "away")

    def row(self, key: Key) -> Tensor | None:
        """Return a key's embedding [D], if it came."""
        row = self.rows.get(self.names[key]) if key in self.names else None
        return None if row is None else row[0]


async def come(replies: "Iterable[Future[Any]]", until_s: float) -> None:
    """Wait until all replies are here, or until a time. They come in this loop's own thread."""
    out = [reply for reply in replies if not reply.done()]
    left, here = len(out), asyncio.get_running_loop().create_future()

    def end() -> None:
        if not here.done():
            here.set_result(None)

    def count(_reply: "Future[Any]") -> None:
        nonlocal left
        left -= 1
        if not left:
            end()

    for reply in out:
        reply.add_done_callback(count)
    if out:
        timer = here.get_loop().call_later(max(until_s - time.monotonic(), 0), end)
        try:
            await here
        finally:
            timer.cancel()
