"""The bytes of messages, booked by kind, beside those of the same messages with dense float32 tensors: the baseline."""

from collections.abc import Iterable, Iterator, Sequence

from vfl.costs import CONTROL, EVALUATION, Direction, PartyCosts
from vfl.vertical.embeddings import EmbeddingReceiver
from vfl.wire.codec import dense_frame_size
from vfl.wire.messages import ENVELOPE_BYTES, MEASURING, PART_BYTES, Message, PartKind


def book(costs: PartyCosts, direction: Direction, message: Message, dense: Iterator[int]) -> None:
    """Book a message; ``dense`` gives, for each of its embeddings and gradients, the bytes of its tensor when dense."""
    measuring = message.kind in MEASURING
    for part in message.parts:
        kind = EVALUATION if measuring else part.kind.name.lower()
        framed = not measuring and part.kind in (PartKind.EMBEDDING, PartKind.GRADIENT)
        costs.book_bytes(direction, kind, part.size, PART_BYTES + (next(dense) if framed else len(part.payload)))
    costs.book_bytes(direction, EVALUATION if measuring else CONTROL, ENVELOPE_BYTES, ENVELOPE_BYTES)


def dense_frames(
    receivers: Sequence[EmbeddingReceiver], samples_K: Iterable[int], party: str, *, forwarded: bool
) -> Iterator[int]:
    """Return the sizes of the dense tensors of an exchange that travel between a party and the server.

    A party's own embedding goes up, and comes back as a gradient; the others' come down (``forwarded``).
    """
    for receiver, samples in zip(receivers, samples_K, strict=True):
        # The party's own where nothing is forwarded, else all but its own. Without samples the frame is empty.
        if (receiver.sender == party) != forwarded:
            yield dense_frame_size((samples, receiver.width)) if samples else 0
