"""The proof: complete, sound for every wrong product, and of its sums."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from vfl.parties.matching.group import (
    GENERATOR,
    ORDER,
    POINT_BYTES,
    SUMS,
    add_points,
    draw_weights,
    inverse_of_product,
    is_proven,
    new_scalar,
    prove,
    public_key,
    raise_keys,
    raise_points,
    split_points,
    subtract_product,
    weighted_sums,
)

NEGATED = (ORDER - 1).to_bytes(32, "big")


def scalar(value: int) -> bytes:
    return (value % ORDER).to_bytes(32, "big")


@given(st.lists(st.lists(st.integers(0, 255), min_size=3, max_size=3), min_size=0, max_size=12))
def test_weighted_sums_are_those_of_the_scalars(weights):
    """Of points with known logarithms 1, 2, ..., half of them negated, so that sums can be the identity."""
    logarithms = [(place // 2 + 1) * (-1) ** place for place in range(len(weights))]
    points = b"".join(raise_points(scalar(each), GENERATOR) for each in logarithms)
    columns = np.array(weights, np.uint8).reshape(-1, 3).T
    due = [sum(int(w) * each for w, each in zip(row, logarithms, strict=True)) % ORDER for row in columns]
    assert weighted_sums(points, columns) == [raise_points(scalar(each), GENERATOR) if each else b"" for each in due]


def test_scalars_and_pairs_of_points_follow_arithmetic():
    a, b, c = (random.randrange(1, ORDER) for _ in range(3))
    assert int.from_bytes(subtract_product(scalar(a), scalar(b), scalar(c)), "big") == (a - b * c) % ORDER
    assert int.from_bytes(inverse_of_product([scalar(a), scalar(b)]), "big") * a * b % ORDER == 1
    left, right = raise_points(scalar(a), GENERATOR), raise_points(scalar(b), GENERATOR)
    assert add_points(left + left, right + raise_points(NEGATED, left)) == [raise_points(scalar(a + b), GENERATOR), b""]
    refuses("", lambda: subtract_product(scalar(a), bytes(32), scalar(b)), "scalar")


def test_weights_are_new_uniform_bytes():
    weights = draw_weights(4000)
    assert weights.shape == (SUMS, 4000)
    counts = np.bincount(weights.ravel(), minlength=256)
    assert counts.min() > 78 * 0.5
    assert counts.max() < 78 * 1.6
    assert (draw_weights(4000) != weights).mean() > 0.98
    assert 256.0**-SUMS <= 2.0**-40


@pytest.mark.parametrize("count", [1, 7])
def test_a_proof_holds_for_its_products_alone(count):
    secret = new_scalar()
    points = raise_keys(new_scalar(), map(str, range(count)))
    raised, proof, public = raise_points(secret, points), prove(secret, points), public_key(secret)
    assert is_proven(proof, public, points, raised)
    assert prove(secret, points) != proof
    assert is_proven(prove(secret, b""), public, b"", b"")
    for place in range(count):
        one = slice(place * POINT_BYTES, (place + 1) * POINT_BYTES)
        wrong = raised[: one.start] + raise_points(NEGATED, raised[one]) + raised[one.stop :]
        assert not is_proven(proof, public, points, wrong)
        assert not is_proven(prove(secret, points), public, wrong, raised)
    assert not is_proven(proof, public_key(new_scalar()), points, raised)
    assert not is_proven(proof, public, points, raise_points(new_scalar(), points))
    other = new_scalar()
    assert not is_proven(prove(other, points), public, points, raise_points(other, points))
    for bit in range(0, 512, 7):
        flipped = bytes(byte ^ (bit // 8 == place) << bit % 8 for place, byte in enumerate(proof))
        assert not is_proven(flipped, public, points, raised)
    for malformed in (b"", bytes(64), b"\xff" * 64, proof[:-1], proof + b"\0"):
        assert not is_proven(malformed, public, points, raised)
    assert not is_proven(proof, public, points, raised + GENERATOR)
    assert not is_proven(proof, public, points, b"".join(reversed(split_points(raised)))) or count == 1


def test_a_proof_is_of_two_scalars_that_hide_the_secret():
    """With the same secret and points, neither half comes twice, nor does the nonce they would give away."""
    secret, points = new_scalar(), raise_keys(new_scalar(), ["a"])
    proofs = [prove(secret, points) for _ in range(20)]
    assert {len(each) for each in proofs} == {64}
    challenges, responses = ({each[half] for each in proofs} for half in (slice(32), slice(32, 64)))
    assert len(challenges) == len(responses) == 20
