"""The envelope on a stream between two processes: reading it, and the errors of what does not belong there.

``envelope.proto`` documents the fields. Whatever the bytes are, reading them gives an Envelope or EnvelopeError.
"""

import re

from google.protobuf.message import DecodeError, Message

from vfl.wire.envelope_pb2 import Envelope, Refusal
from vfl.wire.envelope_pb2 import Goodbye as Goodbye
from vfl.wire.envelope_pb2 import Heartbeat as Heartbeat
from vfl.wire.envelope_pb2 import Hello as Hello
from vfl.wire.envelope_pb2 import Leaving as Leaving
from vfl.wire.envelope_pb2 import Restore as Restore
from vfl.wire.envelope_pb2 import Restored as Restored
from vfl.wire.envelope_pb2 import Save as Save
from vfl.wire.envelope_pb2 import Saved as Saved
from vfl.wire.envelope_pb2 import Welcome as Welcome
from vfl.wire.messages import MessageError
from vfl.wire.text import plain

PROTOCOL_VERSION = 2
MOST_ROUNDS = 10_000
"""Saved rounds that a hello may name."""
EXIT_CODES = (0, 2, 3, 75, 130)
"""What a server may say that it ends with."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{0,64}", re.ASCII)
"""Runs, parties, instances, digests."""
_PROSE = ("reason",)
_JSON = ("agreement", "terms")
"""Read elsewhere."""


class EnvelopeError(MessageError):
    """Bytes that are no envelope, or an envelope that does not belong here; the text is one line."""


def read_envelope(data: bytes) -> Envelope:
    """Read an envelope.

    Raises EnvelopeError for other bytes, another version, a field that is not of this protocol or of another type than
    in it, for a malformed name, and for one without content. Prose is made ``plain``.
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
    # Refused, not ignored: both sides run the same release, and what is not read is not checked.
    if envelope.ByteSize() != size:
        raise EnvelopeError(
            f"an envelope with fields that version {PROTOCOL_VERSION} does not have, or of another type"
        )
    if kind_of(envelope) == "":
        raise EnvelopeError("an envelope without content")
    _check_texts(envelope)
    _check_numbers(envelope)
    return envelope


def _check_texts(message: Message) -> None:
    """Make prose plain. Raises EnvelopeError for a malformed name."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            _check_texts(value)
        elif field.type == field.TYPE_STRING and field.name in _PROSE:
            setattr(message, field.name, plain(value))
        elif field.type == field.TYPE_STRING and field.name not in _JSON and not _NAME.fullmatch(value):
            raise EnvelopeError(
                f"{field.name} {plain(repr(value), 80)} came: up to 64 letters, digits and _.- are allowed"
            )


def _check_numbers(envelope: Envelope) -> None:
    if len(envelope.hello.rounds) > MOST_ROUNDS:
        raise EnvelopeError(f"a hello with {len(envelope.hello.rounds)} rounds, at most {MOST_ROUNDS} are allowed")
    if envelope.goodbye.exit_code not in EXIT_CODES:
        raise EnvelopeError(f"goodbye with exit code {envelope.goodbye.exit_code} came, which no server ends with")


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
