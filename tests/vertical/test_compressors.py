"""Embeddings on the way: values of few bits, entries at random, what arrives, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from shorthand import examples
from torch import Tensor

from scripts.lab.benchmarks.codec import entropy_bound_bytes
from vfl.compression.codec import CodecError, encode
from vfl.compression.quantise import (
    BLOCK,
    BetweenLargest,
    OfSpread,
    dequantise,
    dequantise_dithered,
    quantise,
    quantise_dithered,
)
from vfl.compression.sparsify import ErrorFeedback, sparsify
from vfl.config.components import COMPRESSORS
from vfl.config.wire import Bits, WireConfig
from vfl.core.compressors import Dithered, Floats, LargestEntries, magnitude
from vfl.core.embeddings import EmbeddingReceiver, EmbeddingSender, ResidualSender, build_compressor, decode_finite
from vfl.messages.messages import Buffer

HEADER = 17
WIDTHS: tuple[Bits, ...] = (8, 4, 2)
ROUNDINGS = ("nearest", "dithered")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@examples(40)
@given(st.sampled_from(WIDTHS), st.booleans(), st.integers(0, 2 * BLOCK + 3), st.sampled_from([1e-30, 1.0, 1e30]))
def test_a_value_moves_to_a_level_beside_it(bits: Bits, stochastic: bool, entries: int, size: float):
    values = sparsify(randn(1, entries) * size, 0.3)[0]
    stream = torch.Generator().manual_seed(1) if stochastic else None
    codes, steps = quantise(values, BetweenLargest(bits), stream)
    result = dequantise(codes, steps)
    assert codes.abs().max() <= 2 ** (bits - 1) - 1 if entries else len(steps) == 0
    step_of = steps.repeat_interleave(BLOCK)[:entries]
    error = (result - values).abs()
    assert (error <= step_of * (1.0001 if stochastic else 0.5001)).all()
    assert not result[values == 0].any()
    if not stochastic:  # what error feedback needs: nearer than zero is
        assert (error <= values.abs() * 1.0001).all()


@pytest.mark.parametrize("bits", WIDTHS)
def test_stochastic_rounding_is_exact_in_the_mean(bits: Bits):
    values, stream, draws = randn(100), torch.Generator().manual_seed(3), 1000
    mean = torch.stack([dequantise(*quantise(values, BetweenLargest(bits), stream)) for _ in range(draws)]).mean(dim=0)
    step = float(values.abs().max()) / (2 ** (bits - 1) - 1)
    assert (mean - values).abs().max() < 5 * step / 2 / draws**0.5  # five standard deviations
    assert (mean - values).abs().max() > 0


@examples(40)
@given(st.sampled_from(WIDTHS), st.integers(0, 2 * BLOCK + 3), st.sampled_from([1e-30, 1.0, 1e30]))
def test_of_a_dithered_value_half_a_step_is_lost_at_most_and_nothing_in_the_mean(bits: Bits, entries: int, size: float):
    values = randn(entries) * size
    codes, steps = quantise_dithered(values, BetweenLargest(bits))
    error = (dequantise_dithered(codes, steps) - values) / steps.repeat_interleave(BLOCK)[:entries]
    assert codes.abs().max() <= 2 ** (bits - 1) - 1 if entries else len(steps) == 0
    assert (error.abs() <= 0.5001).all()
    assert error.mean().abs() < 5 * (12 * entries) ** -0.5 if entries else True  # five standard deviations
    assert error.square().mean() == pytest.approx(1 / 12, rel=0.2) if entries > BLOCK else True


@examples(40)
@given(
    st.floats(0.36, 8), st.booleans(), st.integers(1, 2 * BLOCK + 3), st.sampled_from([1e-30, 1.0, 1e30]), st.booleans()
)
def test_a_step_of_the_spread_is_the_error_and_no_value_is_cut_off(
    step, dithered, entries: int, size: float, lonely: bool
):
    values = (
        randn(entries) * size if not lonely else torch.zeros(entries).index_fill(0, torch.tensor([entries - 1]), size)
    )
    spacing = OfSpread(step)
    if dithered:
        codes, steps = quantise_dithered(values, spacing)
        error = dequantise_dithered(codes, steps) - values
    else:
        codes, steps = quantise(values, spacing, None)
        error = dequantise(codes, steps) - values
    assert codes.abs().max() <= 127
    for at, block in enumerate(values.split(BLOCK)):
        rms = float(block.double().square().mean().sqrt())
        assert float(steps[at]) == pytest.approx(step * rms, rel=1e-5)
        assert float(error[at * BLOCK :][:BLOCK].abs().max()) <= 0.5001 * step * rms * 1.00001


@given(st.sampled_from(WIDTHS), st.sampled_from(ROUNDINGS))
@examples(20)
def test_coded_frames_hold_the_values_of_packed_ones_in_fewer_bytes(bits: Bits, rounding: str):
    wire = WireConfig.model_validate({"bits": bits, "rounding": rounding})
    packed, coded = (build_compressor(wire.model_copy(update={"coding": each})) for each in ("packed", "entropy"))
    for beta in (0.0, 0.4, 0.9):
        embedding_BD = randn(200, 40) * torch.linspace(0.1, 2.0, 40)
        frames = [each.compress(embedding_BD, beta) for each in (packed, coded)]
        assert len(frames[1]) <= len(frames[0]) * (0.9 if bits == 4 and beta == 0 else 1)
        received = [each.decompress(frame, (200, 40)) for each, frame in zip((packed, coded), frames, strict=True)]
        assert torch.equal(*received)


def test_what_was_left_out_stays_zero_and_is_not_sent_also_with_dither():
    dithered, embedding_BD = magnitude(WireConfig(bits=4)), randn(40, 64)
    frame = dithered.compress(embedding_BD, 0.7)
    assert isinstance(dithered.form, Dithered)
    assert frame == b"\0" + dithered.form.levels.encode(sparsify(embedding_BD, 0.7))
    assert not dithered.decompress(frame, (40, 64))[sparsify(embedding_BD, 0.7) == 0].any()
    for wrong in (b"", b"\2" + frame[1:], b"\1"):
        with pytest.raises(CodecError):
            dithered.decompress(wrong, (40, 64))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_frames_are_within_five_percent_of_what_they_carry(bits: Bits, beta: float, rounding: str):
    wire = WireConfig.model_validate({"bits": bits, "rounding": rounding})
    compressor = build_compressor(wire)
    frame = compressor.compress(randn(256, 128), beta)
    received_BD = compressor.decompress(frame, (256, 128))
    carried = entropy_bound_bytes(256 * 128, int(torch.count_nonzero(received_BD)), bits)
    scales = 4 * 256 * 128 // BLOCK
    assert len(frame) <= 1.05 * (min(carried, 256 * 128 * bits / 8) + scales + HEADER)
    assert compressor.compress(randn(256, 128), beta) == frame


class Rows:
    def __init__(self, wire: WireConfig) -> None: ...

    def compress(self, embedding_BD: torch.Tensor, ratio: float) -> list[torch.Tensor]:
        return list(embedding_BD)

    def decompress(self, frame: list[torch.Tensor], shape: tuple[int, int]) -> torch.Tensor:
        return torch.stack(frame)


def test_frames_are_bytes_or_savings_would_be_false(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(COMPRESSORS.added, "rows", Rows)
    refuses("compressor 'rows'", lambda: build_compressor(WireConfig.model_validate({"compressor": "rows"})), "15")


SETTINGS: dict[str, tuple[WireConfig, float]] = {
    "a quarter of the values": (WireConfig(), 0.75),
    "2 bits to the nearest": (WireConfig(bits=2, rounding="nearest"), 0.0),
    "4 bits at random": (WireConfig(bits=4), 0.3),
    "4 bits dithered": (WireConfig(bits=4, rounding="dithered"), 0.0),
    "a step of the spread": (WireConfig(step=1.0, rounding="nearest", coding="entropy"), 0.5),
    "4 bits of a tenth": (WireConfig(bits=4, rounding="nearest"), 0.9),
    "8 bits of a tenth at random": (WireConfig(bits=8), 0.9),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_error_feedback_sends_a_constant_whole(case: str):
    """The estimate, of which compressed differences are all that is sent, is the minimum of |h - c|^2 in the end."""
    wire, beta = SETTINGS[case]
    target_ND, rows = randn(8, 50), torch.arange(8)
    receiver = EmbeddingReceiver("party_1", 50, build_compressor(wire), ErrorFeedback(8, 50))
    sender = EmbeddingSender(receiver)
    error = [float((sender.send(target_ND, rows, beta)[1] - target_ND).norm()) for _ in range(150)]
    assert error[-1] < 1e-3 * error[0]
    assert float((sender.as_received(target_ND, beta) - target_ND).norm()) > 100 * error[-1]


@given(
    st.sampled_from(COMPRESSORS.names()),
    st.sampled_from(["float32", "bfloat16", "float16"]),
    st.sampled_from([{}, *({"bits": bits} for bits in WIDTHS), {"step": 0.5, "coding": "entropy"}]),
    st.sampled_from(ROUNDINGS),
)
@examples(60)
def test_a_sender_knows_its_embeddings_as_they_are_received(name: str, values: str, levels: Any, rounding: str):
    wire = WireConfig.model_validate({"compressor": name, "values": values, "rounding": rounding, **levels})
    receiver, rows = EmbeddingReceiver("party_1", 30, build_compressor(wire)), torch.arange(20)
    sender = EmbeddingSender(receiver)
    zeros_BD = randn(20, 30).masked_fill(randn(20, 30, seed=1) > 1.0, -0.0)
    for embedding_BD, beta in ((randn(20, 30), 0.0), (zeros_BD, 0.0), (zeros_BD, 0.4)):
        frame, known_BD = sender.send(embedding_BD, rows, beta)
        assert torch.equal(known_BD.view(torch.int32), receiver.receive(frame, rows).view(torch.int32))
    with pytest.raises(ValueError, match="not finite"):
        sender.send(zeros_BD / 0, rows, 0.0)


class Clipping(LargestEntries):
    def decompress(self, frame: Buffer, shape: tuple[int, int]) -> Tensor:
        return super().decompress(frame, shape).clamp(-1, 1)


def test_what_a_compressor_of_ones_own_decodes_is_what_its_sender_knows():
    receiver, embedding_BD = (
        EmbeddingReceiver("party_1", 2, Clipping(Floats("float32"))),
        torch.full((3, 2), 3.0),
    )
    assert EmbeddingSender(receiver).send(embedding_BD, torch.arange(3), 0.0)[1].max() == 1
    assert EmbeddingSender(receiver).as_received(embedding_BD, 0.0).max() == 1


@pytest.mark.parametrize("wire", [WireConfig(), WireConfig(bits=4, rounding="nearest")])
def test_gradients_of_small_samples_arrive_with_error_feedback_alone(wire: WireConfig):
    """Descent on |h - c|^2 / 2 whose later rows have large gradients of alternating sign: they hide all others."""
    target_ND, rows = randn(8, 50), torch.arange(8)
    noise_ND = 20 * torch.where(rows > 3, 1.0, 0.0)[:, None]
    away: list[float] = []
    for residual_ND in (torch.zeros(8, 50), None):
        down = ResidualSender(magnitude(wire), 0.6, residual_ND)
        h_ND = torch.zeros(8, 50)
        for step in range(400):
            frame = down.send(h_ND - target_ND + noise_ND * (-1) ** step, rows).payload
            h_ND = h_ND - 0.02 * down.compressor.decompress(frame, (8, 50))
        away.append(float((h_ND - target_ND)[:4].norm() / target_ND[:4].norm()))
    assert away[0] < 0.3
    assert away[1] > 0.9


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_refused(value: float):
    frame = encode(torch.ones(2, 3).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(value)))
    with pytest.raises(ValueError, match=r"^party_1's embedding has values that are not finite"):
        decode_finite(frame, (2, 3), "float32", "party_1's embedding")


FRAME = encode(torch.ones(2, 3))
REFUSED = {
    "of another value type": (encode(torch.ones(2, 3), "float16"), "its values are float16, float32 was agreed"),
    "of another shape": (encode(torch.ones(3, 2)), "frame holds a tensor of shape (3, 2), expected (2, 3)"),
    "for another batch": (encode(torch.ones(5, 3)), "frame holds a tensor of shape (5, 3), expected (2, 3)"),
    "truncated": (FRAME[:-1], "dense frame of shape (2, 3) has a body of 23 bytes"),
    "truncated in its header": (FRAME[:11], "frame declares 2 dimensions: above 8, or cut short"),
    "of another version": (b"\x02" + FRAME[1:], "frame is of version 2, this program reads version 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_frame_that_is_not_as_agreed_is_refused_by_what_differs(case: str):
    frame, text = REFUSED[case]
    with pytest.raises(CodecError) as refused:
        EmbeddingReceiver("party_1", 3, magnitude(WireConfig())).receive(frame, torch.arange(2))
    assert str(refused.value) == f"party_1's embedding: {text}"


def test_what_can_be_written_is_decoded_where_it_lies_and_nothing_else():
    values_BD = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    for frame, shared in ((encode(values_BD), False), (bytearray(encode(values_BD)), True)):
        decoded_BD = decode_finite(memoryview(frame), (2, 3), "float32", "party_1's embedding")
        assert torch.equal(decoded_BD, values_BD)
        assert (decoded_BD.data_ptr() - address_of(frame) == len(frame) - 24) == shared


def address_of(buffer: bytes | bytearray) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def test_the_largest_finite_values_pass():
    largest = torch.tensor([[torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max, 0.0]])
    assert torch.equal(decode_finite(encode(largest), (1, 3), "float32", "party_1's embedding"), largest)
