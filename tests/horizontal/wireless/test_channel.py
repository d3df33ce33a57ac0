"""The channel and device model, against numbers computed by hand."""

import numpy as np
import pytest

from vfl.horizontal.wireless.bandwidth import transmission_seconds
from vfl.horizontal.wireless.channel import Network, snr_hz
from vfl.horizontal.wireless.config import WirelessConfig


def test_the_papers_link_budget():
    """At 500 m: 20 dBm - (128.1 + 37.6 log10 0.5) dB over -114 dBm per MHz is 17.2 dB over 1 MHz."""
    snr_db = 20 - (128.1 + 37.6 * np.log10(0.5)) + 114
    assert snr_hz(WirelessConfig(), np.array([500.0]))[0] == pytest.approx(1e6 * 10 ** (snr_db / 10))
    assert snr_db == pytest.approx(17.2, abs=0.05)


def test_ten_times_the_distance_costs_the_exponents_decades():
    near, far = snr_hz(WirelessConfig(path_loss_exponent=3.76), np.array([50.0, 500.0]))
    assert near / far == pytest.approx(10**3.76)


def test_seconds_are_the_papers_formulas():
    settings = WirelessConfig(policy="greedy")
    network = Network(settings, devices=5, batch_size=40, update_bits=1e7, seed=1)
    steps_K = np.array([1, 2, 3, 4, 5])
    cell = network.cell(0, steps_K)
    cycles_per_bit, bits_per_sample = 110, 28 * 28 * 8
    np.testing.assert_allclose(cell.compute_s_K, steps_K * cycles_per_bit * bits_per_sample * 40 / network.cpu_hz_K)
    band_hz = 2e6
    rate_bps = band_hz * np.log2(1 + cell.snr_hz_K / band_hz)
    np.testing.assert_allclose(transmission_seconds(cell, band_hz), 1e7 / rate_bps)


def test_places_and_processors_are_uniform_fixed_and_the_seeds_own():
    settings = WirelessConfig()
    network = Network(settings, 4000, 40, 1e7, seed=1)
    for values, low, high in ((network.distance_m_K, 100, 500), (network.cpu_hz_K, 2e9, 4e9)):
        assert low <= values.min() <= low * 1.01
        assert high * 0.99 <= values.max() <= high
        assert values.mean() == pytest.approx((low + high) / 2, rel=0.03)
    again = Network(settings, 4000, 40, 1e7, seed=1)
    np.testing.assert_array_equal(network.distance_m_K, again.distance_m_K)
    assert not np.array_equal(network.distance_m_K, Network(settings, 4000, 40, 1e7, seed=2).distance_m_K)


def test_without_fading_channels_stay_and_with_it_they_vary_around_the_same_mean():
    steps_K = np.ones(4000, dtype=np.int64)
    still = Network(WirelessConfig(), 4000, 40, 1e7, seed=1)
    np.testing.assert_array_equal(still.cell(0, steps_K).snr_hz_K, still.cell(1, steps_K).snr_hz_K)
    fading = Network(WirelessConfig(fading="rayleigh"), 4000, 40, 1e7, seed=1)
    gains = fading.cell(0, steps_K).snr_hz_K / still.cell(0, steps_K).snr_hz_K
    assert gains.mean() == pytest.approx(1, rel=0.1)
    assert gains.std() == pytest.approx(1, rel=0.15)  # exponential: deviation = mean
    assert (gains > 0).all()
    assert not np.array_equal(gains, fading.cell(1, steps_K).snr_hz_K / still.cell(0, steps_K).snr_hz_K)
