"""Keys of rows to be scored, as they travel: LOOK_UP asks for them, FOUND says which of them a party has.

    LOOK_UP   KEYS       4 bytes number of keys, little endian; of each 2 bytes length, then so many bytes
    FOUND     CONTROL    `Found`: looked, or declined; and the keys for which the party is away
              PRESENCE   a bit for every key, in their order: the party has a row of it
              EMBEDDING  frame [n, D] of these rows, in that order; empty for none
              KEYS       of the label owner the n keys by which another owner knows these rows, owner by owner in the
                         order of their names; empty where none knows them by another key

A key is the JSON array of its cells, or 32 bytes of HMAC-SHA256 of that under a secret of the owners.
"""

import hashlib
import hmac
import struct
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vfl.messages.control import Control
from vfl.messages.messages import Buffer, Message, MessageError, Part, PartKind

MOST_KEYS = 4096
"""Most keys in a message."""
LONGEST_KEY = 512
"""Bytes of a key."""
Place = Annotated[int, Field(ge=0, lt=MOST_KEYS)]
_COUNT, _LENGTH = struct.Struct("<I"), struct.Struct("<H")


class Found(Control):
    """FOUND: whether the party has answered for the keys, or declined, as its owner has not agreed."""

    outcome: Literal["looked", "too_many", "expired"] = "looked"
    away: Annotated[tuple[Place, ...], Field(min_length=1, max_length=MOST_KEYS)] | None = None
    """Places of the keys for which the party is away: it cannot say now whether it has a row."""


LOOKED = Found().part().payload


def read_found(found: Message, keys: Sequence[bytes]) -> set[bytes] | None:
    """Return the keys that a FOUND leaves open; None where the party's owner declines.

    Raises MessageError for what it cannot say, and places of other keys.
    """
    said = found.only(PartKind.CONTROL)
    answer = Found() if said == LOOKED else Found.from_json(said)
    if answer.outcome != "looked":
        return None
    away = answer.away or ()
    if any(place >= len(keys) for place in away):
        raise MessageError(f"a party is away for key {max(away)} of {len(keys)}")
    return {keys[place] for place in away}


def key_bytes(cells: Sequence[str], secret: bytes | None) -> bytes:
    """Return a key as it travels. Raises ValueError for one that is too long, or no Unicode."""
    try:
        text = f"[{','.join(map(encode_basestring, cells))}]".encode()
    except UnicodeEncodeError:
        raise ValueError("a key is no text") from None
    if len(text) > LONGEST_KEY:
        raise ValueError(f"a key has {len(text)} bytes, at most {LONGEST_KEY} are allowed")
    return text if secret is None else hmac.digest(secret, text, hashlib.sha256)


def keys_part(keys: Sequence[bytes]) -> Part:
    """Return the part that holds keys, empty for none."""
    if not keys:
        return Part(PartKind.KEYS, b"")
    packed = [_LENGTH.pack(len(key)) + key for key in keys]
    return Part(PartKind.KEYS, _COUNT.pack(len(keys)) + b"".join(packed))


def announced_keys(payload: Buffer) -> int:
    """Return how many keys there are by the word of who sent them, which ``read_keys`` checks."""
    return int.from_bytes(payload[: _COUNT.size], "little")


def read_keys(payload: Buffer) -> list[bytes]:
    """Return the keys of ``keys_part``. Raises MessageError for any other bytes."""
    data = bytes(payload)
    if len(data) < _COUNT.size:
        raise MessageError(f"{len(data)} bytes are no keys")
    (count,) = _COUNT.unpack_from(data)
    if not 0 < count <= MOST_KEYS:
        raise MessageError(f"{count} keys came, 1 to {MOST_KEYS} are allowed")
    keys: list[bytes] = []
    offset = _COUNT.size
    for _ in range(count):
        if offset + _LENGTH.size > len(data):
            raise MessageError("keys are cut short")
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size
        if not 0 < length <= LONGEST_KEY or offset + length > len(data):
            raise MessageError(f"a key of {length} bytes came, or keys are cut short")
        keys.append(data[offset : offset + length])
        offset += length
    if offset != len(data):
        raise MessageError(f"{len(data) - offset} bytes after the last key")
    return keys


def presence_part(there: NDArray[np.bool_]) -> Part:
    """Return the part with the mask of the keys that a party has."""
    return Part(PartKind.PRESENCE, np.packbits(there).tobytes())


def read_presence(payload: Buffer, keys: int) -> list[bool]:
    """Return for each key whether a party has it. Raises MessageError for bits of another number."""
    if len(payload) != (keys + 7) // 8:
        raise MessageError(f"{len(payload)} bytes say who is present, {keys} keys were asked for")
    bits = np.unpackbits(np.frombuffer(payload, np.uint8)).view(bool).tolist()
    if any(bits[keys:]):
        raise MessageError("bits after the last key")
    return bits[:keys]
