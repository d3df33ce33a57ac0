"""T-SFL's selection and weights against the formulas, taken literally."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from vfl.horizontal.dms import drop_probabilities, gradient_statistics
from vfl.horizontal.dms_weights import (
    MAX_ITERATIONS,
    TOLERANCE,
    Bounds,
    Kept,
    corollary1_weights,
    limited,
    on_simplex,
    theorem3_weights,
)

STEPS = st.lists(st.integers(1, 12), min_size=1, max_size=12)
WEIGHTS = st.lists(st.floats(0, 1), min_size=1, max_size=12).map(on_simplex)


@given(STEPS, st.floats(0, 1))
def test_corollary_1_by_the_equations_it_stands_for(steps, slope):
    """rho_i - rho_1 = c (tau_i - tau_1) for all i and sum rho = 1: a linear system; then negative ones give way."""
    count = len(steps)
    matrix, right = torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    matrix[0], right[0] = 1.0, 1.0
    for row in range(1, count):
        matrix[row, row], matrix[row, 0] = 1.0, -1.0
        right[row] = slope * (steps[row] - steps[0])
    solution = torch.linalg.solve(matrix, right).clamp(min=0)
    weights = corollary1_weights(steps, slope)
    assert weights == pytest.approx((solution / solution.sum()).tolist(), abs=1e-9)
    assert sum(weights) == pytest.approx(1)
    assert min(weights) >= 0


@given(st.integers(1, 60))
def test_equal_steps_have_equal_weights_in_bits(count):
    assert corollary1_weights([3] * count, 0.7) == [1 / count] * count
    assert corollary1_weights(list(range(1, count + 1)), 0.0) == [1 / count] * count


@example([5e-324, 0.0])
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_what_is_scaled_sums_to_1(weights):
    scaled = on_simplex(weights)
    assert sum(scaled) == pytest.approx(1)
    assert min(scaled) >= 0


@given(WEIGHTS, st.floats(0.01, 1))
def test_the_limit_holds_and_keeps_the_sum_and_the_order(weights, limit):
    bounded = limited(weights, limit)
    assert sum(bounded) == pytest.approx(1)
    if limit * len(weights) <= 1:
        assert bounded == [1 / len(weights)] * len(weights)
        return
    assert max(bounded) <= limit + 1e-12
    pairs = list(zip(weights, bounded, strict=True))
    free = [pair for pair in pairs if pair[1] < limit - 1e-9]
    assert len({round(new - old, 9) for old, new in free}) <= 1  # all below the limit got the same share
    assert [new for _, new in sorted(pairs)] == pytest.approx(sorted(bounded))


def test_weights_below_the_limit_keep_their_bits():
    weights = corollary1_weights([1, 2, 3], 0.05)
    assert limited(weights, max(weights)) == weights


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0.01, 10), st.floats(0, 5)), min_size=1, max_size=8),
    st.floats(0.001, 0.1),
    st.floats(0.1, 5),
    st.floats(0, 50),
    st.floats(0.001, 10),
    st.floats(1, 5),
)
def test_theorem_3_is_a_fixed_point_of_equations_10_and_11(clients, eta, lipschitz, squared, distance, theta):
    kept = [Kept(*client) for client in clients]
    most = max(client.steps for client in kept)
    bounds = Bounds(eta, lipschitz, squared, len(kept), most)
    weights, iterations, change = theorem3_weights(kept, distance, bounds, theta)
    assert sum(weights) == pytest.approx(1)
    assert 1 <= iterations <= MAX_ITERATIONS
    assert (change <= TOLERANCE) or iterations == MAX_ITERATIONS
    a = eta * (2 * lipschitz * (eta * lipschitz * (1 + theta) - 1) + eta)
    b = 2 * eta * lipschitz * (1 - eta * lipschitz * (1 + theta))
    c = eta**3 * lipschitz * (most - 1) * squared
    rho, n = weights, len(kept)
    f = 1 + b * sum(r * k.steps for r, k in zip(rho, kept, strict=True))
    raw = []
    for own in kept:
        e = (
            distance
            + eta**2 * n * own.variance * sum(r**2 * k.steps for r, k in zip(rho, kept, strict=True))
            + a * own.distance * sum(r * k.steps for r, k in zip(rho, kept, strict=True))
            + c * sum(r * k.steps**2 for r, k in zip(rho, kept, strict=True))
        )
        raw.append((b * e + f * (a * own.distance + c * own.steps)) / (f * 2 * eta**2 * n * own.variance))
    positive = [max(0.0, value) for value in raw]
    if iterations < MAX_ITERATIONS and sum(positive) > 0:
        assert rho == pytest.approx([value / sum(positive) for value in positive], abs=1e-6)


@given(STEPS, st.floats(0.1, 10), st.floats(0, 10), st.floats(0.1, 5))
def test_theorem_3_of_like_clients_has_corollary_1s_differences(steps, variance, distance, squared):
    """With sigma_i and Gamma_i equal, eq. 10 differs between clients by eq. 6, up to the common scale."""
    bounds = Bounds(0.01, 1.0, squared, len(steps), max(steps))
    kept = [Kept(each, variance, 0.0) for each in steps]
    weights, _, _ = theorem3_weights(kept, distance, bounds, theta=1.0)
    slope = bounds.slope(variance)
    order = sorted(range(len(steps)), key=lambda client: steps[client])
    assert [weights[client] for client in order] == pytest.approx(sorted(weights))
    low, high = order[0], order[-1]
    if slope and weights[high] > weights[low] > 0:
        scale = (weights[high] - weights[low]) / (slope * (steps[high] - steps[low]))
        for client in order:
            assert weights[client] - weights[low] == pytest.approx(
                scale * slope * (steps[client] - steps[low]), abs=1e-9
            )


def test_the_slope_by_hand():
    bounds = Bounds(learning_rate=0.003, lipschitz=2.0, squared_gradient=5.0, clients=20, most_steps=4)
    assert bounds.slope(0.25) == pytest.approx(0.003 * 2.0 * 3 * 5.0 / (2 * 20 * 0.25))
    assert bounds.slope(0.0) == 0.0
    assert Bounds(0.003, 2.0, 5.0, 20, most_steps=1).slope(0.25) == 0.0


@given(STEPS)
def test_slow_devices_are_dropped_by_how_slow_they_are(steps):
    threshold, most = sum(steps) / len(steps), max(steps)
    for own, probability in zip(steps, drop_probabilities(steps), strict=True):
        assert 0 <= probability < 1
        assert probability == (0 if own >= threshold else pytest.approx((threshold - own) / most))
    assert drop_probabilities(steps)[steps.index(most)] == 0


DROPPING_ROUND = 2
"""A round in which the trainer of these tests drops a device."""
INTERVAL = {"work": {"kind": "interval"}, "devices": {"speed": {"kind": "case2"}}}


@pytest.fixture
def trainer(trainer):
    return lambda **dms: trainer(algorithm="dms", clients_per_round=6, dms=dms, **INTERVAL)


def test_devices_are_dropped_as_often_as_they_should_and_the_fastest_never(trainer):
    server = trainer()
    rounds, kept = 400, torch.zeros(6)
    steps = server.devices.plan(0).steps_N.tolist()
    for round_index in range(rounds):
        plan = server.devices.plan(round_index)
        selection = server.algorithm.select(server.state, round_index, plan)
        kept[list(selection.clients)] += 1
        assert selection.metrics["dms/dropped"] == 6 - len(selection.clients)
    assert steps == [1, 1, 2, 3, 3, 4]
    expected = [1 - probability for probability in drop_probabilities(steps)]
    assert kept[-1] == rounds
    for share, probability in zip((kept / rounds).tolist(), expected, strict=True):
        spread = math.sqrt(probability * (1 - probability) / rounds)
        assert abs(share - probability) <= 4 * spread


def test_a_dropped_device_computes_nothing_and_sends_nothing(trainer):
    server = trainer(slope=0.1)
    dropped = 0
    for round_index in range(5):
        before = {client: costs.train_macs for client, costs in server.fleet.costs.items()}
        metrics = server.train_round(round_index)
        after = {client: costs.train_macs for client, costs in server.fleet.costs.items()}
        worked = [client for client in after if after[client] > before.get(client, 0)]
        assert len(worked) == metrics["clients/selected"] == 6 - metrics["dms/dropped"]
        dropped += metrics["dms/dropped"]
    assert dropped > 0


def test_heterogeneity_is_reported(trainer):
    metrics = trainer(slope=0.1).train_round(0)
    steps = [1, 1, 2, 3, 3, 4]
    mean = sum(steps) / 6
    assert metrics["dms/threshold"] == pytest.approx(mean)
    assert metrics["dms/tau_variance"] == pytest.approx(sum((each - mean) ** 2 for each in steps) / 6)
    assert metrics["dms/slope"] == 0.1


def test_a_round_moves_the_weights_by_the_estimated_slope(trainer, recorded):
    """G and sigma from the norms of the steps' gradients, as the docstring says, put into Corollary 1."""
    server = trainer(lipschitz=3.0)
    calls = recorded(server.algorithm, "aggregate")
    start_P = server.state["weights"]
    metrics = server.train_round(DROPPING_ROUND)
    (((_, reports), _),) = calls
    assert len(reports) < 6  # N stays 6
    squared, total, freedom = 0.0, 0.0, 0
    for report in reports:
        norms = report.result.squared_norms_S.double()
        mean_P = report.upload["delta"].double() / (-0.1 * len(norms))
        squared = max(squared, float(norms.mean()))
        total += float(norms.sum() - len(norms) * mean_P.square().sum()) if len(norms) > 1 else 0.0
        freedom += len(norms) - 1
    steps = [report.result.steps for report in reports]
    slope = 0.1 * 3.0 * (max(steps) - 1) * squared / (2 * 6 * total / freedom)
    assert metrics["dms/slope"] == pytest.approx(slope, rel=1e-4)
    assert metrics["dms/gradient_variance"] == pytest.approx(total / freedom, rel=1e-4)
    weights = corollary1_weights(steps, slope)
    expected_P = start_P + sum(weight * report.upload["delta"] for weight, report in zip(weights, reports, strict=True))
    torch.testing.assert_close(server.state["weights"], expected_P, rtol=1e-4, atol=1e-6)


def test_given_bounds_are_taken_and_nothing_is_measured_or_sent_for_them(trainer, recorded):
    server = trainer(gradient_bound=2.0, gradient_std=0.5, lipschitz=3.0)
    calls = recorded(server.algorithm, "aggregate")
    metrics = server.train_round(0)
    (((_, reports), _),) = calls
    assert metrics["dms/slope"] == pytest.approx(0.1 * 3.0 * 3 * 2.0**2 / (2 * 6 * 0.5**2))
    assert all(report.result.squared_norms_S is None for report in reports)
    assert all(set(report.upload) == {"delta"} for report in reports)


def test_theorem_3_takes_the_ends_of_local_training_for_the_optima(trainer, recorded):
    server = trainer(weights="theorem3", gradient_bound=2.0, gradient_std=0.5, theta=1.2)
    calls = recorded(server.algorithm, "aggregate")
    start_P = server.state["weights"]
    metrics = server.train_round(DROPPING_ROUND)
    (((_, reports), _),) = calls
    assert len(reports) < 6
    deltas = [report.upload["delta"] for report in reports]
    mean_P = torch.stack(deltas).mean(dim=0)
    kept = [
        Kept(report.result.steps, 0.25, float((mean_P - delta_P).square().sum()))
        for report, delta_P in zip(reports, deltas, strict=True)
    ]
    bounds = Bounds(0.1, 1.0, 4.0, 6, max(client.steps for client in kept))
    weights, iterations, _ = theorem3_weights(kept, float(mean_P.square().sum()), bounds, 1.2)
    weights = limited(weights, 1.2 / 6)
    assert metrics["dms/iterations"] == iterations > 1
    assert metrics["dms/largest_weight"] == pytest.approx(max(weights), rel=1e-4)
    expected_P = start_P + sum(weight * delta_P for weight, delta_P in zip(weights, deltas, strict=True))
    torch.testing.assert_close(server.state["weights"], expected_P, rtol=1e-4, atol=1e-6)


def test_a_limit_of_one_share_makes_all_weights_equal(trainer):
    metrics = trainer(slope=0.2, theta=1.0).train_round(0)
    assert metrics["dms/largest_weight"] == pytest.approx(1 / metrics["clients/reporting"])


def test_gradient_statistics_of_steps_by_hand(report):
    gradients = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 4.0]])
    norms_S = gradients.square().sum(dim=1)
    result = report(0, -0.1 * gradients.sum(dim=0), steps=3, squared_norms_S=norms_S).result
    mean = gradients.mean(dim=0)
    expected = [float(norms_S.mean()), float((gradients - mean).square().sum() / 2)]
    assert gradient_statistics(result).tolist() == pytest.approx(expected, rel=1e-5)
    single = report(0, -0.1 * gradients[0], steps=1, squared_norms_S=norms_S[:1]).result
    assert gradient_statistics(single).tolist() == pytest.approx([5.0, 0.0])
