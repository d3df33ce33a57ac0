"""Compression of embeddings to frames, decompression, and the addition of error feedback.

Shapes: B batch, D embedding width.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from vfl.base.errors import Diverged, with_type
from vfl.compression.codec import BLOCK, CodecError, ValueType, decode, dense_frame_size, encode
from vfl.compression.sparsify import ErrorFeedback
from vfl.config.components import COMPRESSORS
from vfl.config.wire import WireConfig
from vfl.core.presence import RowMask
from vfl.messages.messages import Buffer, MessageError, Part, PartKind
from vfl.runs.checkpoint import State

MOST_TESTED = 1e6
"""Largest entry of a test embedding: with far larger ones the loss would overflow, without telling whose they are."""
Sent = tuple[bytes, Tensor]
"""A frame, and the values [B, D] float32 that its receivers decode."""


@runtime_checkable
class Compressor(Protocol):
    """Turns embeddings into frames and back; both ends of a link build the same one from `wire` (docs/extending.md).

    It keeps no state: error feedback, which wraps any compressor, adds what a sample's earlier frames left out.
    """

    def compress(self, embedding_BD: Tensor, ratio: float) -> bytes:
        """Return the frame of float32 embeddings on the CPU; ``ratio`` in [0, 1) is beta, the share to leave out."""
        ...

    def decompress(self, frame: Buffer, shape: tuple[int, int]) -> Tensor:
        """Return float32 embeddings [B, D] on the CPU. The frame comes from a peer and may contain anything.

        Raises CodecError for a frame that is malformed or of another shape.
        """
        ...


def build_compressor(wire: WireConfig) -> Compressor:
    """Build the compressor that `wire.compressor` names. Raises ValueError if it cannot be used."""
    compressor: Compressor = COMPRESSORS.make(wire.compressor.kind, wire, of=Compressor)
    if wire.compressor.kind not in COMPRESSORS.built_in:
        _check_pure(compressor, f"compressor {wire.compressor.kind!r}, tried on 15 values")
    return compressor


def _check_pure(compressor: Compressor, what: str) -> None:
    """Raise ValueError if equal embeddings give different frames: the ends of a link would differ."""
    probe_BD = torch.linspace(-1, 1, 15).view(5, 3)
    given_BD = probe_BD.clone()  # to see whether `compress` changes what it is given
    frames: list[Any] = [compressor.compress(given_BD, 0.5) for _ in range(2)]
    if not all(isinstance(frame, bytes) for frame in frames):
        raise ValueError(f"{what}: compress gives {type(frames[0]).__name__} instead of bytes")
    first_BD, second_BD = (decompress_checked(compressor, frame, (5, 3), what) for frame in frames)
    if not (frames[0] == frames[1] and torch.equal(first_BD, second_BD) and torch.equal(given_BD, probe_BD)):
        raise ValueError(f"{what}: must keep no state, draw nothing and change nothing; the second time was another")


@dataclass(frozen=True, eq=False)
class EmbeddingReceiver:
    """Turns a sender's frames into its compressed embeddings; every receiver of a frame gets the same bits."""

    sender: str
    """Name of the sending party."""
    width: int
    """D"""
    compressor: Compressor | None = None
    """The sender's compressor, built anew here; None where nothing is compressed, as of a finished model."""
    feedback: ErrorFeedback | None = None
    """This receiver's estimates of the sender's embeddings; None without error feedback."""

    @cached_property
    def what(self) -> str:
        """Name of the received tensor in error messages."""
        return f"{self.sender}'s embedding"

    def receive(self, frame: Buffer, rows_B: Tensor) -> Tensor:
        """Return the embeddings [B, D] float32 on the CPU of the samples ``rows_B``.

        Raises ValueError for a frame of another shape or value type and for values that are not finite.
        """
        assert self.compressor is not None, "only a training receives what is compressed"
        received_BD = decompress_checked(self.compressor, frame, (len(rows_B), self.width), self.what)
        return received_BD if self.feedback is None else self.feedback.apply(rows_B, received_BD)

    def receive_rows(self, frame: Buffer, rows_B: Tensor, mask: RowMask, missing: float) -> Tensor:
        """Return the embeddings [B, D] of a batch: the sender's rows from the frame, and ``missing`` elsewhere.

        An empty frame has no rows: the sender takes no part in the batch, or was lost. Raises as ``receive``.
        """
        if not len(frame):
            return torch.full((len(rows_B), self.width), missing)
        return mask.spread(self.receive(frame, mask.rows_of(rows_B)), missing)

    def receive_part(self, part: Part, rows_B: Tensor, mask: RowMask, missing: float) -> Tensor:
        """Return ``receive_rows`` of a message's part, and set the part's dense size.

        Raises MessageError as well, for an empty frame with samples expected, or a frame with none expected.
        """
        if bool(mask.count) != bool(len(part.payload)):
            raise MessageError(f"a frame of {len(part.payload)} bytes came for {mask.count} samples")
        part.dense = dense_size(mask.count, self.width)
        return self.receive_rows(part.payload, rows_B, mask, missing)

    def state_dict(self) -> State:
        """Return the estimates."""
        return {} if self.feedback is None else self.feedback.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Restore the estimates."""
        if self.feedback is not None:
            self.feedback.load_state_dict(state)


@lru_cache(64)
def dense_size(samples: int, width: int) -> int:
    """Return the bytes of embeddings or gradients [samples, width] as a dense float32 frame; 0 without samples."""
    return dense_frame_size((samples, width)) if samples else 0


def decompress_checked(compressor: Compressor, frame: Buffer, shape: tuple[int, int], what: str) -> Tensor:
    """Return a frame's values, float32 on the CPU.

    Raises CodecError, naming ``what``, if it is malformed or not as agreed; Diverged for NaN and infinity.
    """
    try:
        received_BD = compressor.decompress(frame, shape)
    except CodecError as error:
        raise CodecError(f"{what}: {error}") from None
    except Exception as error:  # another package's compressor at a peer's bytes
        raise CodecError(f"{what}: {with_type(error)}") from error
    if tuple(received_BD.shape) != shape or received_BD.dtype != torch.float32:
        got = f"{received_BD.dtype} {list(received_BD.shape)}"
        raise CodecError(f"{what}: the compressor gives {got} instead of float32 {list(shape)}")
    return check_finite(received_BD, what)


@dataclass(frozen=True, eq=False)
class ResidualSender:
    """Compresses tensors without an estimate at the receiver: a sample's gradients, at the server.

    With residuals, the part of a sample's gradient that a frame leaves out is added to its next one: error feedback in
    the form of Seide et al. (2014) and Karimireddy et al. (2019), whose state only the sender has.
    """

    compressor: Compressor
    """The receiver's compressor."""
    beta: float
    """Share of the entries to leave out."""
    residual_ND: Tensor | None
    """Residuals of all samples, initially zeros; None without error feedback."""

    def send(self, gradient_BD: Tensor, rows_B: Tensor) -> Part:
        """Return the frame of gradients on the CPU; an empty frame for no samples."""
        frame = b""
        if len(rows_B) and self.residual_ND is None:
            frame = self.compressor.compress(gradient_BD, self.beta)
        elif len(rows_B) and self.residual_ND is not None:
            whole_BD = gradient_BD + self.residual_ND[rows_B]
            frame, values_BD = compress_known(self.compressor, whole_BD, self.beta, "the gradient")
            self.residual_ND[rows_B] = whole_BD - values_BD  # so that the wire's rounding, too, is made up for
        return Part(PartKind.GRADIENT, frame, dense_size(len(rows_B), gradient_BD.shape[1]))


@dataclass(frozen=True, eq=False)
class EmbeddingSender:
    """Compresses a party's own embeddings, and knows the values that receivers decode."""

    receiver: EmbeddingReceiver
    """Receiver with the same state as the others'."""

    def send(self, embedding_BD: Tensor, rows_B: Tensor, beta: float) -> Sent:
        """Return the frame of the compressed embeddings, and the embeddings [B, D] as they will be received."""
        receiver, feedback = self.receiver, self.receiver.feedback
        assert receiver.compressor is not None, "only a training sends what is compressed"
        difference_BD = embedding_BD if feedback is None else feedback.difference(rows_B, embedding_BD)
        frame, values_BD = compress_known(receiver.compressor, difference_BD, beta, receiver.what)
        # With error feedback this also moves the sender's own estimate, as the frame moves every receiver's.
        return frame, values_BD if feedback is None else feedback.apply(rows_B, values_BD)

    def as_received(self, embedding_BD: Tensor, beta: float) -> Tensor:
        """Return the decoded values of embeddings without estimates, such as those of test samples."""
        assert self.receiver.compressor is not None, "evaluation.sparsified was set"
        return compress_known(self.receiver.compressor, embedding_BD, beta, self.receiver.what)[1]


def compress_known(compressor: Compressor, values_BD: Tensor, ratio: float, what: str) -> Sent:
    """Return the frame of values, and what its receivers decode, with a check of it as they make.

    The built-in compressors know that without decoding. Raises as ``decompress_checked``.
    """
    if known := vars(type(compressor)).get("compress_known"):  # not inherited: a subclass may compress otherwise
        frame, decoded_BD = known(compressor, values_BD, ratio)
        return frame, check_finite(decoded_BD, what)
    frame = compressor.compress(values_BD, ratio)
    return frame, decompress_checked(compressor, frame, (len(values_BD), values_BD.shape[1]), what)


def encode_as(values: ValueType, tensor: Tensor, what: str, *, coded: bool = False) -> bytes:
    """Encode a tensor, ``coded`` as in `encode`.

    Raises ValueError, naming it and the field, if its values do not fit the value type.
    """
    try:
        return encode(tensor, values, coded=coded)
    except ValueError as error:
        raise ValueError(f"wire.values: {what} does not fit {values} ({error}); use wire.values=float32") from None


def decode_finite(frame: Buffer, shape: tuple[int, ...], values: ValueType, what: str) -> Tensor:
    """Decode a frame of the agreed shape and value type; the tensor may share the frame's memory: do not change it.

    Raises CodecError, naming ``what``, if it is malformed or not as agreed; Diverged for NaN and infinity.
    """
    try:
        tensor = decode(frame, shape=shape, values=values)
    except CodecError as error:
        raise CodecError(f"{what}: {error}") from None
    return check_finite(tensor, what)


def check_tested(embedding_nD: Tensor, what: str) -> Tensor:
    """Return embeddings of tested samples. Raises Diverged for values that are not finite, or too large to test."""
    if check_finite(embedding_nD, what).abs().max() > MOST_TESTED:
        raise Diverged(f"{what} at the test has values beyond {MOST_TESTED:g}")
    return embedding_nD


def check_finite(tensor: Tensor, what: str) -> Tensor:
    """Return a tensor on the CPU. Raises Diverged for NaN and infinity."""
    # In blocks, so that it takes no memory to speak of; numpy takes a tenth of torch's time.
    values = tensor.numpy().reshape(-1)
    for start in range(0, len(values), BLOCK):
        if not np.isfinite(values[start : start + BLOCK]).all():
            raise Diverged(f"{what} has values that are not finite")
    return tensor
