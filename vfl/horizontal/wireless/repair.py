"""Making a set of devices fit the deadline."""

import numpy as np

from vfl.horizontal.wireless.cell import Cell, Floats, Indices


def drop_neediest(cell: Cell, needs_K: Floats, devices: Indices) -> Indices:
    """Return the devices without those of the largest needs, as many as it takes for the needs to fit the band.

    ``needs_K`` are the bands that meet the deadline exactly.
    """
    by_need = devices[np.argsort(needs_K[devices], kind="stable")]
    return by_need[np.cumsum(needs_K[by_need]) <= cell.bandwidth_hz]
