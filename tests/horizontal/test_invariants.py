"""What holds after every round, whoever was there."""

import pytest
import torch

from vfl.horizontal.components import ALGORITHMS

ROUNDS = 6
UNRELIABLE = {"devices": {"availability": 0.7, "dropout": 0.3}}
STATEFUL = {
    "scaffold 1": {"algorithm": "scaffold", "scaffold": {"option": 1}},
    "scaffold 2": {"algorithm": "scaffold", "scaffold": {"option": 2}},
    "feddyn": {"algorithm": "feddyn", "feddyn": {"alpha": 0.2}},
}


@pytest.fixture
def trainer(trainer):
    return lambda **horizontal: trainer(**UNRELIABLE | horizontal)


def mean_kept(trainer, name):
    """Return the mean over all N clients of a vector that they keep; those without one count as zero."""
    whole = trainer.config.horizontal.clients
    kept = [trainer.fleet.states.get(client).get(name) for client in range(whole)]
    return sum(vector for vector in kept if vector is not None) / whole


@pytest.mark.parametrize("option", [1, 2])
def test_scaffolds_c_is_the_mean_of_all_clients_control_variates(trainer, option):
    server = trainer(algorithm="scaffold", scaffold={"option": option})
    assert torch.count_nonzero(server.state["control_variate"]) == 0
    for round_index in range(ROUNDS):
        server.train_round(round_index)
        mean_P = mean_kept(server, "control_variate")
        assert torch.count_nonzero(mean_P) > 0
        torch.testing.assert_close(server.state["control_variate"], mean_P, rtol=1e-4, atol=1e-6)


def test_feddyns_h_is_the_mean_of_all_clients_gradients_and_the_sum_of_their_changes(trainer, recorded):
    server = trainer(algorithm="feddyn", feddyn={"alpha": 0.2})
    calls = recorded(server.algorithm, "aggregate")
    for round_index in range(ROUNDS):
        server.train_round(round_index)
        changes = [report.upload["delta"] for (_, reports), _ in calls for report in reports]
        torch.testing.assert_close(server.state["h"], mean_kept(server, "gradient"), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(server.state["h"], -0.2 / 6 * sum(changes), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", STATEFUL.values(), ids=STATEFUL)
def test_only_reporting_clients_change_their_state(trainer, settings, recorded):
    server = trainer(**settings)
    reported = recorded(server.fleet, "report")
    absences = 0
    for round_index in range(ROUNDS):
        reported.clear()
        before = {client: copies(server.fleet.states.get(client)) for client in range(6)}
        server.train_round(round_index)
        present = {assignment.work.client for (assignment, *_), _ in reported}
        for client in range(6):
            after = server.fleet.states.get(client)
            if client in present:
                assert after.keys() != before[client].keys() or not same(after, before[client])
            else:
                absences += bool(after)
                assert same(after, before[client])
    assert absences > 0


def copies(vectors):
    return {name: vector.clone() for name, vector in vectors.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ALGORITHMS.built_in)
def test_states_are_values(trainer, name):
    """A round makes a new state and leaves the old one as it was: a late client still has what it was sent."""
    server = trainer(algorithm=name)
    states, copied = [], []
    for round_index in range(ROUNDS):
        states.append(server.state)
        copied.append(copies(server.state))
        server.train_round(round_index)
    assert all(same(state, copy) for state, copy in zip(states, copied, strict=True))
    assert not torch.equal(copied[0]["weights"], server.state["weights"])


@pytest.mark.parametrize("weights", ["reporting", "equal", "all"])
def test_averaging_weights_sum_to_1_where_absent_clients_do_not_count(trainer, report, weights):
    server = trainer(weights=weights)
    reports = [report(client, torch.ones(16)) for client in (1, 3, 4)]
    expected = {"reporting": [8 / 22, 10 / 22, 4 / 22], "equal": [1 / 3] * 3, "all": [8 / 38, 10 / 38, 4 / 38]}
    assert server.algorithm.weights(reports) == pytest.approx(expected[weights])
    delta_P = server.algorithm.aggregate(server.state, reports).vectors["delta"]
    assert float(delta_P[0]) == pytest.approx(22 / 38 if weights == "all" else 1.0)


@pytest.mark.parametrize("name", ALGORITHMS.built_in)
def test_a_round_that_nobody_finishes_moves_nothing(trainer, name, monkeypatch):
    server = trainer(algorithm=name, devices={"dropout": 0.5})
    monkeypatch.setattr(type(server.devices), "_happens", lambda devices, purpose, *_: everybody(purpose))
    before = copies(server.state)
    metrics = server.train_round(0)
    assert metrics["clients/reporting"] == 0
    kept = {entry: server.state[entry] for entry in before}  # FLARE adds what clients told before they trained
    assert same(kept, before)
    assert metrics["uplink_bytes/clients"] == 0
    assert metrics["downlink_bytes/clients"] > 0
    assert metrics["simulated_time_s/round"] > 0


def everybody(purpose):
    return torch.full((6,), purpose == "availability")
