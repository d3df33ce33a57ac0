"""Memory of a message at the limit, through gRPC, frame and codec, whichever way it goes."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from resident import begin_peak, needs_proc, resident_bytes
from shorthand import release

from vfl.compression.codec import ValueType, encode
from vfl.compression.sparsify import sparsify
from vfl.config import NetworkConfig
from vfl.core.embeddings import decode_finite
from vfl.messages.messages import Buffer, Kind, Message, Part, PartKind
from vfl.parties.launch.supervisor import free_port
from vfl.parties.network.admission import DataDigests, Expected
from vfl.parties.network.server.connection import RemoteLink
from vfl.parties.network.server.hub import Hub
from vfl.parties.network.transport.rpc import is_end, open_channel, open_stream
from vfl.parties.network.wire.frame import HEADER_BYTES, MIB, PIECE_BYTES, cut, frame_bytes, pack
from vfl.parties.network.wire.session import Hello

LIMIT_MB = 64
ROWS, WIDTH = 1024, LIMIT_MB * MIB // 4 // 1024 - 1
"""Of the largest dense float32 embedding that a message holds."""
RUN = "0123456789abcdef"
pytestmark = needs_proc


def measured(work: Callable[[], object]) -> float:
    """Peak memory of ``work`` beyond what was there before, in limits."""
    before = begin_peak()
    work()
    return (resident_bytes("VmHWM") - before) / (LIMIT_MB * MIB)


def least(work: Callable[[], object], bound: float) -> float:
    """Peak memory of ``work`` as ``measured``, of a few tries until one is below the bound.

    What both ends of gRPC hold at a moment only adds, by up to a third of a limit.
    """
    return next((peak for peak in (measured(work) for _ in range(8)) if peak < bound), bound)


class Party:
    """The other end of a hub's stream: answers every request with one message, and keeps nothing of what comes."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.answer = Message(Kind.DONE)
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        channel = open_channel(self.address, None)
        call = open_stream(channel)
        hello = Hello(party="party_1", instance="one", agreement="{}")
        await call.write(pack(Message(Kind.HELLO, parts=(hello.part(),))))
        await call.read()  # welcome
        sequence = 0
        while not is_end(data := await call.read()):
            kind = data[1]
            if kind == Kind.HEARTBEAT:
                continue
            sequence += 1
            while len(data) == PIECE_BYTES:
                data = await call.read()
            answer = Message(Kind.RESTORED) if kind == Kind.RESTORE else self.answer
            for piece in cut(replace(answer, run=RUN, session=1, sequence=sequence)):
                await call.write(piece)
        await channel.close()


@pytest.fixture(scope="module")
def joined() -> Iterator[tuple[Party, RemoteLink]]:
    """A party and the server's link to it, warm: whatever gRPC takes once, it has."""
    address = f"127.0.0.1:{free_port()}"
    expected = {"party_1": Expected(0, "{}", DataDigests())}
    network = NetworkConfig(listen=address, max_message_mb=LIMIT_MB)
    party = Party(address)
    with Hub(RUN, expected, network, None, log=lambda line: None) as hub:
        party.thread.start()
        link = RemoteLink(hub.wait_for(("party_1",), 60)["party_1"], 1)
        party.answer = carrying(bytes(LIMIT_MB * MIB - HEADER_BYTES - 5))
        ask(link)
        yield party, link
        link.connection.stream.end("over")
        party.thread.join()


def ask(link: RemoteLink, *parts: Part) -> Message:
    return link.send(Message(Kind.EMBED, parts=parts)).result()


def carrying(frame: Buffer) -> Message:
    return Message(Kind.EMBEDDING, parts=(Part(PartKind.EMBEDDING, frame),))


CASES: list[tuple[ValueType, float]] = [
    ("float32", 0.0),
    ("float32", 0.5),
    ("float32", 0.8),
    ("float32", 0.95),
    ("float16", 0.0),
    ("bfloat16", 0.5),
]


@pytest.mark.parametrize(("values", "beta"), [CASES[1], *(release(*case) for case in CASES if case != CASES[1])])
def test_receiving_takes_less_than_twice_the_limit(joined: tuple[Party, RemoteLink], values: ValueType, beta: float):
    party, link = joined
    embedding_BD = sparsify(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)), beta)
    party.answer = carrying(encode(embedding_BD, values))
    if (values, beta) == ("float32", 0.0):
        assert LIMIT_MB * MIB - 8192 < frame_bytes(party.answer) <= LIMIT_MB * MIB
    expected_BD = embedding_BD.to(getattr(torch, values)).float()

    def receive() -> None:
        (frame,) = ask(link).payloads(PartKind.EMBEDDING)
        received_BD = decode_finite(frame, (ROWS, WIDTH), values, "party_1's embedding")
        assert torch.equal(received_BD, expected_BD)

    bound = 1.6 if (values, beta) == ("float32", 0.0) else 2
    assert least(receive, bound) < bound


def test_sending_takes_no_memory_beside_the_frame(joined: tuple[Party, RemoteLink]):
    party, link = joined
    party.answer = carrying(b"")
    embedding_BD = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    assert least(lambda: ask(link, Part(PartKind.EMBEDDING, encode(embedding_BD))), 1.6) < 1.6
