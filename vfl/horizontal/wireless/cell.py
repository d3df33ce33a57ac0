"""One round's problem as the base station sees it, and an answer to it.

Xiao et al., "FLARE: A New Federated Learning Framework with Adjustable Learning Rates over Resource-Constrained
Wireless Networks", section II-B: a device computes, then sends its update over a band b of its own at the rate

    u = b log2(1 + snr / b)   bit/s,   snr = p h^2 / N0   (in Hz: the band over which signal and noise are equal)

Shapes: K devices, M of them selected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cell:
    """Possible work of K devices in a round, and their shared limits; steps are above 0 except for devices never
    selected."""

    steps_K: Indices
    """tau_i: local SGD steps."""
    compute_s_K: Floats
    """Seconds that these steps take."""
    snr_hz_K: Floats
    """p h^2 / N0"""
    update_bits: float
    """S"""
    bandwidth_hz: float
    """B, shared by the selected devices."""
    deadline_s: float
    """t_thr: longest round."""

    def __len__(self) -> int:
        return len(self.steps_K)

    @property
    def least_transmission_s(self) -> Floats:
        """Return the seconds for the update in the limit of an unlimited band: S ln 2 / snr."""
        return self.update_bits * np.log(2) / self.snr_hz_K

    def take(self, devices: Sequence[int] | Indices) -> "Cell":
        """Return the same cell with only some of its devices, in the order given."""
        rows = np.asarray(devices, dtype=np.int64)
        return replace(
            self, steps_K=self.steps_K[rows], compute_s_K=self.compute_s_K[rows], snr_hz_K=self.snr_hz_K[rows]
        )


@dataclass(frozen=True, eq=False)
class Schedule:
    """Selected devices, ascending, with their bands and times."""

    devices_M: Indices
    bandwidth_hz_M: Floats
    compute_s_M: Floats
    transmission_s_M: Floats

    @property
    def seconds(self) -> float:
        """Length of the round: the slowest device's time, 0 without devices."""
        return float((self.compute_s_M + self.transmission_s_M).max(initial=0.0))


def objective(steps_M: Indices, gamma: float) -> float:
    """Return (1/M + gamma/M^2) sum of 1/tau_i, which scheduling minimises (eq. 19a); infinite without devices."""
    count = len(steps_M)
    return (1 / count + gamma / count**2) * float((1 / steps_M).sum()) if count else np.inf
