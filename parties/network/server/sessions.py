"""Sessions: the loop in which a server works with its parties, repeated after losses, but not endlessly."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from rich.console import Console

from vfl.base.errors import PeerLost, PeerMisbehaved
from vfl.config import NetworkConfig
from vfl.console import INTERRUPTED, failure_code
from vfl.parties.network.server.connection import PartyConnection
from vfl.parties.network.server.hub import Hub
from vfl.parties.network.transport.security import last_word

T = TypeVar("T")
Connections = dict[str, PartyConnection]
"""Connections by party."""


@dataclass
class Offences:
    """Counts of each party's offences in this process."""

    allowed: int
    """Number of times that a party may come back: network.max_offences."""
    _counts: Counter[str] = field(default_factory=Counter[str])

    def note(self, lost: PeerLost) -> str | None:
        """Count a loss if the party misbehaved; return the reason why it may not come back, or None."""
        if not isinstance(lost, PeerMisbehaved):
            return None
        self._counts[lost.party] += 1
        if self._counts[lost.party] <= self.allowed:
            return None
        times = f"{self._counts[lost.party]} times, network.max_offences is {self.allowed}"
        return f"{lost.party} has misbehaved {times}; last: {lost.what}"


@dataclass(frozen=True, eq=False)
class SessionWork(Generic[T]):
    """Joint work of a server with all parties: a training, a prediction, a match."""

    names: tuple[str, ...]
    """Names of the parties that get a GOODBYE at the end."""
    gather: Callable[[], Connections]
    """Waits for the parties. Raises PeerLost if too few come."""
    run: Callable[[Connections, int], T | None]
    """Works in the session of this number, from 1; returns None to continue in another one. Raises PeerLost."""
    last_word: Callable[[T], tuple[str, int]]
    """Returns the goodbye for the parties, and its exit code, given the result."""
    on_loss: Callable[[PeerLost], None] = lambda lost: None
    """Handles a loss. Raises PeerLost to end the work."""


def in_sessions(hub: Hub, work: SessionWork[T], offences: Offences, network: NetworkConfig, console: Console) -> T:
    """Do some work with the connected parties, again whenever one is lost, and return its result.

    All parties get a GOODBYE, whatever ends the work. The work itself handles state beyond a session: a training
    continues from its last checkpoint, anything else starts anew. Raises PeerLost if a party stays away, misbehaves
    too often, or ends the work.
    """
    reason, code = "the server stopped", INTERRUPTED
    try:
        for session in count(1):
            connections = work.gather()
            try:
                result = work.run(connections, session)
            except PeerLost as lost:
                work.on_loss(lost)
                if last := offences.note(lost):
                    raise PeerLost(last) from None
                console.print(f"warning: {lost}; waiting up to {network.wait_s:g} s for it to come back")
                continue
            if result is not None:
                reason, code = work.last_word(result)
                return result
        raise AssertionError("sessions have no end")
    except Exception as error:
        reason = f"the server ended: {last_word(error)}"
        code = failure_code(error)
        raise
    finally:
        hub.dismiss(work.names, exit_code=code, reason=reason)
