"""Work with all parties that has no checkpoints: it begins again whenever a party is lost."""

from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

from parties.remote.server.connection import PartyConnection
from parties.remote.server.hub import Hub
from parties.remote.server.offences import Offences
from parties.remote.transport.security import last_word
from vfl.cli import BAD_INPUT, DONE, INTERRUPTED, LOST
from vfl.config import NetworkConfig
from vfl.errors import PeerLost

T = TypeVar("T")


def in_sessions(
    hub: Hub,
    names: tuple[str, ...],
    network: NetworkConfig,
    console: Console,
    gather: Callable[[], dict[str, PartyConnection]],
    work: Callable[[dict[str, PartyConnection], int], T],
    end: Callable[[T], str],
) -> T:
    """Return the result of some work with the connected parties, and say goodbye to them.

    Args:
        hub: lets them in.
        names: who is dismissed in the end.
        network: how long one that is lost is waited for, and how often it may misbehave.
        console: shows who is lost.
        gather: waits for the parties; raises PeerLost where too few come.
        work: given their connections and the session's number, from 1; begun again where it raises PeerLost.
        end: the last word to them, given what the work came to.
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
        code = LOST if isinstance(error, PeerLost) else BAD_INPUT
        raise
    finally:
        hub.dismiss(names, exit_code=code, reason=reason)
