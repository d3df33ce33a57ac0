"""The channel by hand, and the optimal bands against their definition, other splits and extreme ranges."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vfl.horizontal.wireless.bandwidth import (
    allocate,
    excess_of_snr,
    needed_bands,
    quickest,
    snr_of_excess,
    split_evenly,
    transmission_seconds,
)
from vfl.horizontal.wireless.cell import Cell
from vfl.horizontal.wireless.channel import Network, snr_hz
from vfl.horizontal.wireless.config import WirelessConfig

LN2 = np.log(2)


@st.composite
def cells(draw: st.DrawFn, most_devices: int = 12) -> Cell:
    """Cells over ten orders of magnitude of what each device could send, from much too little band to far too much."""
    devices = draw(st.integers(1, most_devices))
    exponents = st.lists(st.floats(-5, 5), min_size=devices, max_size=devices)
    bandwidth_hz = 10.0 ** draw(st.floats(3, 9))
    update_bits = 10.0 ** draw(st.floats(2, 8))
    compute_s_K = 10.0 ** np.clip(np.array(draw(exponents)), -4, 2) * (update_bits / bandwidth_hz)
    steps_K = np.array(draw(st.lists(st.integers(1, 30), min_size=devices, max_size=devices)))
    return Cell(
        steps_K, compute_s_K, bandwidth_hz * 10.0 ** np.array(draw(exponents)), update_bits, bandwidth_hz, deadline_s=1
    )


def rate(bandwidth_hz: np.ndarray, snr_hz: np.ndarray) -> np.ndarray:
    """The paper's eq. 5, as it is written."""
    return bandwidth_hz * np.log1p(snr_hz / bandwidth_hz) / LN2


@given(cells())
def test_bands_fill_the_cell_and_all_devices_finish_together(cell: Cell):
    schedule = allocate(cell, range(len(cell)))
    assert (schedule.bandwidth_hz_M > 0).all()
    assert schedule.bandwidth_hz_M.sum() == pytest.approx(cell.bandwidth_hz, rel=1e-14)  # the sum's own rounding
    finish_M = cell.compute_s_K + cell.update_bits / rate(schedule.bandwidth_hz_M, cell.snr_hz_K)
    np.testing.assert_allclose(finish_M, schedule.seconds, rtol=1e-9)


@given(cells(), st.integers(0, 2**32 - 1))
def test_no_other_split_is_faster(cell: Cell, seed: int):
    best_s = allocate(cell, range(len(cell))).seconds
    rng = np.random.default_rng(seed)
    schedule = allocate(cell, range(len(cell)))
    for spread in (1e-3, 0.1, 1.0, 10.0):  # from nearby to anywhere
        weights = schedule.bandwidth_hz_M * np.exp(spread * rng.standard_normal((50, len(cell))))
        splits = weights * (cell.bandwidth_hz / weights.sum(axis=1, keepdims=True))
        finish = cell.compute_s_K + cell.update_bits / rate(splits, cell.snr_hz_K)
        assert finish.max(axis=1).min() >= best_s * (1 - 1e-9)
    assert split_evenly(cell, range(len(cell))).seconds >= best_s * (1 - 1e-9)


@given(st.floats(-12, 12))
@example(-3.99)  # where Lambert's W alone has lost half of its digits, and
@example(-4.01)  # where the series takes over
def test_snr_and_excess_are_inverse_from_saturation_to_plenty(exponent: float):
    """u = 1e-12 is G = 1 - 1e-12; u = 1e12 is G = 1e-12."""
    excess = 10.0**exponent
    snr = float(snr_of_excess(np.array([excess]))[0])
    assert float(excess_of_snr(np.array([snr]))[0]) == pytest.approx(excess, rel=1e-9)
    share = 1 / (1 + excess)
    assert np.log1p(snr) / snr == pytest.approx(share, rel=1e-9)  # R ln 2 / s, which the band has to carry


@pytest.mark.parametrize("share", [1e-8, 0.01, 0.3, 0.9, 0.999])
def test_the_band_is_theorem_3s(share: float):
    """b = -R ln 2 / (W_{-1}(-G exp(-G)) + G); on the other branch the denominator is 0."""
    from scipy.special import lambertw

    rate_bps, snr_hz = 1e6, 1e6 * LN2 / share
    theorem = -rate_bps * LN2 / (lambertw(-share * np.exp(-share), -1).real + share)
    cell = Cell(np.array([1]), np.array([0.0]), np.array([snr_hz]), 1e6, 1e9, deadline_s=1.0)
    assert needed_bands(cell, 1e6 / rate_bps)[0] == pytest.approx(theorem, rel=1e-6)


@given(cells(), st.floats(-2, 3))
def test_needed_bands_meet_the_time_exactly_or_are_infinite(cell: Cell, exponent: float):
    earliest_K = cell.compute_s_K + cell.least_transmission_s
    seconds = float(np.median(earliest_K)) * (1 + 10.0**exponent)
    needed_K = needed_bands(cell, seconds)
    possible_K = earliest_K < seconds
    assert np.isfinite(needed_K[possible_K]).all()
    assert np.isinf(needed_K[~possible_K]).all()
    chosen = cell.take(np.flatnonzero(possible_K))
    finish = chosen.compute_s_K + cell.update_bits / rate(needed_K[possible_K], chosen.snr_hz_K)
    np.testing.assert_allclose(finish, seconds, rtol=1e-6)


@given(cells(most_devices=8))
def test_one_search_finds_the_candidate_of_the_shortest_round(cell: Cell):
    if len(cell) < 3:
        return
    candidates = np.arange(1, len(cell))
    rounds_s = [allocate(cell, [0, int(candidate)]).seconds for candidate in candidates]
    patient = Cell(
        cell.steps_K, cell.compute_s_K, cell.snr_hz_K, cell.update_bits, cell.bandwidth_hz, 2 * max(rounds_s)
    )
    found = quickest(patient, [0], candidates)
    assert rounds_s[found - 1] == pytest.approx(min(rounds_s), rel=1e-9)


def test_one_device_has_the_whole_band_and_none_no_round():
    cell = Cell(np.array([2]), np.array([0.5]), np.array([1e6]), 1e6, 1e6, deadline_s=1)
    alone = allocate(cell, [0])
    assert alone.bandwidth_hz_M == pytest.approx([1e6])
    assert alone.seconds == pytest.approx(0.5 + 1.0)  # log2(1 + 1) = 1 bit/s/Hz
    assert transmission_seconds(cell, 1e6) == pytest.approx([1.0])
    assert allocate(cell, []).seconds == 0
    assert split_evenly(cell, []).seconds == 0


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
