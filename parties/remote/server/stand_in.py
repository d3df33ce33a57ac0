"""network.on_party_loss = drop: answers for an absent party, so that the others train on.

It takes part in no sample until it is back (``vfl/vertical/presence.py``): every frame is empty, nothing travels and
nothing is booked. Its own model stays as it last saved it. When it is back, it goes on from there at the next round.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from parties.remote.server.link import RemoteLink, reference
from vfl.checkpoint import State
from vfl.errors import PeerLost
from vfl.wire.control import AskedRatios, Description, Prices, Report, fixed_seconds
from vfl.wire.messages import REPLIES, Kind, Message, Part, PartKind

T = TypeVar("T")

ABSENT, STAND_IN = "absent", "stand_in"
"""What a checkpoint of the server holds of a party beside the reference: whether it was away, and its stand-in."""
IDLE: dict[str, Any] = {
    "train_macs": 0,
    "unpruned_train_macs": 0,
    "train_time_s": fixed_seconds(0.0),
    "omega": 0.0,
    "psi": 0.0,
}
"""What a report says of a round without the party."""


class StandIn:
    """Answers in a party's place, by what it last reported; outlives the server's sessions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.report = Report(alpha=0.0, beta=0.0, macs_per_sample=0, parameters=0, **IDLE)
        self.saved = reference(0, "")

    def remember(self, reply: Message) -> None:
        """Keep what a later answer needs."""
        if reply.kind == Kind.REPORT:
            self.report = Report.of(reply)

    def answer(self, request: Message) -> Message:
        """Return what stands for the party's reply."""
        parts: tuple[Part, ...] = ()
        match request.kind:
            case Kind.EMBED | Kind.EVALUATE:
                parts = (Part(PartKind.EMBEDDING, b""),)
            case Kind.END_ROUND:
                parts = (self.report.model_copy(update=IDLE).part(),)
            case Kind.DESCRIBE:
                digest = self._digest()
                described = Description(
                    weights_digest=digest, finished_digest=digest, evaluation_macs=0, widths={}, original_widths={}
                )
                parts = (described.part(),)
            case Kind.START_ROUND | Kind.UPDATE:
                pass
            case Kind.PRICES:  # nothing can be spared a party that is away
                free = (0,) * len(AskedRatios.of(request).alphas)
                parts = (Prices(macs_per_sample=free, parameters=free).part(),)
            case _:
                raise AssertionError(f"nothing stands in for an answer to {request.kind.name}")
        return Message(REPLIES[request.kind], request.round_index, request.exchange, parts)

    def state_dict(self) -> State:
        """Return what a server that is started again needs to answer alike."""
        return {"report": self.report.model_dump(exclude_none=True)}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        self.report = Report.model_construct(**state["report"])  # checked when it came

    def _digest(self) -> str:
        """Stand for the digest of weights that are not here: by that of the party's last checkpoint."""
        return hashlib.sha256(f"absent, saved as {self.saved['digest']}".encode()).hexdigest()


@dataclass(eq=False)
class DroppableLink:
    """A link that answers by itself from the moment that its party is lost, to the end of the session."""

    link: RemoteLink | None
    """None where the party is away already."""
    stand_in: StandIn
    on_loss: Callable[[PeerLost], None]
    """Called when the party is lost; what it raises the order in question raises."""

    def __post_init__(self) -> None:
        self.name = self.stand_in.name
        self.absent = self.link is None
        self._rounds_done = 0

    @property
    def under_way_s(self) -> float:
        """Seconds in which orders were under way to the party itself."""
        return self.link.under_way_s if self.link else 0.0

    def send(self, request: Message, take: Callable[[Message], T]) -> Callable[[], T]:
        """Send a message; the outcome is what ``take`` makes of the reply, the party's or its stand-in's."""
        if request.kind == Kind.END_ROUND:
            self._rounds_done = request.round_index + 1

        def keep(reply: Message) -> T:
            taken = take(reply)
            self.stand_in.remember(reply)
            return taken

        return self._or_instead(lambda link: link.send(request, keep), lambda: take(self.stand_in.answer(request)))

    def save(self) -> Callable[[], State]:
        """Have the party save; the outcome refers to its last state on its disk, and holds its answers so far."""

        def ask(link: RemoteLink) -> Callable[[], State]:
            saving = link.save()

            def keep() -> State:
                self.stand_in.saved = saving()
                return self.stand_in.saved | {ABSENT: False, STAND_IN: self.stand_in.state_dict()}

            return keep

        def instead() -> State:
            saved = self.stand_in.saved | {"as_of": self._rounds_done}
            return saved | {ABSENT: True, STAND_IN: self.stand_in.state_dict()}

        return self._or_instead(ask, instead)

    def load(self, state: State) -> Callable[[], None]:
        """Have the party go back to the state of a reference."""
        self._rounds_done = state["as_of"]
        self.stand_in.saved = {key: state[key] for key in self.stand_in.saved}
        if STAND_IN in state:  # not where the run has waited for parties so far
            self.stand_in.load_state_dict(state[STAND_IN])
        return self._or_instead(lambda link: link.load(state), lambda: None)

    def close(self) -> None:
        """Leave the party where it is: another session may follow."""

    def _or_instead(self, ask: Callable[[RemoteLink], Callable[[], T]], instead: Callable[[], T]) -> Callable[[], T]:
        """Ask the party; the outcome is what it answers, and from the moment that it is lost what stands for that."""
        if self.link is None or self.absent:
            return instead
        try:
            answered = ask(self.link)
        except PeerLost as lost:
            self._lose(lost)
            return instead

        def answered_or_instead() -> T:
            if self.absent:  # lost by another order, with this one under way
                return instead()
            try:
                return answered()
            except PeerLost as lost:
                self._lose(lost)
                return instead()

        return answered_or_instead

    def _lose(self, lost: PeerLost) -> None:
        self.absent = True
        self.on_loss(lost)
