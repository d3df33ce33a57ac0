"""The way to a party in another process."""

from concurrent.futures import Future

from parties.remote.server.connection import PartyConnection
from vfl.checkpoint import State
from vfl.wire.envelope import Envelope, Restore, Save
from vfl.wire.messages import Buffer, Kind, Message, pieces
from vfl.wire.parcel import Parcel


class RemoteLink:
    """A party behind a stream, for one session: from one start at a checkpoint to the next.

    A party's state never leaves it: ``save`` has it written to the party's own disk and returns a reference to it.
    The round counts when the server, which asks all parties first, has committed a checkpoint with these references.
    """

    absent = False

    def __init__(self, connection: PartyConnection, session: int) -> None:
        self.name = connection.name
        self.connection = connection
        self.rounds_done = 0
        connection.start_session(session)
        self._restore(reference(0, ""))

    def send(self, request: Message) -> Future[Buffer]:
        """Send a message; the future holds the packed reply, or PeerLost."""
        if request.kind == Kind.END_ROUND:
            self.rounds_done = request.round_index + 1
        order = Envelope(round=request.round_index, exchange=request.exchange, request=b"")
        return self.connection.order(order, lambda answer: answer.content, pieces(request))

    def save(self) -> Future[State]:
        """Have the party write its state; the future holds a reference to it."""
        rounds = self.rounds_done

        def refer(answer: Parcel) -> State:
            self.connection.rounds.add(rounds)
            return reference(rounds, answer.envelope.saved.digest)

        return self.connection.order(Envelope(save=Save(round=rounds)), refer)

    def load(self, state: State) -> Future[None]:
        """Have the party go back to the state of a reference. Raises ValueError for a state that is none."""
        if not state.keys() >= reference(0, "").keys():
            raise ValueError(
                f"--resume: the saved run trained {self.name} in the server's process; resume with train.py alone"
            )
        return self._restore(state)

    def close(self) -> None:
        """Leave the party where it is: another session may follow."""

    def _restore(self, state: State) -> Future[None]:
        self.rounds_done = state["as_of"]
        restore = Restore(round=state["round"], digest=state["digest"], as_of=state["as_of"])
        return self.connection.order(Envelope(restore=restore), lambda answer: None)


def reference(rounds: int, digest: str) -> State:
    """Return what the server keeps of a party: the round and digest of its own checkpoint.

    ``as_of``: the round whose state this is for the server; later than ``round`` where the party was away meanwhile.
    """
    return {"round": rounds, "digest": digest, "as_of": rounds}
