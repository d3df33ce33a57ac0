"""Random streams keyed by purpose, so that adding one draw never shifts another.

Every source of randomness has a purpose ("train_subset", "batches", "pruning", ...), and if needed a round and an owner
(a party or client). A party on another machine derives the same stream from the same four values; a resumed run needs
no generator state in its checkpoint.
"""
# pyright: reportUnknownMemberType=false
# torch's own signatures are partly untyped.

import contextlib
import hashlib
import json
import threading
import zlib
from collections.abc import Callable, Generator

import torch


def stream_seed(seed: int, purpose: str, round_index: int = 0, owner: str = "") -> int:
    """Return the 63-bit seed of one stream: the same on every machine, Python and torch version.

    It is the head of the sha256 of the four values as a JSON list, whose quoting keeps ("a", "bc") and ("ab", "c")
    apart.
    """
    key = json.dumps([seed, purpose, round_index, owner]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, round_index: int = 0, owner: str = "") -> torch.Generator:
    """Return a fresh CPU generator at the start of the stream.

    torch's CPU generator starts from the low 32 bits of its seed only: among 10,000 streams two coincide with a
    probability of about 1 %. Do not use it for secrets.
    """
    return torch.Generator().manual_seed(stream_seed(seed, purpose, round_index, owner))


def stream_of(values: torch.Tensor, purpose: str) -> torch.Generator:
    """Return the stream seeded by float32 values on the CPU; equal values always give the same stream."""
    return generator(zlib.crc32(values.contiguous().numpy().data), purpose)


_global_generator = threading.RLock()


@contextlib.contextmanager
def seeded(seed: int, purpose: str, round_index: int = 0, owner: str = "") -> Generator[Callable[[], bool]]:
    """Run the block with torch's global CPU generator at the start of the stream, then restore its old state.

    This is for module constructors and layers such as Dropout, which can only draw from the global generator. Build on
    the CPU and move afterwards: generators of other devices are not changed. Threads, which share the global generator,
    run such blocks one at a time. The block gets a function that returns whether anything was drawn so far.
    """
    start = generator(seed, purpose, round_index, owner).get_state()
    with _global_generator:
        before = torch.get_rng_state()
        # torch.manual_seed would seed the accelerators too.
        torch.set_rng_state(start)
        try:
            yield lambda: not torch.equal(torch.get_rng_state(), start)
        finally:
            torch.set_rng_state(before)
