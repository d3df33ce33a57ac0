"""Which library multiplies points fastest: python libraries.py [--points N] [--json FILE].

Needs coincurve, PyNaCl and, for ristretto255, rbcl (pip install coincurve pynacl rbcl); what is not there is left out.
Each row is one core, points per second of CPU time, the median of five turns; rows take turns.
"""

import argparse
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

TURNS = 5
Work = Callable[[], object]


def secp256k1(hashes: list[bytes]) -> dict[str, Work]:
    """Measure coincurve: SwiftEC, Diffie-Hellman (constant time) and key tweaking (variable time)."""
    from coincurve import GLOBAL_CONTEXT
    from coincurve._libsecp256k1 import ffi, lib

    from vfl.matching.group import new_scalar, raise_points, swift_point

    scalar = new_scalar()
    points = b"".join(map(swift_point, hashes))

    def tweak() -> None:
        place, out, size = ffi.new("secp256k1_pubkey *"), ffi.new("unsigned char[33]"), ffi.new("size_t *", 33)
        for start in range(0, len(points), 33):
            lib.secp256k1_ec_pubkey_parse(GLOBAL_CONTEXT.ctx, place, points[start : start + 33], 33)
            lib.secp256k1_ec_pubkey_tweak_mul(GLOBAL_CONTEXT.ctx, place, scalar)
            lib.secp256k1_ec_pubkey_serialize(GLOBAL_CONTEXT.ctx, out, size, place, 258)

    return {
        "coincurve, hash to group (SwiftEC)": lambda: [swift_point(each) for each in hashes],
        "coincurve, multiply (constant time)": lambda: raise_points(scalar, points),
        "coincurve, multiply (variable time)": tweak,
    }


def ed25519(hashes: list[bytes]) -> dict[str, Work]:
    """Measure PyNaCl: two Elligator maps, and the product with its check of the subgroup."""
    import nacl.bindings as sodium

    def point(uniform: bytes) -> bytes:
        halves = [sodium.crypto_core_ed25519_from_uniform(half) for half in (uniform[:32], uniform[32:])]
        return sodium.crypto_core_ed25519_add(*halves)

    scalar = sodium.crypto_core_ed25519_scalar_reduce(os.urandom(64))
    points = [point(each) for each in hashes]
    return {
        "PyNaCl ed25519, hash to group": lambda: [point(each) for each in hashes],
        "PyNaCl ed25519, multiply": lambda: [sodium.crypto_scalarmult_ed25519_noclamp(scalar, each) for each in points],
    }


def ristretto(hashes: list[bytes]) -> dict[str, Work]:
    """Measure rbcl: libsodium's ristretto255, which PyNaCl does not have."""
    import rbcl

    scalar = rbcl.crypto_core_ristretto255_scalar_random()
    points = [rbcl.crypto_core_ristretto255_from_hash(each) for each in hashes]
    return {
        "rbcl ristretto255, hash to group": lambda: [rbcl.crypto_core_ristretto255_from_hash(each) for each in hashes],
        "rbcl ristretto255, multiply": lambda: [rbcl.crypto_scalarmult_ristretto255(scalar, each) for each in points],
    }


def in_threads(work: Work) -> Work:
    """Do the work twice at once."""

    def both() -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda _: work(), range(2)))

    return both


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    hashes = [hashlib.sha512(str(number).encode()).digest() for number in range(arguments.points)]
    needed = {"coincurve": secp256k1, "nacl": ed25519, "rbcl": ristretto}
    works = {name: work for module, make in needed.items() if find_spec(module) for name, work in make(hashes).items()}
    rates: dict[str, list[float]] = {name: [] for name in works}
    speedups: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(TURNS):
        for name, work in works.items():
            wall_s, started_s = time.perf_counter(), time.process_time()
            work()
            rates[name].append(arguments.points / (time.process_time() - started_s))
            wall_s = time.perf_counter() - wall_s
            started_s = time.perf_counter()
            in_threads(work)()
            speedups[name].append(2 * wall_s / (time.perf_counter() - started_s))
    rows = {
        name: {"points_per_s": statistics.median(rates[name]), "two_threads": statistics.median(speedups[name])}
        for name in works
    }
    for name, row in rows.items():
        line = f"{name:40} {row['points_per_s']:9,.0f} points/s a core   two threads: {row['two_threads']:.2f} times"
        print(line)  # noqa: T201 - a script
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
