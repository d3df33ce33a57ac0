"""A proof that points were multiplied by the scalar of a public key, which tells nothing else about the scalar.

Chaum and Pedersen's proof of equal discrete logarithms (CRYPTO 1992), made by its prover alone (Fiat and Shamir, CRYPTO
1986), for any number of points at once. As in RFC 9497 many points are proven by few sums of them, with weights drawn
after the products are known; here they are drawn by who checks, and have 8 bits, so that the sums cost additions alone.
"""

import secrets

import numpy as np
import numpy.typing as npt

from vfl.matching.group import (
    GENERATOR,
    SCALAR_BYTES,
    add_points,
    expand_message,
    new_scalar,
    raise_points,
    subtract_product,
)
from vfl.wire.messages import Buffer

TAG = b"LVFL-V01-proof-with-secp256k1_XMD:SHA-512"
SUMS = 5
"""Of a chunk of points. With a wrong product among them each is right for one of 256 weights of its: all with 2^-40."""


def public_key(scalar: bytes) -> bytes:
    """Return the point that binds whoever tells it to a scalar."""
    return raise_points(scalar, GENERATOR)


def draw_weights(count: int) -> npt.NDArray[np.uint8]:
    """Return how often each of so many points counts in each sum, uint8 [SUMS, count]; nobody can tell before."""
    return np.frombuffer(secrets.token_bytes(SUMS * count), np.uint8).reshape(SUMS, count)


def prove(scalar: bytes, points: Buffer) -> bytes:
    """Return a proof that points times a scalar are what they are. Raises MessageError for one not of the group."""
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
    return expand_message(b"".join(of), TAG, SCALAR_BYTES)
