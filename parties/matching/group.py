"""The group in which keys are compared: secp256k1, whose order is prime, by coincurve (Bitcoin Core's libsecp256k1).

A key becomes a point by RFC 9380's expand_message_xmd (section 5.3.1, with SHA-512) and SwiftEC (Chavez-Saab,
Rodriguez-Henriquez, Tibouchi: SwiftEC, ASIACRYPT 2022), in the encoding of BIP 324. This maps 64 uniform bytes and is
indifferentiable from a random oracle into the group, as is RFC 9380's hash_to_curve, which the library lacks. Points
are multiplied by the library's Diffie-Hellman, whose time does not depend on the scalar.

A proof that points were multiplied by the scalar of a public key reveals nothing else about the scalar: Chaum and
Pedersen's proof of equal discrete logarithms (CRYPTO 1992), non-interactive (Fiat and Shamir, CRYPTO 1986), for any
number of points at once. As in RFC 9497 many points are proven by few sums of them, with weights drawn after the
products are known; here the verifier draws them, and they have 8 bits, so that the sums need only additions.

Points travel compressed, 33 bytes each (SEC 1). Only this file imports coincurve. Processes that do nothing else import
it, so it imports little.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false
# The bindings bring no types.

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from coincurve import GLOBAL_CONTEXT
from coincurve.utils import get_valid_secret

from vfl.messages.messages import Buffer, MessageError

POINT_BYTES, SCALAR_BYTES = 33, 32
GENERATOR = bytes.fromhex("0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798")
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""Order of the group, as given with its generator in SEC 2."""
TAG = b"LVFL-V01-CS01-with-secp256k1_XMD:SHA-512_SwiftEC_RO_"
"""Tag of the domain separation (RFC 9380, section 3.1)."""
PROOF_TAG = b"LVFL-V01-proof-with-secp256k1_XMD:SHA-512"
SUMS = 5
"""Most sums of a chunk; fewer points are proven themselves. A wrong product passes a sum for one of its 256 weights,
and so passes all with 2^-40."""
_SHA512_BLOCK_BYTES = 128
_COMPRESSED = 258
"""Value of SECP256K1_EC_COMPRESSED."""
_bindings = cast(Any, import_module("coincurve._libsecp256k1"))
_ffi, _lib = _bindings.ffi, _bindings.lib
_context = cast(Any, GLOBAL_CONTEXT).ctx


def new_scalar() -> bytes:
    """Return a secret scalar, 32 bytes, from the system's random numbers: never 0, below the group's order."""
    return get_valid_secret()


def expand_message(message: bytes, tag: bytes, length: int) -> bytes:
    """Return RFC 9380's expand_message_xmd with SHA-512, up to 64 bytes long: one block."""
    # DST_prime, b_0 and b_1 of the RFC. One block of SHA-512 is 64 bytes, so b_2 is never needed.
    suffix = tag + bytes([len(tag)])
    head = hashlib.sha512(bytes(_SHA512_BLOCK_BYTES) + message + length.to_bytes(2, "big") + b"\0" + suffix).digest()
    return hashlib.sha512(head + b"\1" + suffix).digest()[:length]


def raise_keys(scalar: bytes, keys: Iterable[str]) -> bytes:
    """Return the points of keys times a scalar, one after another."""
    return _times(scalar, (_decoded(expand_message(key.encode(), TAG, 64)) for key in keys))


def raise_points(scalar: bytes, points: Buffer) -> bytes:
    """Return points times a scalar, in their order. Raises MessageError as ``check_points``."""
    return _times(scalar, _parsed(points))


def split_points(points: bytes) -> list[bytes]:
    """Return the points as a list."""
    return [points[start : start + POINT_BYTES] for start in range(0, len(points), POINT_BYTES)]


def check_points(points: Buffer, count: int) -> bytes:
    """Return the points. Raises MessageError for another number of them or a point outside the group."""
    _check_length(points, count)
    for _point in _parsed(points):
        pass
    return bytes(points)


def weighted_sums(points: Buffer, weights: npt.NDArray[np.uint8]) -> list[bytes]:
    """Return, for each row of weights [sums, points], the weighted sum of the points; b"" for the identity.

    Raises MessageError as ``check_points``.
    """
    _check_length(points, weights.shape[1])
    held = _held(points)
    return [_weighted_sum(held, each) for each in weights]


def add_points(left: Buffer, right: Buffer) -> list[bytes]:
    """Return the sums of points in pairs; b"" for the identity. Raises MessageError as ``check_points``."""
    pairs, count = (_held(left), _held(right)), len(left) // POINT_BYTES
    return [_serialized(total) if (total := _sum([each + place for each in pairs])) else b"" for place in range(count)]


def subtract_product(minuend: bytes, one: bytes, other: bytes) -> bytes:
    """Return a scalar minus the product of two others, in constant time."""
    result = _ffi.new(f"unsigned char[{SCALAR_BYTES}]", one)
    done = _lib.secp256k1_ec_seckey_tweak_mul(_context, result, other)
    done = done and _lib.secp256k1_ec_seckey_negate(_context, result)
    done = done and _lib.secp256k1_ec_seckey_tweak_add(_context, result, minuend)
    if not done:  # with random scalars as good as never
        raise ValueError("a scalar is 0 or not below the group's order")
    return bytes(_ffi.buffer(result))


def inverse_of_product(scalars: Iterable[bytes]) -> bytes:
    """Return the scalar that undoes multiplication by all given ones."""
    product = 1
    for each in scalars:
        product = product * int.from_bytes(each, "big") % ORDER
    return pow(product, -1, ORDER).to_bytes(SCALAR_BYTES, "big")


def _check_length(points: Buffer, count: int) -> None:
    if len(points) != count * POINT_BYTES:
        raise MessageError(f"{len(points)} bytes came where {count} points of {POINT_BYTES} bytes are due")


def _held(points: Buffer) -> Any:
    held = _ffi.new("secp256k1_pubkey[]", len(points) // POINT_BYTES)
    for place, point in enumerate(_parsed(points)):
        held[place] = point[0]  # a copy of the struct, as the next point takes its place
    return held


def _weighted_sum(held: Any, weights: npt.NDArray[np.uint8]) -> bytes:
    """Return the weighted sum: points of each weight are added first, then these sums by their weights' bits.

    It costs little more than one addition per point.
    """
    if not len(weights):
        return b""
    order = np.argsort(weights, kind="stable")
    first = int(_ffi.cast("uintptr_t", held))
    places = np.ascontiguousarray(first + order.astype(np.uintp) * _ffi.sizeof("secp256k1_pubkey"), np.uintp)
    pointers = _ffi.cast("secp256k1_pubkey **", _ffi.from_buffer(places))
    drawn, starts = np.unique(weights[order], return_index=True)
    of_weight: list[tuple[int, Any]] = [
        (weight, _sum(pointers + start, end - start))
        for weight, start, end in zip(drawn.tolist(), starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True)
    ]
    total = None
    for bit in reversed(range(8)):
        added = [point for weight, point in of_weight if point and weight >> bit & 1]
        total = _sum([*added, *([total] * 2 if total else [])])
    return _serialized(total) if total else b""


def _sum(points: Any, count: int | None = None) -> Any:
    """Return the sum of points, None for the identity."""
    count, total = len(points) if count is None else count, _ffi.new("secp256k1_pubkey *")
    return total if count and _lib.secp256k1_ec_pubkey_combine(_context, total, points, count) else None


def _parsed(points: Buffer) -> Iterator[Any]:
    """Yield points as the library's structs, each valid until the next.

    The group's order is prime: the identity is the only point of small order, and every other point on the curve has
    the full order.
    """
    place = _ffi.new("secp256k1_pubkey *")  # one for all: a million points are not a million allocations
    for start in range(0, len(points), POINT_BYTES):
        point = bytes(points[start : start + POINT_BYTES])
        if not _lib.secp256k1_ec_pubkey_parse(_context, place, point, len(point)):
            what = "the identity, the point of small order" if not any(point) else "not on the curve"
            raise MessageError(f"point {start // POINT_BYTES + 1} is {what}")
        yield place


def _decoded(uniform: bytes) -> Any:
    place = _ffi.new("secp256k1_pubkey *")
    _lib.secp256k1_ellswift_decode(_context, place, uniform)
    return place


@_ffi.callback("int(unsigned char *, const unsigned char *, const unsigned char *, void *)")
def _compress(out: Any, x: Any, y: Any, _data: Any) -> int:
    """Write the point, compressed, as the output of Diffie-Hellman, in place of a hash of it."""
    out[0] = 2 + (y[31] & 1)  # SEC 1: 2 for an even y, 3 for an odd one
    _ffi.memmove(out + 1, x, POINT_BYTES - 1)
    return 1


def _times(scalar: bytes, points: Iterable[Any]) -> bytes:
    out = _ffi.new(f"unsigned char[{POINT_BYTES}]")
    result = bytearray()
    for point in points:
        if not _lib.secp256k1_ecdh(_context, out, point, scalar, _compress, _ffi.NULL):
            raise ValueError("the scalar is 0 or not below the group's order")
        result += _ffi.buffer(out)
    return bytes(result)


def _serialized(point: Any) -> bytes:
    out, size = _ffi.new(f"unsigned char[{POINT_BYTES}]"), _ffi.new("size_t *", POINT_BYTES)
    _lib.secp256k1_ec_pubkey_serialize(_context, out, size, point, _COMPRESSED)
    return bytes(_ffi.buffer(out))


def public_key(scalar: bytes) -> bytes:
    """Return the point that commits its sender to a scalar."""
    return raise_points(scalar, GENERATOR)


def draw_weights(count: int) -> npt.NDArray[np.uint8]:
    """Return each point's weight in each sum, uint8 [sums, count]: unpredictable, or of few points each by itself."""
    if count <= SUMS:
        return np.eye(count, dtype=np.uint8)
    return np.frombuffer(secrets.token_bytes(SUMS * count), np.uint8).reshape(SUMS, count)


def prove(scalar: bytes, points: Buffer) -> bytes:
    """Return a proof of the products of points and a scalar. Raises MessageError for a point outside the group."""
    nonce, raised = new_scalar(), raise_points(scalar, points)
    committed = raise_points(nonce, GENERATOR + points)
    challenge = _challenge(public_key(scalar), points, raised, committed)
    return challenge + subtract_product(nonce, challenge, scalar)


def is_proven(proof: Buffer, public: bytes, points: bytes, raised: bytes) -> bool:
    """Return whether a proof shows that ``raised`` are the points times the scalar of a public key."""
    if len(proof) != 2 * SCALAR_BYTES or len(raised) != len(points):
        return False
    challenge, response = bytes(proof[:SCALAR_BYTES]), bytes(proof[SCALAR_BYTES:])
    try:
        committed = add_points(raise_points(response, GENERATOR + points), raise_points(challenge, public + raised))
    except ValueError:  # no scalars, or no points
        return False
    return challenge == _challenge(public, points, raised, b"".join(committed))


def _challenge(*of: Buffer) -> bytes:
    return expand_message(b"".join(of), PROOF_TAG, SCALAR_BYTES)
