"""The link to a party in another process."""

from concurrent.futures import Future
from typing import TYPE_CHECKING, NoReturn

from vfl.base.errors import PeerMisbehaved, plain
from vfl.core.round_orders import rounds_done
from vfl.messages.messages import MEASURING, Kind, Message
from vfl.parties.network.server.connection import PartyConnection
from vfl.parties.network.wire.session import Restore, Save, Saved

if TYPE_CHECKING:  # it imports PyTorch, which a match does without
    from vfl.runs.checkpoint import State


class RemoteLink:
    """A party behind a stream, for one session: from one start at a checkpoint to the next.

    A party's state never leaves it: ``save`` lets it write the state to its own disk and returns a reference to it. The
    saved round is valid once the server, which asks all parties first, has committed a checkpoint with these
    references.
    """

    def __init__(self, connection: PartyConnection, session: int) -> None:
        self.name = connection.name
        self.connection = connection
        self.rounds_done = 0
        self.under_way_s = 0.0
        self._answered_s = 0.0
        connection.start_session(session)
        # Every party starts from its initial state, so that runs without a checkpoint agree; ``load`` may follow.
        self._restore(checkpoint_reference(0, ""))

    def send(self, request: Message) -> "Future[Message]":
        """Send a message; the future holds the reply. Both raise PeerLost."""
        self.rounds_done = rounds_done(request) or self.rounds_done
        sent_s = self.connection.machine.now_s()
        reply = self.connection.order(request, lambda message: message)
        if request.kind not in MEASURING:
            reply.add_done_callback(lambda _: self._count(sent_s))
        return reply

    def reject_reply(self, error: Exception) -> NoReturn:
        """Tell the party the error in its reply, and end its stream."""
        lost = PeerMisbehaved(self.name, plain(str(error) or repr(error)))
        self.connection.expel(lost)
        raise lost from error

    def save(self) -> "Future[State]":
        """Let the party write its state; the future holds a reference to it."""
        rounds = self.rounds_done

        def refer(message: Message) -> "State":
            saved = Saved.of(message)
            self.connection.rounds.add(rounds)
            return checkpoint_reference(rounds, saved.digest)

        return self.connection.order(Message(Kind.SAVE, parts=(Save(round=rounds).part(),)), refer)

    def load(self, state: "State") -> "Future[None]":
        """Let the party restore the state of a reference. Raises ValueError for a malformed state."""
        if not state.keys() >= checkpoint_reference(0, "").keys():
            raise ValueError(
                f"--resume: the saved run trained {self.name} in the server's process; resume with only lvfl train"
            )
        return self._restore(state)

    def close(self) -> None:
        """Do nothing: another session with the party may follow."""

    def _count(self, sent_s: float) -> None:
        """Add the seconds of an answered order, except those when another order was under way."""
        now_s = self.connection.machine.now_s()
        self.under_way_s += now_s - max(sent_s, self._answered_s)
        self._answered_s = now_s

    def _restore(self, state: "State") -> "Future[None]":
        self.rounds_done = state["as_of"]
        restore = Restore(round=state["round"], digest=state["digest"], as_of=state["as_of"])
        return self.connection.order(Message(Kind.RESTORE, parts=(restore.part(),)), lambda message: None)


def checkpoint_reference(rounds: int, digest: str) -> "State":
    """Return the server's reference to a party's state: the round and digest of the party's own checkpoint.

    ``as_of``: the round that the state belongs to at the server; later than ``round`` if the party was absent
    meanwhile.
    """
    return {"round": rounds, "digest": digest, "as_of": rounds}
