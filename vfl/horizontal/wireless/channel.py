"""Positions, processor speeds and channel gains of a cell's devices.

Shapes: K devices.
"""

from dataclasses import dataclass

import numpy as np
import torch

from vfl.base.random import generator
from vfl.horizontal.wireless.cell import Cell, Floats, Indices
from vfl.horizontal.wireless.config import WirelessConfig

DEEPEST_FADE = 1e-12
"""Smallest factor of a gain, so that no device has zero gain: one in 10^12 draws would be below it."""


@dataclass(eq=False)
class Network:
    """K devices at fixed places, with processors of fixed speed."""

    settings: WirelessConfig
    devices: int
    """K"""
    batch_size: int
    """Samples per local step."""
    update_bits: float
    """S"""
    seed: int
    """Seed of the experiment."""

    def __post_init__(self) -> None:
        draw, cell = generator(self.seed, "wireless_cell"), self.settings
        self.distance_m_K = _draw_uniform(cell.distance_min_m, cell.distance_max_m, self.devices, draw)
        self.cpu_hz_K = _draw_uniform(cell.cpu_min_hz, cell.cpu_max_hz, self.devices, draw)

    def cell(self, round_index: int, steps_K: Indices) -> Cell:
        """Return a round's problem, given each device's steps."""
        cycles_K = steps_K * self.settings.cycles_per_sample * self.batch_size
        snr_hz_K = snr_hz(self.settings, self.distance_m_K) * self._fading(round_index)
        return Cell(
            steps_K,
            cycles_K / self.cpu_hz_K,
            snr_hz_K,
            self.update_bits,
            self.settings.bandwidth_hz,
            self.settings.deadline_s,
        )

    def _fading(self, round_index: int) -> Floats:
        if self.settings.fading == "none":
            return np.ones(len(self.distance_m_K))
        draw = generator(self.seed, "wireless_fading", round_index)
        # -ln(1 - u) of a uniform u is exponential: the power of a Rayleigh amplitude.
        uniform_K = torch.rand(len(self.distance_m_K), generator=draw, dtype=torch.float64).numpy()
        return np.maximum(-np.log1p(-uniform_K), DEEPEST_FADE)


def snr_hz(settings: WirelessConfig, distance_m_K: Floats) -> Floats:
    """Return p h^2 / N0 [K] in Hz, with a path loss of PL(1 km) + 10 n log10(d / km) dB."""
    loss_db_K = settings.path_loss_1km_db + 10 * settings.path_loss_exponent * np.log10(distance_m_K / 1e3)
    # dBm count from 1e-3 W.
    noise_w_per_hz = 10 ** (settings.noise_dbm_per_mhz / 10) * 1e-3 / 1e6
    return settings.transmit_power_w * 10 ** (-loss_db_K / 10) / noise_w_per_hz


def _draw_uniform(low: float, high: float, count: int, draw: torch.Generator) -> Floats:
    return low + (high - low) * torch.rand(count, generator=draw, dtype=torch.float64).numpy()
