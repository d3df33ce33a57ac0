"""The partition the data came with: a client per user or speaking role."""

import numpy as np
from torch import Tensor

from vfl.data.horizontal.even import ascending, stream
from vfl.data.samples import Owners


def natural(
    owners: Owners, clients: int, seed: int, min_samples: int | None = None
) -> tuple[tuple[str, ...], list[Tensor]]:
    """Return the names of the owners that become clients, and the rows (int64, ascending) of each.

    min_samples: owners with fewer samples are left out; None leaves nobody out. clients: how many owners to draw by
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
    chosen: list[int] = np.sort(stream(seed, "owners").permutation(eligible)[:clients]).tolist()
    by_owner = np.split(np.argsort(of_row, kind="stable"), sizes.cumsum())
    return tuple(owners.names[index] for index in chosen), ascending([by_owner[index] for index in chosen])
