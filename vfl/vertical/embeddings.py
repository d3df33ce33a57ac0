"""Embeddings on their way: sparsified, encoded, decoded, and with error feedback added up.

Shapes: B batch, D embedding width.
"""

import numpy as np
from torch import Tensor

from vfl.checkpoint import State
from vfl.lightweighting.sparsify import ErrorFeedback, sparsify
from vfl.wire.codec import BLOCK, CodecError, ValueType, decode_view, encode, frame_info
from vfl.wire.messages import Buffer


class EmbeddingReceiver:
    """Turns a sender's frames into its sparsified embeddings; every receiver of a frame gets the same bits.

    Args:
        sender: name of the sending party, for error texts.
        width: embedding width D.
        values: type in which the values travel.
        feedback: this receiver's estimates of the sender's embeddings; None without error feedback.
    """

    def __init__(self, sender: str, width: int, values: ValueType, feedback: ErrorFeedback | None = None) -> None:
        self.sender = sender
        self.width = width
        self.values: ValueType = values
        self.feedback = feedback

    def receive(self, frame: Buffer, rows_B: Tensor) -> Tensor:
        """Return the embeddings [B, D] float32 on the CPU of the samples ``rows_B``.

        Raises ValueError for a frame of another shape or value type and for values that are not finite.
        """
        received_BD = self.decode(frame, len(rows_B))
        return received_BD if self.feedback is None else self.feedback.apply(rows_B, received_BD)

    def decode(self, frame: Buffer, samples: int) -> Tensor:
        """Return what a frame holds, [samples, D], checked as by ``receive``; no estimate is used or moved."""
        return decode_finite(frame, (samples, self.width), self.values, f"{self.sender}'s embedding")

    def state_dict(self) -> State:
        """Return the estimates."""
        return {} if self.feedback is None else self.feedback.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Restore the estimates."""
        if self.feedback is not None:
            self.feedback.load_state_dict(state)


class EmbeddingSender:
    """Sparsifies and encodes a party's own embeddings, and knows what the receivers will make of them."""

    def __init__(self, receiver: EmbeddingReceiver) -> None:
        self.receiver = receiver

    def send(self, embedding_BD: Tensor, rows_B: Tensor, beta: float) -> tuple[bytes, Tensor]:
        """Return the frame of the sparsified embeddings, and the embeddings [B, D] as they will be received."""
        feedback = self.receiver.feedback
        difference_BD = embedding_BD if feedback is None else feedback.difference(rows_B, embedding_BD)
        frame = encode_as(self.receiver.values, sparsify(difference_BD, beta), f"{self.receiver.sender}'s embedding")
        return frame, self.receiver.receive(frame, rows_B)


def encode_as(values: ValueType, tensor: Tensor, what: str) -> bytes:
    """Encode a tensor. Raises ValueError, naming it and the field, where its values do not fit the value type."""
    try:
        return encode(tensor, values)
    except ValueError as error:
        raise ValueError(f"wire.values: {what} does not fit {values} ({error}); use wire.values=float32") from None


def decode_finite(frame: Buffer, shape: tuple[int, ...], values: ValueType, what: str) -> Tensor:
    """Decode a frame of the agreed shape and value type; the tensor may be part of the frame and is not to be changed.

    Raises CodecError, naming what it was, where it is malformed or not as agreed; ValueError for NaN and infinity.
    """
    try:
        if (sent := frame_info(frame).values) != values:
            raise CodecError(f"its values are {sent}, {values} was agreed")
        tensor = decode_view(frame, shape=shape)
    except CodecError as error:
        raise CodecError(f"{what}: {error}") from None
    if not _all_finite(tensor):
        raise ValueError(f"{what} has values that are not finite: lower training.optimizer.learning_rate")
    return tensor


def _all_finite(tensor: Tensor) -> bool:
    # In blocks, so that it takes no memory to speak of; numpy takes a tenth of torch's time.
    values = tensor.flatten().numpy()
    return all(np.isfinite(values[start : start + BLOCK]).all() for start in range(0, len(values), BLOCK))
