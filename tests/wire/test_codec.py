import math
import random
import struct
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shorthand import examples, release
from torch import Tensor

from scripts.lab.benchmarks.codec import entropy_bound_bytes
from vfl.compression import codec
from vfl.compression.codec import (
    CodecError,
    ValueType,
    decode,
    dense_frame_size,
    encode,
    frame_info,
)

TORCH_TYPES: dict[ValueType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
VALUE_TYPES = tuple(TORCH_TYPES)
BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
WHOLE: dict[int, ValueType] = {8: "int8", 4: "int4", 2: "int2"}


def random_sparse(shape: tuple[int, ...], density: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(shape, generator=generator) < density
    return torch.where(kept, torch.randn(shape, generator=generator), torch.zeros(()))


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype == torch.float32
    assert actual.shape == expected.shape
    assert torch.equal(actual.view(torch.int32), expected.contiguous().view(torch.int32))


# --- an independent reader and size: loops over single bits and entries, from the layout table alone ---


def slow_bits(data: bytes) -> list[int]:
    return [byte >> place & 1 for byte in data for place in range(8)]


def slow_decode_gaps(frame: bytes) -> dict[int, int]:
    """Positions and bit patterns of the values of a well-formed gaps frame."""
    _, frame_format, value_code, dimensions, k, nonzeros = struct.unpack("<BBBBBI", frame[:9])
    assert frame_format == 2
    body = frame[9 + 4 * dimensions :]
    quotients: list[int] = []
    zeros = bits_read = 0
    bits = slow_bits(body)
    while len(quotients) < nonzeros:
        if bits[bits_read]:
            quotients.append(zeros)
            zeros = 0
        else:
            zeros += 1
        bits_read += 1
    start = math.ceil(bits_read / 8)
    low = slow_bits(body[start:])
    values = body[start + math.ceil(nonzeros * k / 8) :]
    width = 4 if value_code == 0 else 2
    assert len(values) == nonzeros * width
    found: dict[int, int] = {}
    position = -1
    for i, quotient in enumerate(quotients):
        remainder = sum(low[i * k + place] << place for place in range(k))
        position += (quotient << k) + remainder + 1
        found[position] = int.from_bytes(values[i * width : (i + 1) * width], "little")
    return found


def slow_body_sizes(nonzero: list[bool], width: int) -> dict[str, int]:
    """Bytes of the body in each format, the Rice parameter searched exhaustively for fewest bits."""
    gaps = slow_gaps(nonzero)
    nnz = len(gaps)
    unary = [nnz + sum(g >> k for g in gaps) for k in range(32)]
    k = min(range(32), key=lambda k: unary[k] + nnz * k)
    return {
        "dense": len(nonzero) * width,
        "bitmap": math.ceil(len(nonzero) / 8) + nnz * width,
        "gaps": math.ceil(unary[k] / 8) + math.ceil(nnz * k / 8) + nnz * width,
    }


def slow_gaps(nonzero: list[bool]) -> list[int]:
    gaps: list[int] = []
    zeros = 0
    for present in nonzero:
        if present:
            gaps.append(zeros)
            zeros = 0
        else:
            zeros += 1
    return gaps


@st.composite
def clustered_tensors(draw: st.DrawFn) -> Tensor:
    """Runs of zeros and of non-zeros of very different lengths, special values among them."""
    runs = draw(st.lists(st.tuples(st.sampled_from([0, 1, 2, 7, 60, 700]), st.integers(0, 9)), max_size=8))
    special = st.sampled_from([1.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-24, 1e-3, -3.5])
    entries: list[float] = []
    for zeros, ones in runs:
        entries += [0.0] * zeros + draw(st.lists(special, min_size=ones, max_size=ones))
    return torch.tensor(entries, dtype=torch.float32)


# --- exactness ---


@pytest.mark.parametrize("values", VALUE_TYPES)
@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (7,), (0, 5), (3, 5), (256, 128), (2, 3, 4, 5), (1, 2, 1, 2, 1, 2, 1, 2)]
)
@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 0.7, 1.0])
def test_decoding_gives_the_converted_tensor_for_any_shape(
    shape: tuple[int, ...], density: float, values: ValueType
) -> None:
    tensor = random_sparse(shape, density)
    frame = encode(tensor, values)
    assert_same_bits(decode(frame, shape=shape), tensor.to(TORCH_TYPES[values]).float())
    assert len(frame) <= dense_frame_size(shape, values)
    info = frame_info(frame)
    assert (info.values, info.shape) == (values, shape)
    assert info.nonzeros == int(tensor.to(TORCH_TYPES[values]).count_nonzero())


@given(clustered_tensors(), st.sampled_from(VALUE_TYPES))
@examples(150)
def test_every_bit_pattern_survives_in_the_smallest_format(tensor: Tensor, values: ValueType) -> None:
    frame = encode(tensor, values)
    converted = tensor.to(TORCH_TYPES[values])
    assert_same_bits(decode(frame), converted.float())
    patterns = converted.view(torch.int32 if values == "float32" else torch.int16).tolist()
    sizes = slow_body_sizes([pattern != 0 for pattern in patterns], BITS[values] // 8)
    assert len(frame) - 13 == min(sizes.values()) == sizes[frame_info(frame).format]


@given(clustered_tensors(), st.sampled_from(VALUE_TYPES))
@examples(150)
def test_gaps_frames_read_alike_by_an_independent_reader(tensor: Tensor, values: ValueType) -> None:
    tensor = torch.cat([torch.zeros(400), tensor])
    frame = encode(tensor, values)
    converted = tensor.to(TORCH_TYPES[values])
    mask = 0xFFFF_FFFF if values == "float32" else 0xFFFF
    patterns = converted.view(torch.int32 if values == "float32" else torch.int16).tolist()
    if frame_info(frame).format == "gaps":
        assert slow_decode_gaps(frame) == {i: p & mask for i, p in enumerate(patterns) if p}


def test_each_format_is_used_where_it_is_smallest() -> None:
    formats = [frame_info(encode(random_sparse((256, 128), p))).format for p in (0.02, 0.6, 1.0)]
    assert formats == ["gaps", "bitmap", "dense"]


def test_layout_of_a_small_frame() -> None:
    tensor = torch.zeros(2, 32)
    tensor[0, 5], tensor[1, 8] = 1.0, -2.0  # gaps 5 and 34
    header = struct.pack("<BBBBBI2I", 1, 2, 0, 2, 3, 2, 2, 32)
    unary, remainders = 0b100001, 5 | (34 & 7) << 3
    assert encode(tensor) == header + bytes([unary, remainders]) + struct.pack("<2f", 1.0, -2.0)


@pytest.mark.parametrize(
    ("gaps", "k"),
    [
        ([767] * 19 + [255], 8),  # the optimum of geometric gaps, 9, takes a bit more
        ([0] * 30 + [4000], 6),
        ([2**18], 17),  # 1 + 2 + 17 bits; 18 would do as well
    ],
)
def test_rice_parameter_of_unusual_gaps_is_the_smallest_of_fewest_bits(gaps: list[int], k: int) -> None:
    positions = torch.tensor(gaps).add(1).cumsum(0) - 1
    frame = encode(torch.zeros(2**19).index_fill(0, positions, 1.0))
    bits = [sum(gap >> k for gap in gaps) + len(gaps) * k for k in range(32)]
    assert frame[4] == k == bits.index(min(bits))


def test_strided_gradient_carrying_and_other_float_tensors() -> None:
    base = random_sparse((64, 64), 0.1).requires_grad_()
    assert_same_bits(decode(encode(base.T[::2])), base.detach().T[::2])
    assert_same_bits(decode(encode(base[0, 0].expand(5, 5))), base.detach()[0, 0].expand(5, 5))
    half = base.detach().half()
    assert_same_bits(decode(encode(half)), half.float())
    double = torch.linspace(0, 1, 100, dtype=torch.float64)
    assert_same_bits(decode(encode(double)), double.float())


def test_values_that_round_to_zero_are_not_sent() -> None:
    frame = encode(torch.full((100,), 1e-30), "float16")
    assert frame_info(frame).nonzeros == 0
    assert len(frame) == 13


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("values", VALUE_TYPES)
def test_a_tensor_on_the_gpu_gives_the_same_frame(values: ValueType) -> None:
    tensor = random_sparse((64, 32), 0.2)
    assert encode(tensor.cuda(), values) == encode(tensor, values)


# --- size ---


@pytest.mark.parametrize("shape", [(256, 128), (256, 512)])
@pytest.mark.parametrize("density", [0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
@pytest.mark.parametrize(("values", "allowance"), [("float32", 1.05), ("float16", 1.10), ("bfloat16", 1.10)])
def test_size_stays_close_to_the_entropy_bound(
    shape: tuple[int, int], density: float, values: ValueType, allowance: float
) -> None:
    frame = encode(random_sparse(shape, density, seed=round(1000 * density)), values)
    bound = entropy_bound_bytes(math.prod(shape), frame_info(frame).nonzeros, BITS[values])
    assert bound < len(frame) * 1.001  # the bound is a mean: one draw may come very near
    assert len(frame) <= allowance * bound


def test_entropy_bound() -> None:
    assert entropy_bound_bytes(64, 32, 32) == 64 / 8 + 32 * 4
    assert entropy_bound_bytes(64, 64, 16) == 128
    assert entropy_bound_bytes(64, 0, 16) == 0
    assert entropy_bound_bytes(0, 0, 16) == 0


# --- errors of the sender ---


@pytest.mark.parametrize(
    ("tensor", "values", "message"),
    [
        (torch.tensor([1e6]), "float16", "send bfloat16 or float32"),
        (torch.tensor([3.4e38]), "bfloat16", "float32"),
        (torch.tensor([1e300], dtype=torch.float64), "float32", "scale the tensor"),
        (torch.ones(3, dtype=torch.int64), "float32", "floating point"),
        (torch.ones((1,) * 9), "float32", "at most 8 dimensions"),
        (torch.ones(1).expand(2**16, 2**16), "float32", "send it in parts"),
        (torch.ones(3), "int3", "unknown"),
    ],
)
def test_what_cannot_travel_is_refused(tensor: Tensor, values: ValueType, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(tensor, values)


def test_infinities_that_were_there_already_travel() -> None:
    tensor = torch.tensor([math.inf, -math.inf, math.nan, 0.0])
    for values in VALUE_TYPES:
        assert_same_bits(decode(encode(tensor, values)), tensor.to(TORCH_TYPES[values]).float())


# --- hostile frames ---


def header(
    frame_format: int = 1, values: int = 0, shape: tuple[int, ...] = (12,), k: int = 0, nonzeros: int = 0
) -> bytes:
    return struct.pack(f"<BBBBBI{len(shape)}I", 1, frame_format, values, len(shape), k, nonzeros, *shape)


ONE = struct.pack("<f", 1.0)
ZERO = bytes(4)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"", "shorter than a header"),
        (header()[:8], "shorter than a header"),
        (b"\x02" + header()[1:], "version"),
        (header(frame_format=4), "unknown format"),
        (header(values=6), "value type"),
        (header(shape=(1,) * 9) + bytes(4), "dimensions"),
        (header(shape=(1, 1))[:-1], "cut short"),
        (header(nonzeros=13), "13 non-zero values"),
        (header(frame_format=1, k=1) + bytes(2), "Rice"),
        (header(frame_format=2, k=32, nonzeros=1), "Rice"),
        (header(frame_format=2, k=1), "Rice"),
        (header(frame_format=0, shape=(2**16, 2**16)), "more than"),
        (header(frame_format=2, shape=(2**32 - 1,) * 8), "more than"),
        (header(frame_format=2, shape=(0,) + (2**32 - 1,) * 7), "more than"),
        (header(frame_format=0, shape=(2,), nonzeros=1) + ONE, "body of 4 bytes"),
        (header(frame_format=0, shape=(2,), nonzeros=1) + ONE + ZERO + b"\0", "body of 9 bytes"),
        (header(frame_format=0, shape=(2,), nonzeros=2) + ONE + ZERO, "declares"),
        (header() + bytes(3), "body of 3 bytes"),
        (header(nonzeros=1) + b"\x03\x00" + ONE, "places 2 values"),
        (header(nonzeros=1) + b"\x00\x10" + ONE, "beyond the last entry"),
        (header(nonzeros=1) + b"\x01\x00" + ZERO, "sends a zero"),
        (header(frame_format=2) + b"\0", "padding"),
        (header(frame_format=2, nonzeros=1) + ONE[1:], "body of 3 bytes"),
        (header(frame_format=2, nonzeros=1) + ONE, "declares 1"),
        (header(frame_format=2, nonzeros=1) + b"\x00\x10\x00" + ONE, "body of 7 bytes"),
        (header(frame_format=2, nonzeros=1) + b"\x01\x00" + ONE, "padding"),
        (header(frame_format=2, nonzeros=1) + b"\x05" + ONE, "has 2 gaps"),
        (header(frame_format=2, nonzeros=1) + b"\x00\x10" + ONE, "beyond the last entry"),
        (header(frame_format=2, nonzeros=1, k=4) + b"\x01\x0c" + ONE, "beyond the last entry"),
        (header(frame_format=2, nonzeros=1, k=4) + b"\x01\x1b" + ONE, "padding bit"),
        (header(frame_format=2, nonzeros=1, k=4) + b"\x01\x0b" + ZERO, "sends a zero"),
        (header(frame_format=1, values=4, nonzeros=1) + b"\x01\x00\x11", "padding bit"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)}B",
)
def test_each_malformed_frame_is_named(frame: bytes, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode(frame)


def test_the_last_entry_of_each_sparse_format_can_be_reached() -> None:
    expected = torch.zeros(12).index_fill(0, torch.tensor(11), 1.0)
    assert_same_bits(decode(header(nonzeros=1) + b"\x00\x08" + ONE), expected)
    assert_same_bits(decode(header(frame_format=2, nonzeros=1) + b"\x00\x08" + ONE), expected)
    assert_same_bits(decode(header(frame_format=2, nonzeros=1, k=4) + b"\x01\x0b" + ONE), expected)


def test_the_agreed_shape_and_the_bound_on_entries_are_enforced() -> None:
    frame = encode(torch.zeros(4, 5))
    assert decode(frame, shape=(4, 5), max_entries=20).shape == (4, 5)
    with pytest.raises(CodecError, match="expected"):
        decode(frame, shape=(5, 4))
    with pytest.raises(CodecError, match="more than the 19 entries"):
        decode(frame, max_entries=19)


def mutate(frame: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(frame)
    kind = rng.randrange(5)
    if kind == 0:
        return frame[: rng.randrange(len(frame))]
    if kind == 1:
        return frame + rng.randbytes(rng.randint(1, 9))
    if kind == 2:  # noise in the header
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(17)] = rng.choice([0, 1, 2, 8, 31, 127, 255, rng.randrange(256)])
    elif kind == 3:  # one bit anywhere
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    else:  # bytes anywhere
        for _ in range(rng.randint(1, 20)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


@pytest.mark.parametrize("values", ["float32", release("float16"), "bfloat16"])
@pytest.mark.parametrize("density", [0.0, 0.02, release(0.3), 0.6, release(1.0)])
def test_damaged_frames_give_only_codec_errors_and_little_memory(density: float, values: ValueType) -> None:
    frame = encode(random_sparse((32, 16), density), values)
    rng = random.Random(f"{density} {values}")
    refused = 0
    tracemalloc.start()
    for _ in range(600):
        damaged = mutate(frame, rng)
        try:
            decoded = decode(damaged, max_entries=4096)
        except CodecError:
            refused += 1
        else:
            info = frame_info(damaged)
            assert decoded.shape == info.shape
            again = decode(encode(decoded, info.values))  # narrowing may change the payload of a NaN
            assert torch.allclose(again, decoded, rtol=0, atol=0, equal_nan=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 200
    assert peak < 2**20


@given(st.binary(max_size=64) | st.binary(min_size=16, max_size=16))  # 16 bytes are the body of a dense frame
@examples(300)
def test_noise_behind_a_valid_start_gives_only_codec_errors(noise: bytes) -> None:
    for frame_format in range(3):
        start = header(frame_format, shape=(2, 2), nonzeros=noise[0] % 5 if noise else 0)
        for frame in (start + noise, start[:9] + noise, bytes([1, frame_format]) + noise):
            try:
                decoded = decode(frame, max_entries=4096)
            except CodecError:
                continue
            info = frame_info(frame)
            assert decoded.shape == info.shape
            assert int(decoded.view(torch.int32).count_nonzero()) == info.nonzeros <= 4096


# --- whole numbers of few bits ---


@examples(150)
@given(
    st.sampled_from([8, 4, 2]), st.lists(st.tuples(st.sampled_from([0, 1, 3, 90]), st.integers(-128, 127)), max_size=30)
)
def test_whole_numbers_travel_exactly_in_the_smallest_form(width: int, runs: list[tuple[int, int]]) -> None:
    low, high = -(2 ** (width - 1)), 2 ** (width - 1) - 1
    entries = [value for zeros, number in runs for value in (*[0] * zeros, min(max(number, low), high))]
    frame = encode(torch.tensor(entries, dtype=torch.float32), WHOLE[width])
    assert_same_bits(decode(frame, shape=(len(entries),)), torch.tensor(entries, dtype=torch.float32))
    sizes = slow_body_sizes([entry != 0 for entry in entries], 0)
    assert len(frame) - 13 == min(
        math.ceil(len(entries) * width / 8),
        *(sizes[form] + math.ceil((len(entries) - entries.count(0)) * width / 8) for form in ("bitmap", "gaps")),
    )
    if entries:
        with pytest.raises(ValueError, match="quantise the tensor first"):
            encode(torch.tensor([*entries, high + 1.0]), WHOLE[width])
        with pytest.raises(ValueError, match="quantise the tensor first"):
            encode(torch.tensor([*entries, 0.5]), WHOLE[width])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (0, 5), (33, 5), (2, 3, 4), (1,) * 8])
@pytest.mark.parametrize("zeros", [0, 1])
def test_a_full_tensor_has_the_frame_and_the_values_of_the_general_way(
    shape: tuple[int, ...], zeros: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = random_sparse(shape, 1.0)
    for place, special in enumerate([math.nan, -0.0, math.inf, 1e-42][: tensor.numel()]):
        tensor.view(-1)[place] = special
    if zeros:
        tensor.view(-1)[-1:] = 0.0
    strided = [tensor.mT, tensor[..., :1]] if len(shape) > 1 else []
    tensors = [tensor, tensor.clone().requires_grad_(), *strided]
    frames, rng = [encode(each) for each in tensors], random.Random(0)
    tried = [
        (tuple(each.shape), damaged)
        for each, frame in zip(tensors, frames, strict=True)
        for damaged in (frame, frame[:-4] + bytes(4), *(mutate(frame, rng) for _ in range(40 * (len(frame) > 17))))
    ]

    def outcomes() -> list[bytes | str]:
        found: list[bytes | str] = []
        for due, frame in tried:
            for buffer in (frame, memoryview(bytearray(frame)), memoryview(bytearray(b"." + frame))[1:]):
                try:
                    found.append(decode(buffer, shape=due, values="float32", max_entries=200).numpy().tobytes())
                except CodecError as error:
                    found.append(str(error))
        return found

    at_once = outcomes()
    monkeypatch.setattr(codec, "_full_frame", lambda tensor: None)
    monkeypatch.setattr(codec, "_full_entries", lambda *frame: None)
    assert frames == [encode(each) for each in tensors]
    assert at_once == outcomes()
