"""A proof that points were multiplied by the scalar of a public key, which reveals nothing else about the scalar.

Chaum and Pedersen's proof of equal discrete logarithms (CRYPTO 1992), non-interactive (Fiat and Shamir, CRYPTO 1986),
for any number of points at once. As in RFC 9497 many points are proven by few sums of them, with weights drawn after
the products are known; here the verifier draws them, and they have 8 bits, so that the sums need only additions.
"""

import secrets

import numpy as np
import numpy.typing as npt

from vfl.messages.messages import Buffer
from vfl.parties.matching.group import (
    GENERATOR,
    SCALAR_BYTES,
    add_points,
    expand_message,
    new_scalar,
    raise_points,
    subtract_product,
)

TAG = b"LVFL-V01-proof-with-secp256k1_XMD:SHA-512"
SUMS = 5
"""Most sums of a chunk; fewer points are proven themselves. A wrong product passes a sum for one of its 256 weights,
and so passes all with 2^-40."""


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
    return expand_message(b"".join(of), TAG, SCALAR_BYTES)
