"""Requests for scores and their answers: what waits is gathered into batches."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

KeyOutcome = Literal["row", "cached", "none", "away", "declined"]
"""Outcome of a key at a party: it has a row; it had one a moment ago; none; it did not answer; its owner does not
agree."""
Key = tuple[str, ...]
"""A cell for each key column."""
IDLE_S = 0.2
"""Longest wait for a request."""
GATHER_S = 0.002
"""Time after a batch of several requests in which the next are gathered."""
MOST_ASKED = 256
"""Most keys that parties are asked for at once."""
MOST_WAITING = 4096
"""Most keys that wait."""


@dataclass(frozen=True)
class ReasonsAsked:
    """The reasons that a request asks for."""

    of: int | None = None
    """Class whose log odds are explained; None: the positive one of two, of more the one predicted for the key."""
    most: int = 0
    """Number of columns to name that lowered the score most; 0: all amounts."""


class QueueFull(RuntimeError):  # noqa: N818 - says what happened
    """More keys wait than `MOST_WAITING`."""


@dataclass(frozen=True)
class Score:
    """Score of one key, and its parties' outcomes."""

    key: Key
    values: tuple[float, ...] | None
    """Probabilities by class, or one value; None where there is no score."""
    parties: Mapping[str, KeyOutcome]

    @property
    def unknown(self) -> bool:
        """Return whether all parties have looked, and none has a row of the key."""
        return set(self.parties.values()) == {"none"}


@dataclass(frozen=True)
class Scored:
    """The scores of a request, all by one version of the model."""

    version: str
    scores: tuple[Score, ...]
    reasons: tuple[Mapping[str, Any] | None, ...] | None = None
    """Reasons of each score, as the answer has them, None where there is no score; None: they were not asked for."""


@dataclass(frozen=True, eq=False)
class Request:
    """Keys of one request, and their future scores."""

    keys: tuple[Key, ...]
    reasons: ReasonsAsked | None
    future: asyncio.Future[Scored]


class RequestQueue:
    """The waiting requests: put in by any task of a loop, taken in batches by one."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self.waiting = 0
        """Keys that wait."""
        self.stopping = False
        self._requests = deque[Request]()
        self._answered_s = 0.0
        self._crowded = False
        self._changed = asyncio.Event()

    def put(self, keys: Sequence[Key], reasons: ReasonsAsked | None = None) -> asyncio.Future[Scored]:
        """Return the future scores of keys, in their order. Raises QueueFull."""
        if self.waiting + len(keys) > MOST_WAITING:
            raise QueueFull(f"{self.waiting} keys wait, {MOST_WAITING} may")
        request = Request(tuple(keys), reasons, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self.waiting += len(keys)
        self._changed.set()
        return request.future

    def wake(self, *, stop: bool = False) -> None:
        """Let ``take`` return now. ``stop``: and gather no longer."""
        self.stopping |= stop
        self._changed.set()

    async def take(self) -> list[Request]:
        """Return the requests of the next batch; none after a while."""
        if not self._requests and not self.stopping:
            await self._wait(IDLE_S)
        if not self._requests:
            return []
        # Only after a batch of several, whose clients ask again after its answers: a single client never waits.
        deadline_s = self._answered_s + GATHER_S if self._crowded else 0.0
        while self.waiting < MOST_ASKED and not self.stopping:
            left_s = deadline_s - self.now_s()
            if left_s <= 0:
                break
            await self._wait(left_s)
        taken: list[Request] = []
        keys = 0
        while self._requests and (not taken or keys + len(self._requests[0].keys) <= MOST_ASKED):
            taken.append(self._requests.popleft())
            keys += len(taken[-1].keys)
        self.waiting -= keys
        return taken

    def note_answered(self, batch: Sequence[Request]) -> None:
        """Note that a batch is answered now: the next one waits for further requests if these were several clients'."""
        self._answered_s = self.now_s()
        self._crowded = len(batch) > 1 or bool(self._requests)

    async def _wait(self, limit_s: float) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._changed.wait()
