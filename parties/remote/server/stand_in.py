"""network.on_party_loss = drop: what stands for a party while it is away, so that the others train on.

The last embedding of each sample, or zeros, are answered in its place; nothing of that travels, so nothing is booked.
Its own model stays as it last saved it. When it is back, it goes on from there at the next round.

Shapes: B batch, D embedding width, N training samples, M test samples.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from parties.build import build_receiver
from parties.feature_party import REPLIES
from parties.remote.server.link import RemoteLink, reference
from vfl.checkpoint import State
from vfl.config import ExperimentConfig
from vfl.errors import PeerLost
from vfl.vertical.batches import batch_rows, steps_in_round
from vfl.vertical.embeddings import encode_as
from vfl.wire.messages import Buffer, Kind, Message, Part, PartKind, control, pack, unpack

ABSENT, STAND_IN = "absent", "stand_in"
"""What a checkpoint of the server holds of a party beside the reference: whether it was away, and its stand-in."""
NOTHING_DONE: dict[str, Any] = {
    "alpha": 0.0,
    "beta": 0.0,
    "macs_per_sample": 0,
    "parameters": 0,
    "train_macs": 0,
    "unpruned_train_macs": 0,
    "train_time_s": "0",
    "omega": 0.0,
    "psi": 0.0,
}


class StandIn:
    """Remembers what a party answered and answers in its place; outlives the server's sessions.

    Args:
        name: the party's.
        config: the experiment.
        train_samples: N.
        test_samples: M.
    """

    def __init__(self, name: str, config: ExperimentConfig, train_samples: int, test_samples: int) -> None:
        self.name = name
        self.config = config
        self.receiver = build_receiver(name, train_samples, config)
        self.train_ND = torch.zeros(train_samples, self.receiver.width)
        self.test_MD = torch.zeros(test_samples, self.receiver.width)
        self.report = NOTHING_DONE
        self.saved = reference(0, "")
        self._round = -1
        self._rows: list[Tensor] = []

    def remember(self, request: Message, reply: Message) -> None:
        """Keep what a later answer needs."""
        keeps = self.config.network.stand_in == "last"
        if reply.kind == Kind.REPORT:
            self.report = reply.settings
        elif keeps and reply.kind in (Kind.EMBEDDING, Kind.EVALUATION):
            kept, rows = self._place(request)
            kept[rows] = self.receiver.decode(reply.payloads(PartKind.EMBEDDING)[0], len(kept[rows]))

    def answer(self, request: Message) -> Message:
        """Return what stands for the party's reply."""
        parts: tuple[Part, ...] = ()
        match request.kind:
            case Kind.EMBED | Kind.EVALUATE:
                kept, rows = self._place(request)
                frame = encode_as(self.receiver.values, kept[rows], f"{self.name}'s stand-in")
                parts = (Part(PartKind.EMBEDDING, frame),)
            case Kind.END_ROUND:
                idle = {"train_macs": 0, "unpruned_train_macs": 0, "train_time_s": "0", "omega": 0.0, "psi": 0.0}
                parts = (control({**self.report, **idle}),)
            case Kind.DESCRIBE:
                parts = (control({"weights_digest": f"absent, saved as {self.saved['digest']}"}),)
            case _:
                pass
        return Message(REPLIES[request.kind], request.round_index, request.exchange, parts)

    def state_dict(self) -> State:
        """Return what a server that is started again needs to answer alike: the answers kept so far."""
        return {"train_ND": self.train_ND, "test_MD": self.test_MD, "report": self.report}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        self.train_ND, self.test_MD, self.report = state["train_ND"], state["test_MD"], state["report"]

    def _place(self, request: Message) -> tuple[Tensor, Tensor | slice]:
        """Return where the embeddings of a request's samples are kept: the store and its rows."""
        if request.kind == Kind.EVALUATE:
            return self.test_MD, slice(request.settings["start"], request.settings["stop"])
        if request.round_index != self._round:
            training, samples = self.config.training, len(self.train_ND)
            steps = steps_in_round(training.steps_per_round, samples, training.batch_size)
            self._rows = batch_rows(self.config.seed, request.round_index, steps, samples, training.batch_size)
            self._round = request.round_index
        return self.train_ND, self._rows[request.exchange]


class DroppableLink:
    """A link that answers by itself from the moment that its party is lost, to the end of the session.

    Args:
        link: the way to the party; None where it is away already.
        stand_in: answers in its place.
        on_loss: called, in the stream's thread, when it is lost; what it raises the order in question raises.
    """

    def __init__(self, link: RemoteLink | None, stand_in: StandIn, on_loss: Callable[[PeerLost], None]) -> None:
        self.name = stand_in.name
        self.link = link
        self.stand_in = stand_in
        self.on_loss = on_loss
        self.absent = link is None
        self._rounds_done = 0

    def send(self, request: Message) -> Future[Buffer]:
        """Send a message; the future holds the packed reply, the party's or its stand-in's."""
        if request.kind == Kind.END_ROUND:
            self._rounds_done = request.round_index + 1

        def keep(reply: Buffer) -> Buffer:
            self.stand_in.remember(request, unpack(reply))
            return reply

        sent = self.link.send(request) if self.link is not None and not self.absent else None
        return self._or_instead(sent, keep, lambda: pack(self.stand_in.answer(request)))

    def save(self) -> Future[State]:
        """Return a reference to the party's last state on its disk, and what is kept of its answers."""

        def keep(saved: State) -> State:
            self.stand_in.saved = saved
            return saved | {ABSENT: False, STAND_IN: self.stand_in.state_dict()}

        def instead() -> State:
            saved = self.stand_in.saved | {"as_of": self._rounds_done}
            return saved | {ABSENT: True, STAND_IN: self.stand_in.state_dict()}

        saving = self.link.save() if self.link is not None and not self.absent else None
        return self._or_instead(saving, keep, instead)

    def load(self, state: State) -> Future[None]:
        """Have the party go back to the state of a reference."""
        self._rounds_done = state["as_of"]
        self.stand_in.saved = {key: state[key] for key in self.stand_in.saved}
        if STAND_IN in state:  # not where the run has waited for parties so far
            self.stand_in.load_state_dict(state[STAND_IN])
        loading = self.link.load(state) if self.link is not None and not self.absent else None
        return self._or_instead(loading, lambda done: done, lambda: None)

    def close(self) -> None:
        """Leave the party where it is: another session may follow."""

    def _or_instead(
        self, sent: "Future[Any] | None", keep: Callable[[Any], Any], instead: Callable[[], Any]
    ) -> "Future[Any]":
        """Return a future of what ``sent`` brings, or of what stands for it where the party is lost."""
        outer = Future[Any]()

        def settle(inner: "Future[Any] | None") -> None:
            try:
                if inner is not None:
                    try:
                        outer.set_result(keep(inner.result()))
                        return
                    except PeerLost as lost:
                        if not self.absent:
                            self.absent = True
                            self.on_loss(lost)
                outer.set_result(instead())
            except Exception as error:
                outer.set_exception(error)

        if sent is None:
            settle(None)
        else:
            sent.add_done_callback(settle)
        return outer
