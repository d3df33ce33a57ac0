"""Whatever comes off the wire, there is an answer or a typed error: 100,000 mutated messages, and their memory."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import settings
from resident import begin_peak, needs_proc, resident_bytes
from shorthand import at_every_run

from vfl.compression.codec import CodecError, ValueType, decode, encode
from vfl.compression.sparsify import sparsify
from vfl.config.wire import WireConfig
from vfl.core.compressors import magnitude
from vfl.core.embeddings import Compressor, EmbeddingReceiver
from vfl.messages.control import SampleRange
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.parties.network.wire.frame import Assembler, cut
from vfl.parties.network.wire.session import Goodbye, Hello, check_run

RUN = "0123456789abcdef"
ROWS, WIDTH = 6, 5
MUTATIONS = 1000 * settings().max_examples
"""100,000 before a release."""
VALUES: tuple[ValueType, ...] = ("float32", "float16", "bfloat16")
MIB = 1 << 20


CODED = WireConfig(step=1.0, coding="entropy", rounding="dithered")
WIRES = (*(WireConfig(values=values) for values in VALUES), *(WireConfig(bits=bits) for bits in (8, 4, 2)), CODED)


def originals() -> list[tuple[bytes, Compressor]]:
    """Good messages of every kind that carries something, frames of every format and value type."""
    values = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2))
    asked = SampleRange(start=3, stop=7).part()
    made: list[tuple[bytes, Compressor]] = []
    for kind in map(magnitude, WIRES):
        for beta in (0.0, 0.4, 0.9):
            frame = Part(PartKind.EMBEDDING, kind.compress(values, beta))
            for message in (Message(Kind.EMBED, 3, 1, (frame,)), Message(Kind.EVALUATE, 3, 1, (asked,))):
                made.append((b"".join(cut(replace(message, run=RUN, session=1, sequence=2))), kind))
    said = {
        Kind.HELLO: Hello(party="party_1", agreement='{"seed": 1}', rounds=(1, 2)),
        Kind.GOODBYE: Goodbye(exit_code=3, reason="over"),
    }
    made += [(b"".join(cut(Message(kind, parts=(each.part(),), run=RUN))), made[0][1]) for kind, each in said.items()]
    return made


CONTENTS = {Kind.HELLO: Hello, Kind.GOODBYE: Goodbye, Kind.EVALUATE: SampleRange}


def mutate(data: bytes, choice: random.Random) -> bytes:
    """Damage bytes as a bad peer or disk would: flip, overwrite, cut, repeat, insert."""
    damaged = bytearray(data)
    for _ in range(choice.choice((1, 1, 2, 5))):
        at = choice.randrange(len(damaged) + 1)
        match choice.randrange(5):
            case 0 if at < len(damaged):
                damaged[at] ^= 1 << choice.randrange(8)
            case 1:
                damaged[at : at + 4] = choice.choice((b"\xff" * 4, bytes(4), choice.randbytes(4)))
            case 2:
                del damaged[at:]
            case 3:
                damaged[at:at] = damaged[at : at + choice.randrange(1, 40)]
            case _:
                damaged[at:at] = choice.randbytes(choice.randrange(1, 8))
        if not damaged:
            break
    return bytes(damaged)


def read_all(data: bytes, receiver: EmbeddingReceiver) -> str:
    """Do what a receiver does with bytes, and return how far it got."""
    try:
        message = Assembler(1).add(data)
    except MessageError:
        return "frame"
    try:
        assert message is not None, "of one piece"
        check_run(message, RUN)
        for frame in message.payloads(PartKind.EMBEDDING):
            receiver.receive(frame, torch.arange(ROWS))
        if message.kind in CONTENTS:
            CONTENTS[message.kind].of(message)
    except CodecError:
        return "codec"
    except MessageError:
        return "message"
    except ValueError as error:
        return "not finite" if "not finite" in str(error) else repr(error)
    return "read"


def test_mutated_messages_give_typed_errors_only():
    choice = random.Random(7)
    sources = originals()
    ends: dict[str, int] = {}
    for _ in range(MUTATIONS):
        data, kind = choice.choice(sources)
        end = read_all(mutate(data, choice), EmbeddingReceiver("party_1", WIDTH, kind))
        ends[end] = ends.get(end, 0) + 1
    # Every layer has had its share: what passes them all is damaged in a value alone.
    assert ends.keys() == {"frame", "codec", "message", "not finite", "read"}
    assert min(ends.values()) > MUTATIONS / 1000, ends


def test_an_undamaged_message_is_read():
    data, kind = originals()[0]
    assert read_all(data, EmbeddingReceiver("party_1", WIDTH, kind)) == "read"


@needs_proc
@pytest.mark.parametrize("beta", at_every_run([0.0, 0.5, 0.99], 0.5))
def test_a_large_mutated_frame_takes_less_than_twice_the_limit(beta: float):
    limit = 32 * MIB
    rows, width = 1024, limit // 4 // 1024 - 1  # the largest that a message holds
    frame = encode(sparsify(torch.randn(rows, width, generator=torch.Generator().manual_seed(1)), beta))
    assert len(frame) < limit
    choice = random.Random(3)
    undamaged = 0
    for place in (0, 2, 4, 5, 9, 13, *(choice.randrange(17, len(frame)) for _ in range(6)), len(frame)):
        damaged = frame[:place] + choice.randbytes(min(2, len(frame) - place)) + frame[place + 2 :]
        before = begin_peak()
        try:
            decode(damaged, shape=(rows, width))
            undamaged += 1  # but for a value
        except CodecError:
            pass
        assert resident_bytes("VmHWM") - before < 2 * limit, place
    assert undamaged
