"""Tensor <-> bytes for the wire: exact, compact for sparse tensors, and safe to decode from a stranger.

A frame is a header and one of four bodies; `encode` takes the smallest. All integers are little endian, all
bit streams fill each byte from its lowest bit, and their padding bits are zero.

    offset   bytes  header field
    0        1      version, 1
    1        1      format: 0 dense, 1 bitmap, 2 gaps, 3 coded
    2        1      value type: 0 float32, 1 float16, 2 bfloat16, 3 int8, 4 int4, 5 int2
    3        1      number of dimensions, 0 to 8
    4        1      k, the Rice parameter, 0 to 31; 0 unless gaps
    5        4      number of non-zero values (nnz below; n is the number of entries)
    9        4 each dimensions

    format   body, its parts in order
    dense    all n values
    bitmap   n bits, one where the entry is non-zero | the nnz non-zero values
    gaps     unary stream: per gap, gap >> k zero bits and a one bit | the low k bits of each gap | nnz values
    coded    all n values, whole numbers, by the entropy code of `entropy.py`; n is at least 1

A gap is the number of zero entries between a non-zero entry and the one before it (or the start), in row-major
order. Golomb-Rice codes of gaps stay within a few percent of the entropy of random positions (R. F. Rice, "Some
practical universal noiseless coding techniques", JPL 79-22, 1979). The unary stream needs no length: the other
parts' are known, and its last byte holds the last one bit. Whole numbers of 8, 4 and 2 bits, as two's complement, are
a bit stream like the others. The coded form is for those who agreed on it (`wire.coding`).

"Non-zero" speaks of bit patterns after conversion to the value type: -0.0 is sent, so decoding is exact.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vfl.compression import entropy
from vfl.messages.messages import Buffer, CodecError

ValueType = Literal["float32", "float16", "bfloat16", "int8", "int4", "int2"]
Format = Literal["dense", "bitmap", "gaps", "coded"]

MAX_DIMENSIONS = 8
MAX_RICE_K = 31

_VERSION = 1
_FORMATS: tuple[Format, ...] = get_args(Format)
_VALUE_TYPES: tuple[ValueType, ...] = get_args(ValueType)
_FIXED_HEADER = struct.Struct("<BBBBBI")

BLOCK = 1 << 16
"""Entries processed at once: their intermediate values stay in the cache, and are small relative to the frame."""

_Bytes = NDArray[np.uint8]
_Patterns = NDArray[np.unsignedinteger]
_Integers = NDArray[np.int64]


class FrameInfo(NamedTuple):
    """Content of a frame's header."""

    format: Format
    values: ValueType
    shape: tuple[int, ...]
    nonzeros: int
    rice_k: int


class _Storage(NamedTuple):
    """Types of the values of one kind in memory and in a frame. numpy handles only their bits, as it has no
    bfloat16."""

    numbers: torch.dtype
    bits: torch.dtype
    frame_bits: np.dtype[Any]
    width: int
    """Bits of a value in a frame."""


_STORAGE: dict[ValueType, _Storage] = {
    "float32": _Storage(torch.float32, torch.uint32, np.dtype("<u4"), 32),
    "float16": _Storage(torch.float16, torch.uint16, np.dtype("<u2"), 16),
    "bfloat16": _Storage(torch.bfloat16, torch.uint16, np.dtype("<u2"), 16),
    "int8": _Storage(torch.int8, torch.uint8, np.dtype("u1"), 8),
    "int4": _Storage(torch.int8, torch.uint8, np.dtype("u1"), 4),
    "int2": _Storage(torch.int8, torch.uint8, np.dtype("u1"), 2),
}


def encode(tensor: Tensor, values: ValueType = "float32", *, coded: bool = False) -> bytes:
    """Encode in the smallest format, with ``coded`` also the coded one; never more bytes than `dense_frame_size`.

    `decode` returns the tensor, converted to the type in which its values travel, bit for bit. Raises ValueError for a
    tensor that is not floating point, too many dimensions or entries, an unknown value type, and a value that is finite
    but becomes infinite in it, or is no whole number of so many bits.
    """
    if values == "float32" and tensor.dtype is torch.float32 and (frame := _full_frame(tensor)) is not None:
        return frame
    shape = tuple(tensor.shape)
    dense_size = dense_frame_size(shape, values)  # refuses shapes that fit in no frame
    patterns = _to_patterns(tensor, values)
    packed = _encode_packed(patterns, shape, values, dense_size)
    if not coded or _STORAGE[values].width > 8 or not len(patterns):
        return packed
    numbers = _widened(patterns, values).view(np.int8).reshape(_matrix(shape))
    header = _header("coded", values, shape, int(np.count_nonzero(patterns)))
    return min(packed, header + entropy.encode(numbers), key=len)


def _encode_packed(patterns: _Patterns, shape: tuple[int, ...], values: ValueType, dense_size: int) -> bytes:
    """Encode in the smallest of the dense format, which takes ``dense_size`` bytes, bitmap and gaps."""
    nonzeros = int(np.count_nonzero(patterns))
    sparse_size = _header_size(shape) + _values_size(nonzeros, values)  # but for the positions
    # Positions take at least a bit per non-zero in either form: a full tensor needs no closer look.
    if dense_size <= sparse_size + entropy.bits_size(nonzeros):
        return _frame(_header("dense", values, shape, nonzeros), _pack_values(patterns, values))

    mask = patterns != 0
    positions = np.flatnonzero(mask)  # of bits, ten times faster than of patterns
    gaps = np.diff(positions, prepend=-1) - 1  # -1: the first gap counts from the start, as if an entry were before it
    k = _best_rice_parameter(gaps)
    bitmap_size = entropy.bits_size(len(patterns))
    gaps_size = entropy.bits_size(int((gaps >> k).sum()) + len(gaps)) + entropy.bits_size(len(gaps) * k)
    if dense_size <= sparse_size + min(bitmap_size, gaps_size):
        return _frame(_header("dense", values, shape, nonzeros), _pack_values(patterns, values))
    sent = _pack_values(patterns[positions], values)
    if bitmap_size <= gaps_size:
        return _frame(_header("bitmap", values, shape, nonzeros), np.packbits(mask, bitorder="little"), sent)
    return _frame(_header("gaps", values, shape, nonzeros, k), *_pack_gaps(gaps, k), sent)


def decode(
    frame: Buffer,
    *,
    shape: tuple[int, ...] | None = None,
    values: ValueType | None = None,
    coded: bool = False,
    max_entries: int = 2**26,
) -> Tensor:
    """Decode a frame, trusting none of it: memory is proportional to the frame and the bounds given here.

    Returns float32 on the CPU. Dense float32 values stay in the frame's memory if it is writable, which saves as much
    as the frame takes: the tensor is then part of the frame, and may begin at any byte.

    Raises CodecError for a frame that departs from the layout above in any way, differs from the agreed ``shape`` and
    ``values``, if given, or is coded although that was not agreed. A format or Rice parameter that is not the smallest
    is accepted.

    Even an empty frame may declare ``max_entries`` zeros (an empty dimension counts as 1).
    """
    if values == "float32" and shape and (full := _full_entries(frame, tuple(shape), max_entries)) is not None:
        return full
    info = frame_info(frame)
    if values is not None and info.values != values:
        raise CodecError(f"its values are {info.values}, {values} was agreed")
    if shape is not None and info.shape != tuple(shape):
        raise CodecError(f"frame holds a tensor of shape {info.shape}, expected {tuple(shape)}")
    if _extent(info.shape) > max_entries:
        raise CodecError(f"frame declares shape {info.shape}, more than the {max_entries} entries allowed")
    # Shape and entries are checked: what is allocated from here on is in proportion to them and to the frame.
    body = np.frombuffer(frame, np.uint8)[_header_size(info.shape) :]
    if info.format == "dense":
        patterns = _read_dense(body, info)
    elif info.format == "bitmap":
        patterns = _read_bitmap(body, info)
    elif info.format == "coded":
        if not coded:
            raise CodecError("frame is entropy coded, packed was agreed")
        patterns = _read_coded(body, info)
    else:
        patterns = _read_gaps(body, info)
    entries = torch.from_numpy(patterns.reshape(info.shape))  # pyright: ignore[reportUnknownMemberType]  # numpy is untyped in torch
    return entries.view(_STORAGE[info.values].numbers).float()


def dense_frame_size(shape: Sequence[int], values: ValueType = "float32") -> int:
    """Return the bytes of the dense frame, header included, which no frame of this shape and value type exceeds.

    Raises ValueError for a shape that does not fit in a frame and an unknown value type.
    """
    if values not in _STORAGE:
        raise ValueError(f"value type {values!r} is unknown: use one of {', '.join(_VALUE_TYPES)}")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"a frame holds at most {MAX_DIMENSIONS} dimensions, not {len(shape)}: flatten some")
    if _extent(shape) >= 2**32:
        raise ValueError(f"a frame holds fewer than 2**32 entries, not shape {tuple(shape)}: send it in parts")
    return _header_size(shape) + _values_size(math.prod(shape), values)


# --- full tensors: most that travel, in a few calls, with the bytes and values of the general way ---


def _full_frame(tensor: Tensor) -> bytes | None:
    """Return the frame of a float32 tensor without zeros; None of any other, and of one that fits in no frame."""
    entries = tensor.numel()
    if not 0 < entries < 2**32 or tensor.dim() > MAX_DIMENSIONS:
        return None
    patterns = tensor.detach().cpu().numpy().reshape(-1).view(np.uint32)
    if np.count_nonzero(patterns) != entries:
        return None
    header = _header("dense", "float32", tuple(tensor.shape), entries)
    return b"".join((header, np.ascontiguousarray(patterns, "<u4").data))


def _full_entries(frame: Buffer, shape: tuple[int, ...], max_entries: int) -> Tensor | None:
    """Return the float32 tensor of a frame as of ``_full_frame``; None of any other, which the general way checks."""
    entries, start = math.prod(shape), _FIXED_HEADER.size + 4 * len(shape)
    if not 0 < entries <= min(max_entries, 2**32 - 1) or len(frame) != start + 4 * entries:
        return None
    if len(shape) > MAX_DIMENSIONS or frame[:start] != _header("dense", "float32", shape, entries):
        return None
    sent = np.frombuffer(frame, "<u4", offset=start)
    patterns = sent.astype(np.uint32, copy=not sent.flags.writeable)
    if _count_nonzero(patterns) != entries:
        return None
    return torch.from_numpy(patterns.reshape(shape)).view(torch.float32)  # pyright: ignore[reportUnknownMemberType]


# --- header ---


def _header(frame_format: Format, values: ValueType, shape: tuple[int, ...], nonzeros: int, rice_k: int = 0) -> bytes:
    codes = _FORMATS.index(frame_format), _VALUE_TYPES.index(values)
    fixed = _FIXED_HEADER.pack(_VERSION, *codes, len(shape), rice_k, nonzeros)
    return fixed + struct.pack(f"<{len(shape)}I", *shape)


def _frame(header: bytes, *body: NDArray[Any]) -> bytes:
    """Return header and body in one, each copied once."""
    return b"".join((header, *(np.ascontiguousarray(part).data for part in body)))  # a column is in pieces


def frame_info(frame: Buffer) -> FrameInfo:
    """Read only the header, not the body. Raises CodecError for a malformed header."""
    if len(frame) < _FIXED_HEADER.size:
        raise CodecError(f"frame of {len(frame)} bytes is shorter than a header")
    version, format_code, values_code, dimensions, k, nonzeros = _FIXED_HEADER.unpack_from(frame)
    if version != _VERSION:
        raise CodecError(f"frame is of version {version}, this program reads version {_VERSION}")
    if format_code >= len(_FORMATS) or values_code >= len(_VALUE_TYPES):
        raise CodecError(f"frame is of unknown format {format_code} or value type {values_code}")
    if dimensions > MAX_DIMENSIONS or len(frame) < _FIXED_HEADER.size + 4 * dimensions:
        raise CodecError(f"frame declares {dimensions} dimensions: above {MAX_DIMENSIONS}, or cut short")
    shape = struct.unpack_from(f"<{dimensions}I", frame, _FIXED_HEADER.size)
    info = FrameInfo(_FORMATS[format_code], _VALUE_TYPES[values_code], shape, nonzeros, k)
    # Python's integers do not overflow, whatever the dimensions.
    if nonzeros > math.prod(shape):
        raise CodecError(f"frame declares {nonzeros} non-zero values in shape {shape}")
    if k > (MAX_RICE_K if info.format == "gaps" and nonzeros else 0):
        raise CodecError(f"frame declares Rice parameter {k} for {nonzeros} values in format {info.format}")
    return info


def _header_size(shape: Sequence[int]) -> int:
    return _FIXED_HEADER.size + 4 * len(shape)


def _extent(shape: Sequence[int]) -> int:
    """Return the number of entries, counting empty dimensions as one: this also bounds strides, which may overflow."""
    return math.prod(shape) or math.prod([dimension for dimension in shape if dimension])


# --- bodies ---


def _to_patterns(tensor: Tensor, values: ValueType) -> _Patterns:
    """Return the tensor's entries in row-major order, as bit patterns of the value type."""
    if not tensor.is_floating_point():
        raise ValueError(f"only floating point tensors travel, not {tensor.dtype}: convert it first")
    # Converted on the CPU only: the rounding of NaN payloads differs between devices.
    tensor = tensor.detach().cpu()
    width = _STORAGE[values].width
    if width <= 8:
        largest = 2 ** (width - 1) - 1
        if not torch.equal(tensor, tensor.round().clamp(-largest - 1, largest)):
            raise ValueError(f"a value is no whole number of {width} bits: quantise the tensor first")
        return tensor.to(torch.int8).flatten().view(torch.uint8).numpy() & (2**width - 1)
    converted = tensor.to(_STORAGE[values].numbers)
    patterns = converted.view(_STORAGE[values].bits).numpy().reshape(-1)
    infinite = _count_infinite(patterns, values) if converted.dtype != tensor.dtype else 0
    if infinite and infinite > int(tensor.isinf().sum()):
        raise ValueError(f"a finite value overflows {values}: send bfloat16 or float32, or scale the tensor")
    return patterns.astype(_STORAGE[values].frame_bits, copy=False)


def _count_infinite(patterns: _Patterns, values: ValueType) -> int:
    """Return the number of infinities, by their bits: a fifth of the time that converting them takes."""
    infinity = torch.tensor(math.inf, dtype=_STORAGE[values].numbers).view(_STORAGE[values].bits).numpy()
    return int(np.count_nonzero(patterns << 1 == infinity << 1))  # without the sign


def _read_dense(body: _Bytes, info: FrameInfo) -> _Patterns:
    """Return all entries' bit patterns, in native byte order."""
    entries = math.prod(info.shape)
    if len(body) != _values_size(entries, info.values):
        raise CodecError(f"dense frame of shape {info.shape} has a body of {len(body)} bytes")
    sent = _unpack_values(body, entries, info.values)
    # Copied only where the frame cannot be written to: PyTorch takes all memory for writable.
    patterns = sent.astype(sent.dtype.newbyteorder("="), copy=not sent.flags.writeable)
    if _count_nonzero(patterns) != info.nonzeros:
        raise CodecError(f"dense frame does not hold the {info.nonzeros} non-zero values it declares")
    return patterns


def _read_bitmap(body: _Bytes, info: FrameInfo) -> _Patterns:
    """Return all entries' bit patterns, in native byte order."""
    entries = math.prod(info.shape)
    bitmap_size = entropy.bits_size(entries)
    if len(body) != bitmap_size + _values_size(info.nonzeros, info.values):
        raise CodecError(f"bitmap frame of shape {info.shape} has a body of {len(body)} bytes")
    bitmap, values = body[:bitmap_size], _nonzero_values(body[bitmap_size:], info)
    if (placed := int(np.bitwise_count(bitmap).sum())) != info.nonzeros:
        raise CodecError(f"frame places {placed} values but declares {info.nonzeros}")
    if entries % 8 and bitmap[-1] >> entries % 8:  # bits above those of the last entries: the padding
        raise CodecError(f"frame places a value beyond the last entry of shape {info.shape}")
    patterns = np.zeros(entries, values.dtype.newbyteorder("="))
    taken = 0
    for start in range(0, entries, BLOCK):
        mask = np.unpackbits(bitmap[start // 8 : (start + BLOCK) // 8], bitorder="little").view(np.bool_)
        places = np.flatnonzero(mask)  # and then by place: four times faster than by mask
        patterns[start : start + BLOCK][places] = values[taken : taken + len(places)]
        taken += len(places)
    return patterns


def _read_gaps(body: _Bytes, info: FrameInfo) -> _Patterns:
    """Return all entries' bit patterns, in native byte order."""
    entries, k = math.prod(info.shape), info.rice_k
    values_size = _values_size(info.nonzeros, info.values)
    remainders_size = entropy.bits_size(info.nonzeros * k)
    unary_size = len(body) - remainders_size - values_size
    # The unary stream has a one bit per gap, and zero bits for all the gaps >> k, which sum to at most entries >> k.
    if not 0 <= unary_size <= entropy.bits_size(info.nonzeros + (entries >> k)):
        raise CodecError(f"gaps frame of shape {info.shape} has a body of {len(body)} bytes")
    unary, remainders, sent = np.split(body, (unary_size, unary_size + remainders_size))
    values = _nonzero_values(sent, info)
    patterns = np.zeros(entries, values.dtype.newbyteorder("="))
    taken, last = 0, -1
    for gaps in _unpack_gaps(unary, remainders, info.nonzeros, k):
        positions = np.cumsum(gaps + 1) + last
        # The last is the largest, and int64 holds it: a block has 2**16 gaps, each far below 2**40.
        if positions[-1] >= entries:
            raise CodecError(f"frame places a value beyond the last entry of shape {info.shape}")
        patterns[positions] = values[taken : taken + len(gaps)]
        taken, last = taken + len(gaps), int(positions[-1])
    return patterns


def _read_coded(body: _Bytes, info: FrameInfo) -> _Patterns:
    """Return all entries' bit patterns, widened to 8 bits."""
    width = _STORAGE[info.values].width
    if width > 8 or not math.prod(info.shape):
        raise CodecError(f"coded frame of {info.values} in shape {info.shape}")
    numbers = entropy.decode(body, *_matrix(info.shape)).reshape(-1)
    if numbers.min() < -(2 ** (width - 1)) or numbers.max() >= 2 ** (width - 1):
        raise CodecError(f"coded frame holds a number of more than {width} bits")
    if np.count_nonzero(numbers) != info.nonzeros:
        raise CodecError(f"coded frame does not hold the {info.nonzeros} non-zero values it declares")
    return numbers.view(np.uint8)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows and columns of a tensor for the entropy code."""
    return (shape[0], shape[1]) if len(shape) == 2 else (1, math.prod(shape))


def _nonzero_values(sent: _Bytes, info: FrameInfo) -> _Patterns:
    values = _unpack_values(sent, info.nonzeros, info.values)
    if _count_nonzero(values) != info.nonzeros:
        raise CodecError("frame sends a zero among its non-zero values")
    return values


def _values_size(count: int, values: ValueType) -> int:
    """Return the bytes of ``count`` values."""
    return entropy.bits_size(count * _STORAGE[values].width)


def _pack_values(patterns: _Patterns, values: ValueType) -> _Patterns:
    """Return the values' bit stream if several share a byte; otherwise the patterns unchanged."""
    width = _STORAGE[values].width
    if width >= 8:
        return patterns
    # A row for each byte: its values are shifted to their places and put together.
    padded = np.zeros((_values_size(len(patterns), values), 8 // width), np.uint8)
    padded.reshape(-1)[: len(patterns)] = patterns
    return np.bitwise_or.reduce(padded << np.arange(0, 8, width, dtype=np.uint8), axis=1)


def _unpack_values(sent: _Bytes, count: int, values: ValueType) -> _Patterns:
    """Return the values of `_pack_values`'s stream; whole numbers of less than 8 bits are widened to 8."""
    storage = _STORAGE[values]
    if storage.width >= 8:
        return sent.view(storage.frame_bits)
    codes = (sent[:, None] >> np.arange(0, 8, storage.width, dtype=np.uint8) & (2**storage.width - 1)).reshape(-1)
    if codes[count:].any():
        raise CodecError("frame has a non-zero padding bit")
    return _widened(codes[:count], values)


def _widened(codes: _Patterns, values: ValueType) -> _Patterns:
    """Return two's complement widened to 8 bits: flipping the sign bit and subtracting it again extends the sign."""
    sign = np.uint8(2 ** (_STORAGE[values].width - 1))
    return (codes ^ sign) - sign


def _count_nonzero(values: _Patterns) -> int:
    if values.flags.aligned:
        return int(np.count_nonzero(values))
    # Copied in blocks to count: aligned, that is ten times faster.
    return sum(int(np.count_nonzero(values[at : at + BLOCK].copy())) for at in range(0, len(values), BLOCK))


# --- Golomb-Rice coding of gaps ---


def _best_rice_parameter(gaps: _Integers) -> int:
    """Return the smallest k of fewest bits, by walking downhill from the optimum of geometrically distributed gaps.

    The bits are convex in k, since k + 1 adds one bit per gap and saves sum(ceil((gap >> k) / 2)) of them, which
    shrinks with k: the walk ends at the true minimum.
    """
    if not len(gaps):
        return 0

    def bits(k: int) -> int:
        return int((gaps >> k).sum()) + len(gaps) * k

    k = max(0, int(math.log(2) * float(gaps.mean())).bit_length() - 1)  # floor(log2(ln 2 * mean)), at least 0
    while k < MAX_RICE_K and bits(k + 1) < bits(k):
        k += 1
    while k > 0 and bits(k - 1) <= bits(k):
        k -= 1
    return k


def _pack_gaps(gaps: _Integers, k: int) -> tuple[_Bytes, _Bytes]:
    """Return the unary stream of the quotients, and the stream of the k-bit remainders."""
    ends = np.cumsum((gaps >> k) + 1)  # bits up to the end of each gap's zeros and one
    unary = np.zeros(ends[-1] if len(ends) else 0, np.uint8)
    unary[ends - 1] = 1
    # A row for each gap, which 32 bits hold as there are fewer than 2**32 entries: its k lowest bits.
    gap_bytes = gaps.astype("<u4").view(np.uint8).reshape(-1, 4)
    remainders = np.unpackbits(gap_bytes, axis=1, count=k, bitorder="little")
    return np.packbits(unary, bitorder="little"), np.packbits(remainders, bitorder="little")


def _unpack_gaps(unary: _Bytes, remainders: _Bytes, nonzeros: int, k: int) -> Iterator[_Integers]:
    """Yield `_pack_gaps`'s gaps in blocks, the inverse for `nonzeros` gaps; they may still lead beyond the last entry.

    A gap stays below n + 2**(k + 4) with n < 2**32 entries, because the caller bounds the unary stream's length.
    """
    ones = int(np.bitwise_count(unary).sum())
    if ones != nonzeros or (len(unary) and unary[-1] == 0):
        raise CodecError(f"gaps frame has {ones} gaps, then padding, where it declares {nonzeros}")
    if nonzeros * k % 8 and remainders[-1] >> nonzeros * k % 8:
        raise CodecError("gaps frame has a non-zero padding bit")
    # `taken` gaps have ended so far, the last of them with the one bit at place `last`.
    taken, last = 0, -1
    for start in range(0, len(unary), BLOCK // 8):
        ends = np.flatnonzero(np.unpackbits(unary[start : start + BLOCK // 8], bitorder="little")) + 8 * start
        if not len(ends):  # one long gap fills the block
            continue
        gaps = (np.diff(ends, prepend=last) - 1) << k
        # The block's remainders are bits `first` to `stop` of their stream, and may begin within a byte.
        first, stop = taken * k, (taken + len(ends)) * k
        bits = np.unpackbits(remainders[first // 8 : entropy.bits_size(stop)], bitorder="little")
        for place, digit in enumerate(bits[first % 8 :][: stop - first].reshape(len(ends), k).T):
            gaps |= digit.astype(np.int64) << place
        yield gaps
        taken, last = taken + len(ends), int(ends[-1])
