"""A party written against the wire format alone (docs/protocol.md, vfl/wire): no model, constant answers, any lie."""

import hashlib
import queue
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from attacks.wire import GOODBYE, HEARTBEAT, HELLO, REFUSAL, RESTORE, RESTORED, SAVE, SAVED, Frame, said

EMBEDDING, REPORT, EVALUATION, DONE, DESCRIPTION = 3, 6, 8, 10, 11
PART_EMBEDDING, PART_CONTROL = 1, 4
PATIENCE_S = 60.0
MACS = 1000
"""Of one sample, as this party claims."""
Answer = Frame | bytes
Attack = Callable[[Frame, Frame], list[Answer]]
"""Takes an order and its honest answer; returns what is sent instead, frames or bytes as they are."""


class TurnedAway(Exception):  # noqa: N818 - says what happened
    """The server ended the stream; the text is its last word."""


def frame(shape: tuple[int, ...], value: float = 0.25, **header: int) -> bytes:
    """Encode a dense float32 tensor of one value; ``header`` are fields that lie."""
    fields = {"version": 1, "format": 0, "values": 0, "dimensions": len(shape), "k": 0, "nonzeros": 0} | header
    entries = 1
    for size in shape:
        entries *= size
    if "nonzeros" not in header:
        fields["nonzeros"] = entries if value else 0
    return struct.pack(f"<BBBBBI{len(shape)}I", *fields.values(), *shape) + struct.pack("<f", value) * entries


class WireParty:
    """One party of a federation, which answers correctly until it is told otherwise.

    Args:
        address: of the server.
        keys: folder of the party's certificate.
        hello: what the party says first, as recorded from an honest one.
        batch_size, width: of its embeddings.
        work: forward passes times samples in a round, a backward pass counted as two.
    """

    def __init__(
        self, address: str, keys: Path, hello: dict[str, Any], *, batch_size: int, width: int, work: int
    ) -> None:
        self.address = address
        self.hello = hello
        self.shape = batch_size, width
        self.work = work
        pem = [(keys / name).read_bytes() for name in ("ca.pem", "key.pem", "certificate.pem")]
        self.credentials = grpc.ssl_channel_credentials(*pem)
        self.saved: set[int] = set()

    def dial(self, **changes: Any) -> "Dialled":
        """Say hello; return the stream. Raises TurnedAway where the server refuses."""
        hello = self.hello | {"rounds": sorted(self.saved)} | changes
        return Dialled(self, Frame(HELLO, parts=said(hello)))

    def reply(self, order: Frame, assigned: dict[str, Any]) -> Frame:
        """Return the honest answer to an order."""
        kind, parts = self._answer(order, assigned)
        return replace(order, kind=kind, parts=parts)

    def _answer(self, order: Frame, assigned: dict[str, Any]) -> tuple[int, list[tuple[int, bytes]]]:
        match order.kind:
            case 44:
                return RESTORED, []
            case 46:
                rounds = order.control["round"]
                self.saved.add(rounds)
                return SAVED, said({"digest": hashlib.sha256(str(rounds).encode()).hexdigest()})
            case 1:
                assigned |= order.control
                return DONE, []
            case 2:
                return EMBEDDING, [(PART_EMBEDDING, frame(self.shape))]
            case 5:
                return REPORT, said(self.report(assigned))
            case 7:
                rows = order.control["stop"] - order.control["start"], self.shape[1]
                return EVALUATION, [(PART_EMBEDDING, frame(rows))]
            case _:
                return DESCRIPTION, said(DESCRIBED)

    def report(self, assigned: dict[str, Any]) -> dict[str, Any]:
        """Return what the party reports of a round."""
        return {
            "alpha": assigned["alpha"],
            "beta": assigned["beta"],
            "macs_per_sample": MACS,
            "parameters": 10,
            "train_macs": MACS * self.work,
            "unpruned_train_macs": MACS * self.work,
            "train_time_s": "1.000000e-06",
            "omega": 0.0,
            "psi": 0.0,
            "head_drift": 0.0,
        }


DESCRIBED: dict[str, Any] = {
    "weights_digest": "0" * 64,
    "finished_digest": "0" * 64,
    "evaluation_macs": 10,
    "widths": {"layer.0": 3},
    "original_widths": {"layer.0": 4},
}


class Dialled:
    """A stream to the server, from its hello on."""

    def __init__(self, party: WireParty, first: Frame) -> None:
        self.party = party
        self.outbox = queue.SimpleQueue[bytes | None]()
        self.assigned: dict[str, Any] = {}
        options = [("grpc.ssl_target_name_override", "server"), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.secure_channel(party.address, party.credentials, options)
        self.send(first)
        join = self.channel.stream_stream("/lvfl.Federation/Join")
        self.inbox = join(self._pieces(), timeout=PATIENCE_S, wait_for_ready=True)
        self.welcome = self.receive()

    def _pieces(self) -> Iterator[bytes]:
        while (piece := self.outbox.get()) is not None:
            yield piece

    def send(self, what: Answer) -> None:
        """Send a frame, or bytes as they are."""
        self.outbox.put(what if isinstance(what, bytes) else what.packed())

    def receive(self) -> Frame:
        """Return the next message that is no heartbeat. Raises TurnedAway at the stream's end."""
        last_word = ""
        try:
            for data in self.inbox:
                message = Frame.read(data)
                if message.kind == REFUSAL:
                    last_word = message.control["reason"]
                elif message.kind != HEARTBEAT:
                    return message
        except grpc.RpcError as error:
            last_word = last_word or str(error)
        self.hang_up()
        raise TurnedAway(last_word)

    def hang_up(self) -> None:
        self.outbox.put(None)
        self.inbox.cancel()
        self.channel.close()

    def follow(self, at: str = "", attack: Attack | None = None) -> str:
        """Answer orders to the goodbye, or attack at the first order of a kind and return the server's last word."""
        try:
            while True:
                order = self.receive()
                if order.kind == GOODBYE:
                    self.hang_up()
                    return order.control["reason"]
                honest = self.party.reply(order, self.assigned)
                attacked = attack is not None and NAMES.get(order.kind) == at
                for answer in attack(order, honest) if attack is not None and attacked else [honest]:
                    self.send(answer)
        except TurnedAway as end:
            return str(end)


NAMES = {1: "START_ROUND", 2: "EMBED", 5: "END_ROUND", 7: "EVALUATE", 9: "DESCRIBE", RESTORE: "restore", SAVE: "save"}
