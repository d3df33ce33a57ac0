"""network.on_party_loss = drop: the others continue without a party that is lost.

It takes part in no sample until it is back (``vfl/core/presence.py``): nothing is sent and nothing is recorded. Its
own model stays as it last saved it; when it is back, it continues from there at the next round.
"""

from collections.abc import Callable
from concurrent.futures import Future

from vfl.base.errors import PeerLost
from vfl.core.costs.ledger import Ledger
from vfl.core.embeddings import EmbeddingReceiver
from vfl.core.link import PartyLink
from vfl.core.parties import PartyProxy
from vfl.parties.network.server.link import checkpoint_reference
from vfl.runs.checkpoint import State

ABSENT = "absent"
"""Key in the server's checkpoint, beside the reference to a party's state: the party was absent."""


class DroppableParty(PartyProxy):
    """A party that is absent from the moment that it is lost, to the end of the session.

    Args:
        receiver, link, ledger: as of any party; without a link it is absent already.
        on_loss: called when the party is lost; what it raises the order in question raises.
    """

    def __init__(
        self,
        receiver: EmbeddingReceiver,
        link: PartyLink | None,
        ledger: Ledger,
        on_loss: Callable[[str, PeerLost], None],
    ) -> None:
        super().__init__(receiver, link, ledger)
        self.on_loss = on_loss
        self._saved = checkpoint_reference(0, "")

    def lose(self, lost: PeerLost) -> None:
        """Continue without the party."""
        self.link = None
        self.on_loss(self.name, lost)

    def save(self, rounds: int) -> Callable[[], State]:
        """Let the party save; the outcome refers to its last state on its disk."""
        saving = self.attempt(lambda link: link.save())

        def kept() -> State:
            saved = None if saving is None else self._outcome(saving)
            if saved is None:
                return self._saved | {"as_of": rounds, ABSENT: True}
            self._refer_to(saved)
            return saved | {ABSENT: False}

        return kept

    def load(self, state: State) -> Callable[[], None]:
        """Let the party restore the state of a reference."""
        self._refer_to({key: state[key] for key in self._saved})
        return super().load(state)

    def _outcome(self, saving: "Future[State]") -> State | None:
        return self.attempt(lambda _: saving.result())

    def _refer_to(self, saved: State) -> None:
        self._saved, self.saved_digest = saved, saved["digest"]
