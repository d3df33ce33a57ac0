"""The envelope on a stream between two processes: reading it, and the errors of what does not belong there.

``envelope.proto`` documents the fields. Whatever the bytes are, reading them gives an Envelope or EnvelopeError.
"""

from google.protobuf.message import DecodeError

from vfl.wire.envelope_pb2 import (
    Envelope,
    Goodbye,
    Heartbeat,
    Hello,
    Leaving,
    Refusal,
    Restore,
    Restored,
    Save,
    Saved,
    Welcome,
)
from vfl.wire.messages import MessageError

__all__ = [
    "PROTOCOL_VERSION",
    "Envelope",
    "EnvelopeError",
    "Goodbye",
    "Heartbeat",
    "Hello",
    "Leaving",
    "Refusal",
    "Restore",
    "Restored",
    "Save",
    "Saved",
    "Welcome",
    "check_run",
    "kind_of",
    "read_envelope",
    "refusal",
]

PROTOCOL_VERSION = 1


class EnvelopeError(MessageError):
    """Bytes that are no envelope, or an envelope that does not belong here; the text is one line."""


def read_envelope(data: bytes) -> Envelope:
    """Read an envelope.

    Raises EnvelopeError for other bytes, another version, a field that is not of this protocol or of another type than
    in it, and for one without content.
    """
    try:
        envelope = Envelope.FromString(data)
    except DecodeError:
        raise EnvelopeError(f"{len(data)} bytes are no envelope of this protocol") from None
    if envelope.version != PROTOCOL_VERSION:
        raise EnvelopeError(
            f"protocol version {envelope.version} came, this side speaks {PROTOCOL_VERSION}; install the same release"
        )
    size = envelope.ByteSize()
    envelope.DiscardUnknownFields()  # where protobuf puts fields of another type as well
    if envelope.ByteSize() != size:
        raise EnvelopeError(
            f"an envelope with fields that version {PROTOCOL_VERSION} does not have, or of another type"
        )
    if kind_of(envelope) == "":
        raise EnvelopeError("an envelope without content")
    return envelope


def kind_of(envelope: Envelope) -> str:
    """Return the name of what is inside: ``hello``, ``request``, ... or ``""``."""
    return envelope.WhichOneof("kind") or ""


def check_run(envelope: Envelope, run: str) -> None:
    """Raise EnvelopeError for an envelope of another run."""
    if envelope.run != run:
        raise EnvelopeError(f"{kind_of(envelope)} of run {envelope.run or '(none)'} came, this is run {run}")


def refusal(reason: str, *, again: bool = False) -> Envelope:
    """Return the last word on a stream. ``again``: the reason may pass, so the other side may dial again."""
    return Envelope(version=PROTOCOL_VERSION, refusal=Refusal(reason=reason, again=again))
