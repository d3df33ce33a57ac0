"""Partitions that ignore labels: random ones, and those by the users or roles of the data."""
# pyright: reportUnknownMemberType=false
# torch's own signatures are partly untyped.

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vfl.base.random import stream_seed
from vfl.data.samples import Owners

Rows = NDArray[np.int64]

GAUSSIAN_MEANS = (0.5, 0.75, 1.0, 1.25, 1.5)
"""Mean sizes of the five groups of clients, relative to samples_per_client."""

GAUSSIAN_STD = 100 / 512
"""Standard deviation of a size, relative to its mean."""

GAUSSIAN_SAMPLES_PER_CLIENT = 1024
"""T-SFL's Case 3: N(512, 100), N(768, 150), N(1024, 200), N(1280, 250), N(1536, 300)."""


def iid(samples: int, clients: int, seed: int, samples_per_client: int | None = None) -> list[Tensor]:
    """Return each client's rows (int64, ascending, none twice) of samples drawn without regard to labels.

    samples_per_client: each client's number; some samples are then left over, and a client's rows do not depend on the
    number of clients. None deals all samples, sizes differing by at most one.

    Raises ValueError if there are not enough samples.
    """
    if samples_per_client is not None:  # from the front of one shuffle: further clients change nobody's rows
        return _deal(samples, [samples_per_client] * clients, seed)
    check_enough(clients, samples)
    return ascending(np.array_split(_shuffled(samples, seed), clients))


def gaussian(samples: int, clients: int, seed: int, samples_per_client: int | None = None) -> list[Tensor]:
    """Return each client's rows (int64, ascending, none twice), sizes drawn from five normal distributions.

    Case 3 of T-SFL (section 5.1): a fifth of the clients each have floor N(m, s) samples, m from 0.5 to 1.5 times
    `samples_per_client` in steps of a quarter, s = m * 100/512. Chosen where the paper is silent: who is in which
    fifth is random, so that a client's position reveals nothing; a size below 1 becomes 1; samples are dealt without
    regard to labels.
    Raises ValueError when there are not enough samples for the sizes drawn.
    """
    rng = stream(seed, "sizes")
    groups = rng.permutation(np.arange(clients) * len(GAUSSIAN_MEANS) // clients)  # 0 0 1 1 2 2 ..., shuffled
    means = (samples_per_client or GAUSSIAN_SAMPLES_PER_CLIENT) * np.array(GAUSSIAN_MEANS)[groups]
    sizes = np.floor(rng.normal(means, GAUSSIAN_STD * means)).clip(min=1).astype(int)
    return _deal(samples, sizes.tolist(), seed)


def natural(
    owners: Owners, clients: int, seed: int, min_samples: int | None = None
) -> tuple[tuple[str, ...], list[Tensor]]:
    """Return the names of the owners that become clients, and the rows (int64, ascending) of each.

    min_samples: owners with fewer samples are left out; None leaves nobody out. clients: number of owners to draw by
    `seed`; a larger draw contains the smaller one. Names keep their order in the data.

    Raises ValueError for more clients than owners, and without min_samples for an owner without samples.
    """
    of_row = owners.of_row.numpy()
    sizes = np.bincount(of_row, minlength=len(owners.names))
    if min_samples is None and not sizes.all():
        empty = owners.names[int(sizes.argmin())]
        raise ValueError(
            f"horizontal.partition.min_samples: client {empty!r} has no training samples; set it to 1 or more to leave "
            "out owners with fewer"
        )
    eligible = np.flatnonzero(sizes >= (min_samples or 1))
    if clients > len(eligible):
        of_size = "" if min_samples is None else f" with at least {min_samples} training samples"
        fix = "lower it" if min_samples is None else "lower it or horizontal.partition.min_samples"
        raise ValueError(
            f"horizontal.clients: {clients} asked for, the data have {len(eligible)} owners{of_size}; {fix}"
        )
    owner_indices: list[int] = np.sort(stream(seed, "owners").permutation(eligible)[:clients]).tolist()
    by_owner = np.split(np.argsort(of_row, kind="stable"), sizes.cumsum())  # rows sorted by owner, cut between owners
    return tuple(owners.names[index] for index in owner_indices), ascending(
        [by_owner[index] for index in owner_indices]
    )


def check_enough(clients: int, samples: int) -> None:
    """Raise ValueError unless every client can have a sample."""
    if clients > samples:
        raise ValueError(
            f"horizontal.clients: {clients} clients cannot each have one of {samples} training samples; "
            "lower it or raise data.train_samples"
        )


def stream(seed: int, owner: str) -> np.random.Generator:
    """Return the random generator of one step of the partition; NumPy's, as torch has no Dirichlet draws."""
    return np.random.default_rng(stream_seed(seed, "partition", owner=owner))


def ascending(parts: Sequence[Rows]) -> list[Tensor]:
    """Return each client's rows in ascending order."""
    return [torch.from_numpy(np.sort(rows)) for rows in parts]


def _shuffled(samples: int, seed: int) -> Rows:
    return stream(seed, "order").permutation(samples)


def _deal(samples: int, sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Give each client its number of the shuffled samples, starting with the first client."""
    if sum(sizes) > samples:
        raise ValueError(
            f"horizontal.partition.samples_per_client: {len(sizes)} clients with {sum(sizes)} samples in all, there "
            f"are {samples}; lower it, horizontal.clients, or raise data.train_samples"
        )
    return ascending(np.split(_shuffled(samples, seed), np.cumsum(sizes))[:-1])
