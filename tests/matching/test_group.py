"""The group: published vectors, the laws that matching relies on, and what is no point of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfl.messages.messages import MessageError
from vfl.parties.matching import group
from vfl.parties.matching.group import (
    POINT_BYTES,
    TAG,
    check_points,
    expand_message,
    new_scalar,
    raise_keys,
    raise_points,
)

ONE = bytes(31) + b"\1"
PRIME = 2**256 - 2**32 - 977
GENERATOR = bytes.fromhex("0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798")


@pytest.mark.parametrize(
    ("message", "expanded"),
    [
        (b"", "6b9a7312411d92f921c6f68ca0b6380730a1a4d982c507211a90964c394179ba"),
        (b"abc", "0da749f12fbe5483eb066a5f595055679b976e93abe9be6f0f6318bce7aca8dc"),
        (b"abcdef0123456789", "087e45a86e2939ee8b91100af1583c4938e0f5fc6c9db4b107b83346bc967f58"),
    ],
)
def test_messages_are_expanded_as_rfc_9380_appendix_k_3_says(message, expanded):
    assert expand_message(message, b"QUUX-V01-CS02-with-expander-SHA512-256", 32).hex() == expanded


@pytest.mark.parametrize(
    ("t", "x", "odd"),
    [
        ("00" * 32, "edd1fd3e327ce90cc7a3542614289aee9682003e9cf7dcc9cf2ca9743be5aa0c", 0),
        (
            "01d3475bf7655b0fb2d852921035b2ef607f49069b97454e6795251062741771",
            "b5da00b73cd6560520e7c364086e7cd23a34bf60d0e707be9fc34d4cd5fdfa2c",
            1,
        ),
        (
            "82277c4a71f9d22e66ece523f8fa08741a7c0912c66a69ce68514bfd3515b49f",
            "f482f2e241753ad0fb89150d8491dc1e34ff0b8acfbb442cfe999e2e5e6fd1d2",
            1,
        ),
        (
            "8421cc930e77c9f514b6915c3dbe2a94c6d8f690b5b739864ba6789fb8a55dd0",
            "9f59c40275f5085a006f05dae77eb98c6fd0db1ab4a72ac47eae90a4fc9e57e0",
            0,
        ),
    ],
)
def test_uniform_bytes_are_mapped_as_bip_324_says(t, x, odd):
    assert swift_point(bytes(32) + bytes.fromhex(t)) == bytes([2 + odd]) + bytes.fromhex(x)


def swift_point(uniform: bytes) -> bytes:
    return group._serialized(group._decoded(uniform))


def on_curve(point: bytes) -> bool:
    x = int.from_bytes(point[1:], "big")
    y = pow(x**3 + 7, (PRIME + 1) // 4, PRIME)
    return y * y % PRIME == (x**3 + 7) % PRIME


@given(st.lists(st.text(max_size=20), max_size=5))
def test_scalars_commute_and_nothing_else_is_equal(keys):
    a, b = new_scalar(), new_scalar()
    ab, ba = raise_points(b, raise_keys(a, keys)), raise_points(a, raise_keys(b, keys))
    assert ab == ba
    points = [ab[start : start + POINT_BYTES] for start in range(0, len(ab), POINT_BYTES)]
    assert len(set(points)) == len(set(keys))
    assert all(map(on_curve, points))
    assert check_points(ab, len(keys)) == ab
    assert raise_keys(ONE, keys) == b"".join(swift_point(expand_message(key.encode(), TAG, 64)) for key in keys)


def test_products_are_those_of_the_curve():
    """Twice the generator, from SEC 2's curve by hand."""
    two = raise_points(bytes(31) + b"\2", GENERATOR)
    x, y = int.from_bytes(GENERATOR[1:], "big"), None
    y = pow(x**3 + 7, (PRIME + 1) // 4, PRIME)
    y = y if y % 2 == 0 else PRIME - y
    slope = 3 * x * x * pow(2 * y, -1, PRIME) % PRIME
    x2 = (slope * slope - 2 * x) % PRIME
    y2 = (slope * (x - x2) - y) % PRIME
    assert two == bytes([2 + y2 % 2]) + x2.to_bytes(32, "big")


@pytest.mark.parametrize(
    ("point", "what"),
    [
        (bytes(POINT_BYTES), "point 2 is the identity, the point of small order"),
        (b"\2" + (5).to_bytes(32, "big"), "point 2 is not on the curve"),
        (b"\2" + PRIME.to_bytes(32, "big"), "point 2 is not on the curve"),
        (b"\2" + b"\xff" * 32, "point 2 is not on the curve"),
        (b"\4" + GENERATOR[1:], "point 2 is not on the curve"),
        (b"\0" + GENERATOR[1:], "point 2 is not on the curve"),
        (GENERATOR[:-1], "65 bytes came where 2 points of 33 bytes are due"),
        (GENERATOR * 2, "99 bytes came where 2 points"),
    ],
)
def test_what_is_no_point_of_the_group_is_refused_by_name(point, what):
    with pytest.raises(MessageError, match=what):
        check_points(GENERATOR + point, 2)
    if len(point) == POINT_BYTES:
        with pytest.raises(MessageError, match=what):
            raise_points(new_scalar(), GENERATOR + point)
