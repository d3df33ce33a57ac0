"""Partitions by label: clients with few classes, or with classes in unequal shares.

Shapes: N samples, K classes, M clients.
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vfl.horizontal.data.unlabelled import Rows, ascending, check_enough, stream

DIRICHLET_TRIES = 100
"""Draws of `dirichlet` before it gives up on the smallest client."""


def classes(
    labels_N: Tensor, clients: int, classes_per_client: int, seed: int, samples_per_client: int | None = None
) -> list[Tensor]:
    """Return each client's rows (int64, ascending, none twice), of exactly P = `classes_per_client` classes.

    Classes are dealt at random, each to as many clients as any other (give or take one); the clients that hold a
    class share it evenly. FedLGA's non-overlapping partition (section V-A); how it pairs classes is not said there.

    samples_per_client: each client's number, the same from each of its classes (give or take one); some samples are
    then left over, and a client's rows do not depend on the number of clients. None deals all samples of the
    classes held.
    Raises ValueError for P outside 1 .. number of classes, or a class with too few samples for its clients. Warns
    when there are too few clients to hold all classes.
    """
    labels = labels_N.numpy()
    present = np.unique(labels)
    if not 1 <= classes_per_client <= len(present):
        raise ValueError(
            f"horizontal.partition.classes_per_client: must be from 1 to {len(present)}, the number of classes in the "
            f"training samples, got {classes_per_client}"
        )
    if samples_per_client is not None and samples_per_client < classes_per_client:
        raise ValueError(
            f"horizontal.partition.samples_per_client: {samples_per_client} cannot be of {classes_per_client} classes; "
            "raise it or lower horizontal.partition.classes_per_client"
        )
    classes_by_client = _deal_classes(len(present), clients, classes_per_client, seed)
    dealt = np.unique(classes_by_client)
    unused = len(present) - len(dealt)
    if unused:
        warnings.warn(
            f"horizontal.partition.classes_per_client: {clients} clients with {classes_per_client} classes each leave "
            f"{unused} of {len(present)} classes without a client; their training samples are not used",
            stacklevel=2,
        )
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for index in dealt:
        label = int(present[index])
        # Clients, and the position of this class among each client's own.
        holders, positions = np.nonzero(classes_by_client == index)
        rows = _shuffled_class(labels, label, seed)
        quotas = np.zeros(len(holders), dtype=np.int64)
        if samples_per_client is not None:
            quota, more = divmod(samples_per_client, classes_per_client)
            quotas = quota + (positions < more)  # a client's first classes have what does not divide
        needed_rows = len(holders) if samples_per_client is None else int(quotas.sum())
        if needed_rows > len(rows):
            field = "horizontal.clients" if samples_per_client is None else "horizontal.partition.samples_per_client"
            raise ValueError(
                f"{field}: class {label} has {len(rows)} training samples, its {len(holders)} clients need "
                f"{needed_rows}; lower it or raise data.train_samples"
            )
        shares = np.array_split(rows, len(holders)) if samples_per_client is None else _cut_rows(rows, quotas)
        for client, share in zip(holders.tolist(), shares, strict=True):
            parts[client].append(share)
    return ascending([np.concatenate(shares) for shares in parts])


def _deal_classes(count: int, clients: int, per_client: int, seed: int) -> NDArray[np.int64]:
    """Return the indices of each client's classes [clients, per_client]: always those dealt least so far."""
    rng = stream(seed, "classes")
    dealt = np.zeros(count, dtype=np.int64)
    classes_by_client = np.empty((clients, per_client), dtype=np.int64)
    for client in range(clients):
        order = rng.permutation(count)  # so that ties fall at random
        classes_by_client[client] = order[np.argsort(dealt[order], kind="stable")][:per_client]
        dealt[classes_by_client[client]] += 1
    return classes_by_client


def _shuffled_class(labels: NDArray[np.int64], label: int, seed: int) -> Rows:
    return stream(seed, f"class {label}").permutation(np.flatnonzero(labels == label))


def _cut_rows(rows: Rows, sizes: NDArray[np.int64]) -> Sequence[Rows]:
    """Return pieces of the given sizes from the first row on; the rest is not used."""
    return np.split(rows, sizes.cumsum())[:-1]


def shards(labels_N: Tensor, clients: int, shards_per_client: int, seed: int) -> list[Tensor]:
    """Return each client's rows (int64, ascending, none twice): `shards_per_client` random pieces of the sorted data.

    All samples are sorted by label and cut into clients * shards_per_client shards whose sizes differ by at most one.
    McMahan et al. 2017 (arXiv 1602.05629), section 3: 200 shards of 300 MNIST images, 2 each.
    Raises ValueError when there are more shards than samples.
    """
    count = clients * shards_per_client
    if count > len(labels_N):
        raise ValueError(
            f"horizontal.partition.shards_per_client: {clients} clients with {shards_per_client} shards each need "
            f"{count} training samples, there are {len(labels_N)}; lower it or horizontal.clients"
        )
    rng = stream(seed, "shards")
    # Shuffled before it is sorted, by a sort that keeps the order of equals: within a class the order is random.
    shuffled = rng.permutation(len(labels_N))
    pieces = np.array_split(shuffled[np.argsort(labels_N.numpy()[shuffled], kind="stable")], count)
    dealt = rng.permutation(count).reshape(clients, shards_per_client)
    return ascending([np.concatenate([pieces[shard] for shard in mine]) for mine in dealt.tolist()])


def dirichlet(labels_N: Tensor, clients: int, alpha: float, seed: int, min_samples: int = 1) -> list[Tensor]:
    """Return each client's rows (int64, ascending, none twice), with every class divided in Dirichlet proportions.

    The draw is over *clients, per class*: p ~ Dir(alpha, ..., alpha) of length `clients` for each class, so that sizes
    are unequal too (Li et al. 2022, arXiv 2102.02079, section 3; not the equal sizes of Hsu et al. 2019, who draw over
    classes per client). All samples are dealt. Small alpha: few clients hold most of a class.

    The whole draw is repeated until every client has `min_samples`, at most `DIRICHLET_TRIES` times. Raises ValueError
    if that is not reached, or cannot be.
    """
    if not 0 < alpha < math.inf:
        raise ValueError(f"horizontal.partition.dirichlet_alpha: must be above 0 and finite, got {alpha}")
    check_enough(clients, len(labels_N))
    if clients * min_samples > len(labels_N):
        raise ValueError(
            f"horizontal.partition.min_samples: {clients} clients with at least {min_samples} samples need "
            f"{clients * min_samples}, there are {len(labels_N)}; lower it or horizontal.clients"
        )
    labels = labels_N.numpy()
    present, totals_K = np.unique(labels, return_counts=True)
    rng = stream(seed, "dirichlet")
    smallest = 0
    for _ in range(DIRICHLET_TRIES):
        sizes_KM = _apportion(rng.dirichlet(np.full(clients, alpha), size=len(present)), totals_K)
        smallest = max(smallest, int(sizes_KM.sum(axis=0).min()))
        if smallest >= min_samples:
            break
    else:
        raise ValueError(
            f"horizontal.partition.min_samples: in {DIRICHLET_TRIES} draws the smallest of {clients} clients had at "
            f"most {smallest} samples, not {min_samples}; raise horizontal.partition.dirichlet_alpha, or lower "
            "min_samples or horizontal.clients"
        )
    shares = [
        _cut_rows(_shuffled_class(labels, label, seed), sizes_M)
        for label, sizes_M in zip(present.tolist(), sizes_KM, strict=True)
    ]
    return ascending([np.concatenate(rows) for rows in zip(*shares, strict=True)])


def _apportion(proportions_KM: NDArray[np.float64], totals_K: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return whole sizes [K, M] that sum to each class's total, within one of their proportions."""
    # Ends of the pieces are rounded, not sizes: so the sizes sum to the total. Proportions sum to one only up to
    # rounding, so that ends may be above the total, and the last one below it.
    ends = np.floor(proportions_KM.cumsum(axis=1) * totals_K[:, None]).astype(np.int64)
    ends = np.minimum(ends, totals_K[:, None])
    ends[:, -1] = totals_K
    return np.diff(ends, axis=1, prepend=0)
