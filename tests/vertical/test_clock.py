"""The virtual clock of vertical runs: seconds follow from what was counted and what machines can do."""

import time

import pytest
from shorthand import links_of

from vfl.core.costs.ledger import Cost, Spent, measured

MACHINES = {
    "device": {"macs_per_s": 4e9, "uplink_bytes_per_s": 1e6, "downlink_bytes_per_s": 2e6, "latency_s": 0.01},
    "parties": {
        "party_2": {"macs_per_s": {0: 1e9, 1: 2e9}},
        "party_3": {"uplink_bytes_per_s": {0: 1e5, 1: 1e3}, "latency_s": 0.5},
        "party_4": {"downlink_bytes_per_s": 5e4},
    },
}


def test_a_round_is_as_long_as_its_slowest_party_by_what_was_counted(build):
    server = build(simulation=MACHINES, lightweighting={"alpha": {1: 0.5}, "beta": 0.3})
    total_s = 0.0
    for round_index in range(2):
        metrics = server.train_round(round_index)
        spent = server.clock.history[round_index]
        for name, each in spent.items():
            device = server.config.simulation.of(name)
            speed = {"party_2": (1e9, 2e9)[round_index]}.get(name, device.macs_per_s)
            assert each.compute_s == (each.macs / speed if speed else 0.0)
            assert each.latency_s == server.exchanges.steps * device.latency_s
            passed = server.exchanges.work.passes * server.config.training.batch_size
            assert each.macs == metrics[f"macs_per_sample/{name}"] * passed or round_index == 1
            assert metrics[f"exchange_s/{name}"] == each.seconds / server.exchanges.steps
        assert spent["party_3"].uplink_s == spent["party_3"].uplink_bytes / (1e5, 1e3)[round_index]
        assert spent["party_4"].downlink_s == spent["party_4"].downlink_bytes / 5e4
        total_s += max(each.seconds for each in spent.values())
        assert metrics["simulated_time_s/total"] == total_s


def test_without_machines_there_is_no_clock_and_with_them_the_same_bits(build):
    plain, clocked = build(), build(simulation=MACHINES)
    assert not [tag for tag in plain.train_round(0) if tag.startswith(("simulated_time_s", "exchange_s"))]
    clocked.train_round(0)
    assert plain.summary()["model_digest"] == clocked.summary()["model_digest"]


def test_the_clock_goes_on_after_a_resume(build):
    whole, first, second = (build(simulation=MACHINES) for _ in range(3))
    whole.train_round(0)
    first.train_round(0)
    second.load_state_dict(first.state_dict())
    assert second.train_round(1)["simulated_time_s/total"] == whole.train_round(1)["simulated_time_s/total"]
    assert second.clock.history == whole.clock.history


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("under_way_s", [5.0, 1.0])
def test_between_processes_what_is_not_computing_is_the_link(under_way_s: float, ahead: int):
    spent = Spent(0.0, 0.0, *(cost := Cost(100, 300, 100)), *measured(cost, 2.0, under_way_s, ahead), ahead)
    assert spent.seconds == max(under_way_s, 2.0)
    assert spent.downlink_s == 3 * spent.uplink_s or ahead


@pytest.mark.parametrize(
    ("ahead", "latency_s", "seconds"), [(0, 8.0, 17.0), (1, 8.0, 8.5), (2, 8.0, 17 / 3), (2, 0.0, 4.0)]
)
def test_exchanges_that_overlap_take_what_the_busiest_part_does(ahead: int, latency_s: float, seconds: float):
    assert Spent(0.0, 0.0, *Cost(), 4.0, 3.0, 2.0, latency_s, ahead).seconds == seconds


def test_what_pruning_itself_takes_is_no_training(build, monkeypatch):
    server = build(lightweighting={"alpha": {"party_1": 0.5}})
    party, late_s, now_s = links_of(server)[0].party, [0.0], time.perf_counter
    prune = party.prune

    def slowly() -> bool:
        late_s[0] += 1000.0
        return prune()

    monkeypatch.setattr(time, "perf_counter", lambda: now_s() + late_s[0])
    monkeypatch.setattr(party, "prune", slowly)
    assert 0 < server.train_round(0)["train_time_s/party_1"] < 1000
    assert late_s == [1000.0]
