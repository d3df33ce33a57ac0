"""Work with all parties that has no checkpoints: it begins again whenever a party is lost, but not for ever."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from rich.console import Console

from parties.remote.server.connection import PartyConnection
from parties.remote.server.hub import Hub
from parties.remote.transport.security import last_word
from vfl.cli import DONE, INTERRUPTED, failure_code
from vfl.config import NetworkConfig
from vfl.errors import PeerLost, PeerMisbehaved

T = TypeVar("T")


@dataclass
class Offences:
    """How often each party has misbehaved, for as long as this process lives."""

    allowed: int
    """So often a party may come back: network.max_offences."""
    _counts: Counter[str] = field(default_factory=Counter[str])

    def note(self, lost: PeerLost) -> str | None:
        """Count a loss if the party misbehaved; return why it may not come back, None where it may."""
        if not isinstance(lost, PeerMisbehaved):
            return None
        self._counts[lost.party] += 1
        if self._counts[lost.party] <= self.allowed:
            return None
        times = f"{self._counts[lost.party]} times, network.max_offences is {self.allowed}"
        return f"{lost.party} has misbehaved {times}; last: {lost.what}"


def in_sessions(
    hub: Hub,
    names: tuple[str, ...],
    network: NetworkConfig,
    console: Console,
    gather: Callable[[], dict[str, PartyConnection]],
    work: Callable[[dict[str, PartyConnection], int], T],
    end: Callable[[T], str],
) -> T:
    """Return the result of some work with the connected parties, and say goodbye to all of ``names``.

    ``gather`` waits for the parties, and raises PeerLost where too few come. ``work`` is given their connections and
    the session's number, from 1; where it raises PeerLost it begins again. ``end`` makes the last word of its result.
    """
    reason, code = "the server stopped", INTERRUPTED
    session = 0
    offences = Offences(network.max_offences)
    try:
        while True:
            session += 1
            connections = gather()
            try:
                result = work(connections, session)
            except PeerLost as lost:
                if last := offences.note(lost):
                    raise PeerLost(last) from None
                console.print(f"{lost}; waiting up to {network.wait_s:g} s for it to come back")
                continue
            reason, code = end(result), DONE
            return result
    except Exception as error:
        reason = f"the server ended: {last_word(error)}"
        code = failure_code(error)
        raise
    finally:
        hub.dismiss(names, exit_code=code, reason=reason)
