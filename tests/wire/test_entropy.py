"""The entropy code of whole numbers: exact, near the entropy, never larger, and unharmed by a stranger's bytes."""

import random
import tracemalloc
from resource import RUSAGE_SELF, getrusage

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from shorthand import examples

from vfl.compression import entropy
from vfl.compression.codec import ValueType, decode, encode, frame_info
from vfl.compression.entropy import bits_size
from vfl.messages.messages import CodecError

WIDTHS: dict[ValueType, int] = {"int8": 8, "int4": 4, "int2": 2}
HEADER = 17


def laplace(rows: int, columns: int, spread: float | NDArray[np.float64], largest: int, seed: int = 0):
    drawn = np.random.default_rng(seed).laplace(size=(rows, columns)) * spread
    return drawn.round().clip(-largest, largest).astype(np.int8)


def bits_of(counts: NDArray[np.int64]) -> float:
    """Empirical entropy of so many symbols, times their number."""
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def histogram(numbers: NDArray[np.int8]) -> NDArray[np.int64]:
    return np.bincount(numbers.ravel().astype(int) + 128, minlength=256)


@given(st.sampled_from(list(WIDTHS)), st.integers(1, 60), st.integers(1, 60), st.floats(0.05, 60), st.integers(0, 9))
@examples(80)
def test_numbers_come_back_in_no_larger_frame(values: ValueType, rows: int, columns: int, spread: float, seed: int):
    largest = 2 ** (WIDTHS[values] - 1) - 1
    numbers = laplace(rows, columns, spread, largest, seed)
    tensor = torch.as_tensor(numbers).float()
    frame, packed = encode(tensor, values, coded=True), encode(tensor, values)
    assert len(frame) <= len(packed)
    assert torch.equal(decode(frame, shape=(rows, columns), values=values, coded=True), tensor)
    body = np.frombuffer(entropy.encode(numbers), np.uint8)  # also where the frame did not take it
    assert np.array_equal(entropy.decode(body, rows, columns), numbers)


@pytest.mark.parametrize("shape", [(40,), (3, 4, 50), (1, 600), (600, 1)])
def test_tensors_of_any_dimensions_and_extremes_are_coded(shape: tuple[int, ...]):
    tensor = torch.where(torch.arange(600 if len(shape) > 1 else 40) % 9 > 0, 0.0, -128.0).view(shape)
    tensor.view(-1)[3] = 127.0
    frame = encode(tensor, "int8", coded=True)
    assert torch.equal(decode(frame, coded=True), tensor)
    for number in (5.0, 127.0, -128.0):
        constant = torch.full(shape, number)
        assert torch.equal(decode(encode(constant, "int8", coded=True), coded=True), constant)


@pytest.mark.parametrize(("values", "spread"), [("int8", 12.0), ("int8", 1.0), ("int4", 1.2), ("int2", 0.4)])
def test_a_frame_is_within_two_percent_of_the_entropy_and_its_model(values: ValueType, spread: float):
    numbers = laplace(256, 128, spread, 2 ** (WIDTHS[values] - 1) - 1)
    frame = encode(torch.as_tensor(numbers).float(), values, coded=True)
    assert frame_info(frame).format == "coded"
    symbols = int(numbers.max()) - int(numbers.min()) + 1
    model = 4 + 6 * symbols / 8
    assert len(frame) <= 1.02 * (bits_of(histogram(numbers)) / 8 + model) + HEADER


@pytest.mark.parametrize("axis", [1, 2])
def test_rows_or_columns_that_differ_have_histograms_of_their_own(axis: int):
    spreads = np.repeat([0.1, 0.5, 1.5, 3.0], 32)
    numbers = laplace(128, 128, spreads, 7)
    body = entropy.encode(numbers.T if axis == 1 else numbers)
    assert body[0] == axis
    groups = [histogram(numbers[:, at : at + 32]) for at in range(0, 128, 32)]
    known = sum(map(bits_of, groups)) / 8 + 4 + 128 * 2 / 8 + 4 * 6 * 15 / 8
    assert len(body) <= 1.02 * known
    assert len(body) < 0.9 * bits_of(histogram(numbers)) / 8


def test_the_layout_and_the_coders_words_stay_as_they_are():
    """Else two versions of this program, or of the package below it, would misread each other."""
    rows, columns = np.indices((16, 40))
    numbers = ((rows * 7 + columns * columns) % 5 % 3 - 1).astype(np.int8)
    assert entropy.encode(numbers).hex() == GOLDEN


GOLDEN = (
    "0001ff0261d8011f0000009c52741228f0cd6b2ca5674de7ecea2e57672600b68c0fa932cc10ea3e3a2c74dc2dddd6f614a9fbb7cbde"
    "992c21a703003b9f622a900755dce92c3a54df74f51ece107c18f2df0ac608699c097ca860d347841f5f90297be23a2ccc54"
    "e94ecc4df2252383b2518642133ee0f1e8d2c48b747ff151e708359681c20f"
)


def sample() -> tuple[NDArray[np.int8], bytes]:
    numbers = laplace(200, 64, np.repeat([0.3, 2.0], 32), 7)
    body = entropy.encode(numbers)
    assert body[0] == 2
    return numbers, body


def decoded(body: bytes) -> NDArray[np.int8]:
    return entropy.decode(np.frombuffer(body, np.uint8), 200, 64)


def counted(body: bytes) -> bytes:
    """The body of `sample` with the number of the words that it now has."""
    at = 4 + bits_size(64 * int(body[1] - 1).bit_length()) + bits_size(body[1] * (body[3] + 1) * 6)
    return body[:at] + ((len(body) - at - 4) // 4).to_bytes(4, "little") + body[at + 4 :]


@pytest.mark.parametrize(("rows", "columns", "spread"), [(1, 24, 1.0), (6, 8, 0.4), (16, 12, 2.0), (40, 30, 9.0)])
def test_a_body_cut_by_whole_words_is_refused(rows: int, columns: int, spread: float):
    cut = 0
    for seed in range(60):
        body = np.frombuffer(entropy.encode(laplace(rows, columns, spread, 7, seed)), np.uint8)
        for first in range(len(body) % 4, len(body), 4):
            for damaged in (body[:first], np.concatenate((body[:first], body[first + 4 :]))):
                with pytest.raises(CodecError):
                    entropy.decode(damaged, rows, columns)
                cut += 1
    assert cut > 600


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda body: b"\x00\x01\x00", "cut short"),
        (lambda body: b"\x03" + body[1:], "classes of axis"),
        (lambda body: b"\x00" + body[1:], "classes of axis"),
        (lambda body: body[:1] + b"\x00" + body[2:], "classes of axis"),
        (lambda body: body[:1] + b"\x11" + body[2:], "classes of axis"),
        (lambda body: body[:3] + b"\x00" + body[4:], "numbers from"),
        (lambda body: body[:2] + b"\x70\x60" + body[4:], "numbers from"),
        (lambda body: body + b"\x00", "body of"),
        (lambda body: body[:20], "body of"),
        (lambda body: body + bytes(4), "words where it declares"),
        (lambda body: body[:-8], "words where it declares"),
        (lambda body: counted(body + bytes(4)), "zero word"),
        (lambda body: counted(body + b"\x01\x00\x00\x00"), "end with its last number"),
        # Three classes of two numbers of weight 1, and all rows are of the fourth.
        (lambda body: b"\x01\x03\x00\x01" + b"\xff" * 50 + b"\x41\x10\x04\x41\x00" + body[-8:], "without a class"),
        (lambda body: b"\x00\x01\x00\x01\x00\x00" + body[-8:], "without numbers"),
        (lambda body: b"\x00\x01\x00\x01\x01\xf0" + body[-8:], "padding"),
    ],
)
def test_each_malformed_body_is_named(damage, message: str):
    _, body = sample()
    with pytest.raises(CodecError, match=message):
        decoded(damage(body))


def test_who_agreed_on_packed_frames_takes_no_coded_one():
    numbers, _ = sample()
    frame = encode(torch.as_tensor(numbers).float(), "int4", coded=True)
    with pytest.raises(CodecError, match="packed was agreed"):
        decode(frame, shape=(200, 64), values="int4")
    too_wide = frame[:2] + b"\x05" + frame[3:]  # says that these are of 2 bits
    with pytest.raises(CodecError, match="more than 2 bits"):
        decode(too_wide, coded=True)
    with pytest.raises(CodecError, match="float32"):
        decode(frame[:2] + b"\x00" + frame[3:], coded=True)
    with pytest.raises(CodecError, match="non-zero values it declares"):
        decode(frame[:5] + b"\x01\x00\x00\x00" + frame[9:], coded=True)


def fuzz(times: int, seed: int) -> int:
    """Decode damaged bodies and noise; return how many were refused. Any other error than CodecError passes out."""
    choice = random.Random(seed)
    _, body = sample()
    refused = 0
    for _ in range(times):
        damaged = bytearray(body if choice.random() < 0.8 else choice.randbytes(choice.randrange(200)))
        for _ in range(choice.choice((1, 1, 2, 5))):
            at = choice.randrange(len(damaged) + 1)
            damaged[at : at + choice.randrange(3)] = choice.randbytes(choice.randrange(6))
        try:
            assert decoded(bytes(damaged)).shape == (200, 64)
        except CodecError:
            refused += 1
    return refused


@pytest.mark.parametrize("times", [3000, pytest.param(100_000, marks=pytest.mark.release)])
def test_damaged_bodies_are_refused_or_decoded_in_bounded_memory(times: int):
    fuzz(20, 0)  # what is loaded once
    before = getrusage(RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    refused = fuzz(times, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > times * 2 // 3
    assert peak < 400_000  # a matrix of 12800 numbers, and no table of 24 bits
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 16 << 10, "KiB, also of the coder's own"
