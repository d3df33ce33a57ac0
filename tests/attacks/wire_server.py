"""An evil server, written against the wire format alone: gRPC, struct and json, none of our handlers.

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
from attacks.wire import GOODBYE, HEARTBEAT, REFUSAL, RESTORE, SAVE, WELCOME, Frame, said

RUN = "0123456789abcdef"
ROWS, WIDTH, TEST_ROWS = 16, 8, 40
START_ROUND, EMBED, END_ROUND, EVALUATE, DESCRIBE = 1, 2, 5, 7, 9
PART_GRADIENT, PART_HEAD, PART_CONTROL, PART_PRESENCE = 2, 3, 4, 7
TERMS: dict[str, Any] = {"rounds": 2, "alpha": {"0": 0.2}, "beta": {"0": 0.5}, "evaluation_rows": TEST_ROWS}

Sent = list[bytes]
Lie = Callable[["Orders"], Sent]
"""What is sent in the place of a step's honest message."""


def dense_frame(rows: int = ROWS, width: int = WIDTH, value: float = 0.01, values: int | None = None) -> bytes:
    count = rows * width if values is None else values
    header = struct.pack("<BBBBBIII", 1, 0, 0, 2, 0, rows * width if value else 0, rows, width)
    return header + struct.pack("<f", value) * count


class Orders:
    """Makes the honest messages of a training, each numbered."""

    def __init__(self) -> None:
        self.session, self.sequence = 1, 0

    def frame(self, kind: int, *parts: tuple[int, bytes], **changes: Any) -> Sent:
        header = {"run": RUN, "session": self.session, "sequence": self.sequence} | changes
        return [Frame(kind, parts=[*parts], **header).packed()]

    def welcome(self, **changes: Any) -> Sent:
        run = changes.pop("run", RUN)
        fields = {"heartbeat_s": 0.5, "silence_s": 30.0, "terms": json.dumps(TERMS)} | changes
        return self.frame(WELCOME, *said(fields), run=run, session=0, sequence=0)

    def control(self, kind: int, header: dict[str, Any] | None = None, **fields: Any) -> Sent:
        """Return a message of the session: restore, save, goodbye, refusal."""
        return self.frame(kind, *said(fields), **header or {})

    def start_round(self, text: str = '{"alpha":0.2,"beta":0.5}', round: int = 0, **changes: Any) -> Sent:
        return self.frame(START_ROUND, (PART_CONTROL, text.encode()), round=round, **changes)

    def end_round(self, payload: bytes | None = None) -> Sent:
        return self.frame(END_ROUND, (PART_GRADIENT, dense_frame() if payload is None else payload))

    def evaluate(self, text: str = '{"start":0,"stop":40}') -> Sent:
        return self.frame(EVALUATE, (PART_CONTROL, text.encode()))


HONEST: dict[str, Lie] = {
    "welcome": lambda orders: orders.welcome(),
    "restore": lambda orders: orders.control(RESTORE),
    "START_ROUND": lambda orders: orders.start_round(),
    "EMBED": lambda orders: orders.frame(EMBED),
    "END_ROUND": lambda orders: orders.end_round(),
    "EVALUATE": lambda orders: orders.evaluate(),
    "DESCRIBE": lambda orders: orders.frame(DESCRIBE),
    "save": lambda orders: orders.control(SAVE, round=1),
    "goodbye": lambda orders: orders.control(GOODBYE, reason="done"),
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
        kind = Frame.read(data).kind
        if kind != HEARTBEAT:
            return kind == REFUSAL
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
