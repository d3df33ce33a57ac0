"""An evil server, written against the wire format alone: gRPC, protobuf and struct, none of our handlers.

It trains with one party as an honest server would, until the step at which it lies. ``python -m attacks.wire_server``
listens for all cases.
"""

import asyncio
import json
import struct
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from vfl.wire.envelope_pb2 import Envelope

RUN = "0123456789abcdef"
ROWS, WIDTH, TEST_ROWS = 16, 8, 40
START_ROUND, EMBED, END_ROUND, EVALUATE, DESCRIBE = 1, 2, 5, 7, 9
PART_GRADIENT, PART_HEAD, PART_CONTROL = 2, 3, 4
TERMS: dict[str, Any] = {"rounds": 2, "alpha": {"0": 0.2}, "beta": {"0": 0.5}, "evaluation_rows": TEST_ROWS}
TERMS["sample_pruning"] = 0.0

Sent = list[bytes]
Lie = Callable[["Orders"], Sent]
"""What is sent in the place of a step's honest message."""


def message(kind: int, round_index: int, exchange: int, *parts: tuple[int, bytes]) -> bytes:
    packed = struct.pack("<BBIIH", 1, kind, round_index, exchange, len(parts))
    return packed + b"".join(struct.pack("<BI", part, len(payload)) + payload for part, payload in parts)


def dense_frame(rows: int = ROWS, width: int = WIDTH, value: float = 0.01, values: int | None = None) -> bytes:
    count = rows * width if values is None else values
    header = struct.pack("<BBBBBIII", 1, 0, 0, 2, 0, rows * width if value else 0, rows, width)
    return header + struct.pack("<f", value) * count


def request(content: bytes, announced: int | None = None, **fields: int | str) -> bytes:
    """Serialize a request: its content is the first field."""
    length, varint = len(content) if announced is None else announced, bytearray()
    while length > 0x7F:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    varint.append(length)
    return bytes([14 << 3 | 2, *varint]) + content + Envelope(**fields).SerializeToString()  # type: ignore[arg-type]


class Orders:
    """Makes the honest messages of a training, each numbered."""

    def __init__(self) -> None:
        self.session, self.sequence = 1, 0

    def header(self, **changes: Any) -> dict[str, Any]:
        fields = {"version": 2, "run": RUN, "session": self.session, "sequence": self.sequence}
        return fields | changes

    def welcome(self, **changes: Any) -> Sent:
        envelope = Envelope(version=2, run=changes.pop("run", RUN))
        fields = {"heartbeat_s": 0.5, "silence_s": 30.0, "terms": json.dumps(TERMS)} | changes
        for name, value in fields.items():
            setattr(envelope.welcome, name, value)
        envelope.welcome.SetInParent()
        return [envelope.SerializeToString()]

    def control(self, kind: str, header: dict[str, Any] | None = None, **fields: Any) -> Sent:
        """Return an order that is no request: restore, save, goodbye, refusal."""
        envelope = Envelope(**self.header() | (header or {}))
        inner = getattr(envelope, kind)
        inner.SetInParent()
        for name, value in fields.items():
            setattr(inner, name, value)
        return [envelope.SerializeToString()]

    def request(self, kind: int, *parts: tuple[int, bytes], round: int = 0, **changes: Any) -> Sent:
        return [request(message(kind, round, 0, *parts), **self.header(round=round) | changes)]

    def start_round(self, text: str = '{"alpha":0.2,"beta":0.5}', round: int = 0, **changes: Any) -> Sent:
        return self.request(START_ROUND, (PART_CONTROL, text.encode()), round=round, **changes)

    def end_round(self, payload: bytes | None = None) -> Sent:
        return self.request(END_ROUND, (PART_GRADIENT, dense_frame() if payload is None else payload))

    def evaluate(self, text: str = '{"start":0,"stop":40}') -> Sent:
        return self.request(EVALUATE, (PART_CONTROL, text.encode()))


HONEST: dict[str, Lie] = {
    "welcome": lambda orders: orders.welcome(),
    "restore": lambda orders: orders.control("restore"),
    "START_ROUND": lambda orders: orders.start_round(),
    "EMBED": lambda orders: orders.request(EMBED),
    "END_ROUND": lambda orders: orders.end_round(),
    "EVALUATE": lambda orders: orders.evaluate(),
    "DESCRIBE": lambda orders: orders.request(DESCRIBE),
    "save": lambda orders: orders.control("save", round=1),
    "goodbye": lambda orders: orders.control("goodbye", reason="done"),
}


async def listen(at: str, lie: Lie) -> tuple[grpc.aio.Server, int]:
    """Listen in plaintext on this machine, and lie at one step to whoever dials."""

    async def serve(incoming: AsyncIterator[bytes], context: Any) -> None:
        await anext(incoming)
        orders = Orders()
        for step, honest in HONEST.items():
            orders.sequence += step != "welcome"
            for data in lie(orders) if step == at else honest(orders):
                await context.write(data)
            if step not in ("welcome", "goodbye") and await refused(incoming):
                return
        await refused(incoming)

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    method = grpc.stream_stream_rpc_method_handler(serve)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lvfl.Federation", {"Join": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def refused(incoming: AsyncIterator[bytes]) -> bool:
    """Wait for an answer; return whether it is the last word."""
    async for data in incoming:
        envelope = Envelope.FromString(data)
        if not envelope.HasField("heartbeat"):
            return envelope.HasField("refusal")
    return True


async def main() -> None:
    """Listen once for every case, and print the ports by their names."""
    from attacks.server_lies import CASES

    lies = {"honest": ("", HONEST["welcome"])} | {name: (case.at, case.lie) for name, case in CASES.items()}
    servers = {name: await listen(at, lie) for name, (at, lie) in lies.items()}
    sys.stdout.write(json.dumps({name: port for name, (_, port) in servers.items()}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
