"""A party written against the wire format alone (docs/protocol.md, vfl/wire): no model, constant answers, any lie."""

import hashlib
import json
import queue
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from vfl.wire.envelope_pb2 import Envelope, Hello

EMBEDDING, REPORT, EVALUATION, DONE, DESCRIPTION = 3, 6, 8, 10, 11
PART_EMBEDDING, PART_CONTROL = 1, 4
PATIENCE_S = 60.0
MACS = 1000
"""Of one sample, as this party claims."""
Answer = Envelope | bytes
Attack = Callable[[Envelope, Envelope], list[Answer]]
"""Takes an order and its honest answer; returns what is sent instead, envelopes or bytes as they are."""


class TurnedAway(Exception):  # noqa: N818 - says what happened
    """The server ended the stream; the text is its last word."""


def message(kind: int, round_index: int, exchange: int, *parts: tuple[int, bytes], version: int = 1) -> bytes:
    """Pack a message."""
    header = struct.pack("<BBIIH", version, kind, round_index, exchange, len(parts))
    return header + b"".join(struct.pack("<BI", part, len(payload)) + payload for part, payload in parts)


def frame(shape: tuple[int, ...], value: float = 0.25, **header: int) -> bytes:
    """Encode a dense float32 tensor of one value; ``header`` are fields that lie."""
    fields = {"version": 1, "format": 0, "values": 0, "dimensions": len(shape), "k": 0, "nonzeros": 0} | header
    entries = 1
    for size in shape:
        entries *= size
    if "nonzeros" not in header:
        fields["nonzeros"] = entries if value else 0
    return struct.pack(f"<BBBBBI{len(shape)}I", *fields.values(), *shape) + struct.pack("<f", value) * entries


def control_of(request: bytes) -> dict[str, Any]:
    """Read the control part, which is a request's first."""
    (size,) = struct.unpack_from("<I", request, 13)
    return json.loads(request[17 : 17 + size])


class WireParty:
    """One party of a federation, which answers correctly until it is told otherwise.

    Args:
        address: of the server.
        keys: folder of the party's certificate.
        hello: what the party says first, as recorded from an honest one.
        batch_size, width: of its embeddings.
        work: forward passes times samples in a round, a backward pass counted as two.
    """

    def __init__(self, address: str, keys: Path, hello: Hello, *, batch_size: int, width: int, work: int) -> None:
        self.address = address
        self.hello = hello
        self.shape = batch_size, width
        self.work = work
        pem = [(keys / name).read_bytes() for name in ("ca.pem", "key.pem", "certificate.pem")]
        self.credentials = grpc.ssl_channel_credentials(*pem)
        self.saved: set[int] = set()

    def dial(self, **changes: Any) -> "Dialled":
        """Say hello; return the stream. Raises TurnedAway where the server refuses."""
        hello = Hello.FromString(self.hello.SerializeToString())
        hello.rounds[:] = sorted(self.saved)
        for name, value in changes.items():
            field = getattr(hello, name)
            if isinstance(value, list):
                field[:] = value
            else:
                setattr(hello, name, value)
        return Dialled(self, Envelope(version=2, hello=hello))

    def reply(self, order: Envelope, assigned: dict[str, Any]) -> Envelope:
        """Return the honest answer to an order."""
        answer = Envelope(version=2, run=order.run, session=order.session, sequence=order.sequence)
        answer.round, answer.exchange = order.round, order.exchange
        match order.WhichOneof("kind"):
            case "restore":
                answer.restored.SetInParent()
            case "save":
                self.saved.add(order.save.round)
                answer.saved.digest = hashlib.sha256(str(order.save.round).encode()).hexdigest()
            case _:
                answer.reply = self._message(order.request, order.round, order.exchange, assigned)
        return answer

    def _message(self, request: bytes, round_index: int, exchange: int, assigned: dict[str, Any]) -> bytes:
        match request[1]:
            case 1:
                assigned |= control_of(request)
                return message(DONE, round_index, exchange)
            case 2:
                return message(EMBEDDING, round_index, exchange, (PART_EMBEDDING, frame(self.shape)))
            case 5:
                return message(REPORT, round_index, exchange, (PART_CONTROL, encoded(self.report(assigned))))
            case 7:
                wanted = control_of(request)
                rows = wanted["stop"] - wanted["start"], self.shape[1]
                return message(EVALUATION, round_index, exchange, (PART_EMBEDDING, frame(rows)))
            case _:
                return message(DESCRIPTION, round_index, exchange, (PART_CONTROL, encoded(DESCRIBED)))

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


def encoded(values: Any) -> bytes:
    """Write JSON, Python's NaN and Infinity included."""
    return json.dumps(values).encode()


class Dialled:
    """A stream to the server, from its hello on."""

    def __init__(self, party: WireParty, first: Envelope | bytes) -> None:
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
        """Send an envelope, or bytes as they are."""
        self.outbox.put(what if isinstance(what, bytes) else serialized(what))

    def receive(self) -> Envelope:
        """Return the next envelope that is no heartbeat. Raises TurnedAway at the stream's end."""
        last_word = ""
        try:
            for data in self.inbox:
                envelope = Envelope.FromString(data)
                if envelope.WhichOneof("kind") == "refusal":
                    last_word = envelope.refusal.reason
                elif envelope.WhichOneof("kind") != "heartbeat":
                    return envelope
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
                if order.WhichOneof("kind") == "goodbye":
                    self.hang_up()
                    return order.goodbye.reason
                honest = self.party.reply(order, self.assigned)
                attacked = attack is not None and name_of(order) == at
                for answer in attack(order, honest) if attack is not None and attacked else [honest]:
                    self.send(answer)
        except TurnedAway as end:
            return str(end)


NAMES = {1: "START_ROUND", 2: "EMBED", 5: "END_ROUND", 7: "EVALUATE", 9: "DESCRIBE"}


def name_of(order: Envelope) -> str:
    """Return what an order asks for."""
    kind = order.WhichOneof("kind") or ""
    return NAMES[order.request[1]] if kind == "request" else kind


def serialized(envelope: Envelope) -> bytes:
    """Serialize with the packed message first, as the protocol wants it."""
    content = envelope.reply
    if envelope.WhichOneof("kind") != "reply":
        return envelope.SerializeToString()
    others = Envelope.FromString(envelope.SerializeToString())
    others.ClearField("reply")
    first = Envelope(reply=content)
    return first.SerializeToString() + others.SerializeToString()
