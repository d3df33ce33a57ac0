"""What devices can do, and which are chosen; every draw is by its key alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vfl.horizontal.algorithm import inclusion_chances, sample_by_groups
from vfl.horizontal.devices import Devices
from vfl.horizontal.local import local_batches, steps_per_epoch

MANY = 4000


@pytest.fixture
def devices(configure):
    def make(samples=(6, 8, 3, 10, 4, 7), seed=3, batch_size=4, transfer_bytes=(0, 0), extra=None, **horizontal):
        settings = {"clients": len(samples), "clients_per_round": 1} | horizontal
        config = configure(horizontal=settings).horizontal
        return Devices(config, samples, batch_size, seed, transfer_bytes, **extra or {})

    return make


@pytest.fixture
def speeds(devices):
    def draw(clients, round_index=0, **speed):
        return devices(samples=[4] * clients, devices={"speed": speed}).speeds(round_index)

    return draw


def test_draws_and_links_can_be_of_different_rounds(devices):
    """FedAsync counts its starts for the draws, while links change by round."""
    links = {"uplink_bytes_per_s": {0: 1000.0, 4: 10.0}, "speed": {"kind": "exponential", "redrawn": True}}
    made = devices(transfer_bytes=(0, 1000), devices=links)
    one, late = made.plan(7, link_round=0), made.plan(7)
    assert torch.equal(one.steps_N, late.steps_N)
    torch.testing.assert_close(late.seconds_N - one.seconds_N, torch.full((6,), 99.0, dtype=torch.float64))


def test_case_3_draws_whole_normals_per_quarter_anew_every_round(speeds):
    drawn = speeds(MANY, kind="case3")
    assert not torch.equal(drawn, speeds(MANY, round_index=1, kind="case3"))
    assert torch.equal(drawn, drawn.floor())
    assert drawn.min() >= 1
    for quarter, (mean, std) in zip(drawn.split(MANY // 4), ((2, 0.4), (3, 0.6), (4, 0.8), (5, 1.0)), strict=True):
        # The floor of a normal is about half below its mean.
        assert float(quarter.mean()) == pytest.approx(mean - 0.5, abs=0.1)
        assert float(quarter.var()) == pytest.approx(std**2 + 1 / 12, abs=0.15)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("fixed", [2.5] * 20),
        ("case1", [1.0] * 10 + [4.0] * 10),
        ("case2", [1.0] * 5 + [2.0] * 5 + [3.0] * 5 + [4.0] * 5),
    ],
)
def test_speeds_that_are_not_drawn_are_the_papers(speeds, kind, expected):
    assert speeds(20, kind=kind, mean=2.5).tolist() == expected


@pytest.mark.parametrize(
    ("kind", "mean", "rounded", "reached"),
    [
        ("gaussian", 6.0, torch.floor, 5.5),
        # P(ceil(X) > k) = exp(-k / mean): the mean of the ceiling is 1 / (1 - exp(-1 / mean)).
        ("exponential", 4.0, torch.ceil, 1 / (1 - math.exp(-1 / 4.0))),
        ("uniform", 3.0, torch.clone, 3.0),
    ],
)
def test_drawn_speeds_have_their_mean_and_are_at_least_1(speeds, kind, mean, rounded, reached):
    drawn = speeds(MANY, kind=kind, mean=mean, std=2.0)
    assert torch.equal(drawn, rounded(drawn))
    assert 1.0 <= drawn.min() < 1.1
    assert float(drawn.mean()) == pytest.approx(reached, abs=0.25)
    if kind == "uniform":
        assert 4.9 < drawn.max() <= 5.0


@pytest.mark.parametrize("kind", ["uniform", "exponential", "gaussian"])
def test_speeds_are_kept_or_redrawn_as_set(speeds, kind):
    kept = [speeds(50, round_index, kind=kind, mean=5.0, std=2.0) for round_index in (0, 7)]
    redrawn = [speeds(50, round_index, kind=kind, mean=5.0, std=2.0, redrawn=True) for round_index in (0, 7)]
    assert torch.equal(*kept)
    assert not torch.equal(*redrawn)


def test_fixed_work_is_epochs_or_steps(devices):
    by_epochs = devices(local_epochs=2).plan(0)
    assert by_epochs.steps_N.tolist() == [4, 4, 2, 6, 2, 4]
    assert by_epochs.epochs_N.tolist() == [2.0] * 6
    by_steps = devices(local_steps=3).plan(0)
    assert by_steps.steps_N.tolist() == [3] * 6
    assert by_steps.epochs_N.tolist() == [1.5, 1.5, 3.0, 1.0, 3.0, 1.5]
    assert all(plan.work(client).complete for plan in (by_epochs, by_steps) for client in range(6))


def test_an_interval_holds_the_steps_that_decimal_arithmetic_says(devices):
    speeds = {"speed": {"kind": "groups", "groups": [0.29, 0.57, 1.1]}}
    plan = devices(work={"kind": "interval", "interval_s": 100.0}, devices=speeds).plan(0)
    assert plan.steps_N.tolist() == [29, 29, 57, 57, 110, 110]


def test_an_interval_holds_the_steps_that_fit_and_leaves_out_who_fits_none(devices):
    slow = devices(work={"kind": "interval", "interval_s": 0.6}, devices={"speed": {"kind": "case2"}}).plan(0)
    assert slow.steps_N.tolist() == [0, 0, 1, 1, 1, 2]
    assert slow.candidates(1).tolist() == [2, 3, 4, 5]
    assert slow.seconds_N.tolist() == pytest.approx([0.6] * 6)


def test_partial_work_leaves_out_0_to_tau_max_less_1_epochs_for_a_share_of_the_clients(devices):
    """tau_i = E - E_i + 1 is uniform in [1, tau_max]: 3 of its 4 values are those of an incomplete client."""
    work = {"kind": "partial", "incomplete_share": 0.4, "max_missing_epochs": 3}
    many = devices(samples=[8] * MANY, local_epochs=5, work=work).plan(0)
    epochs = many.epochs_N
    assert float((epochs < 5).double().mean()) == pytest.approx(0.4 * 3 / 4, abs=0.03)
    counts = torch.bincount(epochs[epochs < 5].long(), minlength=5)
    assert counts[:2].tolist() == [0, 0]
    assert counts[2:].double().std() < 0.15 * counts[2:].double().mean()
    assert [many.work(client).complete for client in range(50)] == (epochs[:50] == 5).tolist()


def test_partial_works_tau_max_is_local_epochs_less_one_where_no_limit_is_set(devices):
    plan = devices(samples=[8] * 500, local_epochs=5, work={"kind": "partial", "incomplete_share": 1.0}).plan(0)
    assert sorted(set(plan.epochs_N.tolist())) == [2.0, 3.0, 4.0, 5.0]


def test_availability_and_dropout_have_their_chances_and_are_independent(devices):
    plan = devices(samples=[4] * MANY, devices={"availability": 0.7, "dropout": 0.2}).plan(0)
    available, lost = plan.available_N.double(), plan.drops_out_N.double()
    assert float(available.mean()) == pytest.approx(0.7, abs=0.03)
    assert float(lost.mean()) == pytest.approx(0.2, abs=0.03)
    assert float((available * lost).mean()) == pytest.approx(0.14, abs=0.03)


def test_clients_with_too_few_steps_are_no_candidates(devices):
    plan = devices(local_epochs=1, selection={"min_steps": 2}).plan(0)
    assert plan.candidates(2).tolist() == [0, 1, 3, 5]


def test_seconds_are_steps_by_speed_plus_transfers(devices):
    plan = devices(
        local_epochs=2,
        transfer_bytes=(1000, 500),
        devices={"speed": {"mean": 4.0}, "latency_s": 0.25, "downlink_bytes_per_s": 2000, "uplink_bytes_per_s": 1000},
    ).plan(0)
    assert plan.seconds_N.tolist() == pytest.approx([steps / 4 + 0.25 + 0.5 + 0.5 for steps in (4, 4, 2, 6, 2, 4)])


def test_a_full_batch_step_takes_as_long_as_a_pass(devices):
    plan = devices(extra={"full_batch": True}, local_epochs=5, devices={"speed": {"mean": 2.0}}).plan(0)
    assert plan.steps_N.tolist() == [1] * 6
    assert plan.epochs_N.tolist() == [1.0] * 6
    assert plan.seconds_N.tolist() == [passes / 2 for passes in (2, 2, 1, 3, 1, 2)]


def test_a_pass_beside_the_steps_takes_its_time(devices):
    asked = {"devices": {"speed": {"mean": 2.0}}, "extra": {"extra_passes": 1}}
    assert devices(**asked, local_steps=4).plan(0).seconds_N.tolist() == [
        (4 + passes) / 2 for passes in (2, 2, 1, 3, 1, 2)
    ]
    interval = devices(**asked, work={"kind": "interval", "interval_s": 2.0}).plan(0)
    assert interval.steps_N.tolist() == [4 - passes for passes in (2, 2, 1, 3, 1, 2)]
    assert interval.seconds_N.tolist() == [2.0] * 6


RANDOM = {
    "devices": {"speed": {"kind": "case3"}, "availability": 0.5, "dropout": 0.5},
    "work": {"kind": "interval"},
}


def same_plan(one, other):
    fields = ("available_N", "drops_out_N", "steps_N", "epochs_N", "asked_epochs_N", "seconds_N")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in fields)


def test_plans_do_not_depend_on_the_order_in_which_they_are_asked_for(devices):
    forward, backward = devices(**RANDOM), devices(**RANDOM)
    first = [forward.plan(round_index) for round_index in range(5)]
    torch.rand(10)
    second = [backward.plan(round_index) for round_index in reversed(range(5))][::-1]
    assert all(same_plan(one, other) for one, other in zip(first, second, strict=True))
    assert not same_plan(first[0], first[1])
    assert not same_plan(first[0], devices(seed=4, **RANDOM).plan(0))


@given(rows=st.integers(1, 40), batch_size=st.integers(1, 12), steps=st.integers(1, 30), client=st.integers(0, 5))
def test_batches_are_whole_passes_in_a_random_order(rows, batch_size, steps, client):
    rows_N = torch.arange(100, 100 + rows)
    batches = local_batches(rows_N, batch_size, steps, seed=1, round_index=2, client=client)
    assert len(batches) == steps
    per_pass = steps_per_epoch(rows, batch_size)
    for start in range(0, steps - per_pass + 1, per_pass):
        whole = torch.cat(batches[start : start + per_pass])
        assert torch.equal(whole.sort().values, rows_N)
    assert all(len(batch) == batch_size for number, batch in enumerate(batches) if (number + 1) % per_pass)
    again = local_batches(rows_N, batch_size, steps, seed=1, round_index=2, client=client)
    assert all(torch.equal(one, other) for one, other in zip(batches, again, strict=True))


def test_batches_differ_by_round_client_and_seed():
    def order(seed=1, round_index=2, client=3):
        batches = local_batches(torch.arange(50), 10, 5, seed=seed, round_index=round_index, client=client)
        return torch.cat(batches).tolist()

    assert order() == order()
    assert len({tuple(order()), tuple(order(seed=2)), tuple(order(round_index=3)), tuple(order(client=4))}) == 4


PAPER = (0.05, 0.15, 0.2, 0.6)


@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=6),
    st.integers(6, 40),
    st.integers(1, 40),
    st.integers(0, 2**31),
)
def test_as_many_different_candidates_as_asked(weights: list[float], clients: int, count: int, seed: int):
    draw = torch.Generator().manual_seed(seed)
    candidates = torch.randperm(clients, generator=draw)[: clients - 3].sort().values
    chosen = sample_by_groups(candidates, weights, clients, count, draw)
    assert len(chosen) == min(count, clients - 3)
    assert sorted(set(chosen)) == chosen
    assert set(chosen) <= set(candidates.tolist())


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=30), st.data())
def test_chances_sum_to_the_number_and_are_in_proportion_below_one(weights: list[float], data: st.DataObject):
    count = data.draw(st.integers(1, len(weights) - 1))
    chances = inclusion_chances(torch.tensor(weights, dtype=torch.float64), count)
    assert float(chances.sum()) == pytest.approx(count)
    assert bool(((chances > 0) & (chances <= 1 + 1e-12)).all())
    free = chances < 1 - 1e-12
    ratios = chances[free] / torch.tensor(weights, dtype=torch.float64)[free]
    assert torch.allclose(ratios, ratios[:1].expand_as(ratios))


def test_the_papers_quarters_are_chosen_with_the_papers_probabilities():
    draws = 1500
    counts = torch.zeros(40)
    for number in range(draws):
        draw = torch.Generator().manual_seed(number)
        counts[sample_by_groups(torch.arange(40), PAPER, 40, 10, draw)] += 1
    shares = (counts / draws).view(4, 10)
    # Five standard errors of a probability: sqrt(0.25 / 1500) = 0.013.
    assert torch.allclose(shares, torch.tensor(PAPER)[:, None].expand(4, 10), atol=0.065)
