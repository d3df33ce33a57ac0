"""The built-in compressors: a choice of the entries to send, times a form of their values.

Values are floating-point numbers, or whole numbers of ``wire.bits`` bits with a float32 scale per 2048 entries. With
``wire.coding: entropy`` the smallest form travels; the numbers, and so the bits of training, are the same. Dithered
rounding is seeded by the scales, which travel anyway: the receiver draws the same noise and subtracts it. So a
compressor needs no state. Gradients are multiplied by a power of two near B first: those of a mean over B are too
small for float16.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vfl.base.random import stream_of
from vfl.compression.codec import CodecError, ValueType, decode
from vfl.compression.quantise import (
    BetweenLargest,
    OfSpread,
    Spacing,
    blocks_of,
    dequantise,
    dequantise_dithered,
    quantise,
    quantise_dithered,
)
from vfl.compression.sparsify import sparsify
from vfl.config.wire import Bits, WireConfig
from vfl.core.embeddings import Sent, check_finite, encode_as
from vfl.messages.messages import Buffer

WHOLE: dict[Bits, ValueType] = {8: "int8", 4: "int4", 2: "int2"}
STEP = np.dtype("<f4")


@dataclass(frozen=True)
class Floats:
    """Values as floating-point numbers, in the smallest of the codec's forms."""

    values: ValueType

    def encode(self, tensor_BD: Tensor) -> bytes:
        """Return the frame. Raises ValueError if values do not fit the type in which they travel."""
        return encode_as(self.values, tensor_BD, "the embedding or gradient")

    def encode_known(self, tensor_BD: Tensor) -> Sent:
        """Return the frame, and what ``decode`` gives of it: the very tensor if nothing is lost."""
        return self.encode(tensor_BD), tensor_BD.to(getattr(torch, self.values)).float()

    def decode(self, frame: Buffer, shape: tuple[int, int]) -> Tensor:
        """Return the values; they may be part of the frame. Raises CodecError for a frame of another kind."""
        return decode(frame, shape=shape, values=self.values)


@dataclass(frozen=True)
class Levels:
    """Values as whole numbers: each block's step as float32, little endian, and then a frame of whole numbers.

    The values themselves seed the rounding: equal values give equal draws, also after a resume, without any state.
    """

    spacing: Spacing
    whole: ValueType
    """Type in which the whole numbers travel."""
    coded: bool
    """Use entropy coding if it is smaller."""
    at_random: bool
    """Round up or down at random, exact in the mean (QSGD); else to the nearest."""

    def encode(self, tensor_BD: Tensor) -> bytes:
        """Return the frame. Raises ValueError for values that are not finite."""
        return self.pack(*self._quantised(tensor_BD))

    def encode_known(self, tensor_BD: Tensor) -> Sent:
        """Return the frame, and what ``decode`` gives of it."""
        codes_BD, steps = self._quantised(tensor_BD)
        return self.pack(codes_BD, steps), dequantise(codes_BD, steps)

    def _quantised(self, tensor_BD: Tensor) -> tuple[Tensor, Tensor]:
        # A value that is not finite would make its whole block's scale so.
        check_finite(tensor_BD, "the embedding or gradient")
        stream = stream_of(tensor_BD, "rounding") if self.at_random else None
        codes_BD, steps = quantise(tensor_BD, self.spacing, stream)
        return codes_BD + 0.0, steps  # no negative zero: whole numbers have none

    def decode(self, frame: Buffer, shape: tuple[int, int]) -> Tensor:
        """Return the values. Raises CodecError for a frame of another kind."""
        return dequantise(*self.unpack(frame, shape))

    def pack(self, codes_BD: Tensor, steps: Tensor) -> bytes:
        """Return the frame of whole numbers and their blocks' steps."""
        what = "the embedding or gradient"
        return steps.numpy().astype(STEP).tobytes() + encode_as(self.whole, codes_BD, what, coded=self.coded)

    def unpack(self, frame: Buffer, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return ``pack``'s arguments. Raises CodecError for a frame of another kind."""
        size = STEP.itemsize * blocks_of(shape[0] * shape[1])
        if len(frame) < size:
            raise CodecError(f"{len(frame)} bytes, its scales alone are {size}")
        steps = torch.as_tensor(np.frombuffer(frame, STEP, size // STEP.itemsize).astype(np.float32))
        # A product may still overflow to infinity; `decompress_checked` refuses that.
        if not (steps.isfinite() & (steps >= 0)).all():
            raise CodecError("a scale that is not finite or below 0")
        return decode(memoryview(frame)[size:], shape=shape, values=self.whole, coded=self.coded), steps


@dataclass(frozen=True)
class Dithered:
    """Values as whole numbers with noise that the receiver subtracts: a byte 1, and a frame of ``Levels``.

    Zeros would not stay zeros: if there are any, as with entries left out, the byte is 0 and nothing is subtracted.
    """

    levels: Levels

    def encode(self, tensor_BD: Tensor) -> bytes:
        """Return the frame. Raises ValueError for values that are not finite."""
        return self.encode_known(tensor_BD)[0]

    def encode_known(self, tensor_BD: Tensor) -> Sent:
        """Return the frame, and what ``decode`` gives of it."""
        if tensor_BD.count_nonzero() < tensor_BD.numel():
            frame, values_BD = self.levels.encode_known(tensor_BD)
            return bytes([False]) + frame, values_BD
        check_finite(tensor_BD, "the embedding or gradient")
        codes_BD, steps = quantise_dithered(tensor_BD, self.levels.spacing)
        return bytes([True]) + self.levels.pack(codes_BD, steps), dequantise_dithered(codes_BD, steps)

    def decode(self, frame: Buffer, shape: tuple[int, int]) -> Tensor:
        """Return the values. Raises CodecError for a frame of another kind."""
        if not len(frame) or frame[0] > True:
            raise CodecError("a dithered frame begins with 0 or 1")
        codes_BD, steps = self.levels.unpack(memoryview(frame)[1:], shape)
        return dequantise_dithered(codes_BD, steps) if frame[0] else dequantise(codes_BD, steps)


Form = Floats | Levels | Dithered
"""Form in which values travel."""


@dataclass(frozen=True, eq=False)
class LargestEntries:
    """The paper's compressor: leaves out the share ``ratio`` of a batch's entries, those of smallest magnitude."""

    form: Form

    def compress(self, embedding_BD: Tensor, ratio: float) -> bytes:
        """Return the frame. Raises ValueError for values that cannot travel."""
        return self.form.encode(sparsify(embedding_BD, ratio))

    def compress_known(self, embedding_BD: Tensor, ratio: float) -> Sent:
        """Return the frame, and what ``decompress`` gives of it, bit for bit, without decoding."""
        return self.form.encode_known(sparsify(embedding_BD, ratio))

    def decompress(self, frame: Buffer, shape: tuple[int, int]) -> Tensor:
        """Return the embedding, float32; it may be part of the frame. Raises CodecError for a frame of another kind."""
        return self.form.decode(frame, shape)


def magnitude(wire: WireConfig) -> LargestEntries:
    """Return the compressor of embeddings."""
    return LargestEntries(_form(wire))


def gradient_compressor(wire: WireConfig) -> LargestEntries:
    """Return the compressor of gradients."""
    return magnitude(wire.model_copy(update={"bits": wire.gradients.bits, "step": wire.gradients.step}))


def _form(wire: WireConfig) -> Form:
    spacing = _spacing(wire)
    if spacing is None:
        return Floats(wire.values)
    whole = "int8" if wire.bits is None else WHOLE[wire.bits]
    levels = Levels(spacing, whole, coded=wire.coding == "entropy", at_random=wire.rounding == "dithered")
    return Dithered(levels) if wire.rounding == "dithered" else levels


def _spacing(wire: WireConfig) -> Spacing | None:
    """Return the spacing of levels, None for floating-point numbers."""
    if wire.step is not None:
        return OfSpread(wire.step)
    return None if wire.bits is None else BetweenLargest(wire.bits)
