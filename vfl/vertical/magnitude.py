"""The paper's compressor: entries of small magnitude are left out, the others travel exactly."""

from torch import Tensor

from vfl.lightweighting.sparsify import sparsify
from vfl.vertical.embeddings import decode_as, encode_as
from vfl.wire.codec import ValueType
from vfl.wire.config import WireConfig
from vfl.wire.messages import Buffer


class Magnitude:
    """Zeroes the share ``ratio`` of a batch's entries and sends the others in the smallest of the codec's forms.

    Source: "Computation and Communication Efficient Lightweighting Vertical Federated Learning", beta.
    """

    def __init__(self, values: ValueType) -> None:
        self.values: ValueType = values

    def compress(self, embedding_BD: Tensor, ratio: float) -> bytes:
        """Return the frame. Raises ValueError where values do not fit the type in which they travel."""
        return encode_as(self.values, sparsify(embedding_BD, ratio), "the embedding")

    def decompress(self, frame: Buffer, shape: tuple[int, int]) -> Tensor:
        """Return the embedding, float32; it may be part of the frame. Raises CodecError for a frame of another kind."""
        return decode_as(self.values, frame, shape)


def magnitude(wire: WireConfig) -> Magnitude:
    """Return the compressor, as the registry takes it."""
    return Magnitude(wire.values)
