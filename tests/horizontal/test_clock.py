"""Simulated time and who is asked when: rounds that wait, intervals that do not, arrivals in their order."""

import pytest
import torch
from refusals import refuses
from shorthand import train_rounds

from vfl.base.random import generator
from vfl.horizontal.asynchronous import STARTS_TRIED

SLOWEST_FIRST = {"speed": {"kind": "case2"}}
"""Six clients at 1, 1, 2, 3, 3, 4 steps per second."""
SPEEDS = (1, 1, 2, 3, 3, 4)


def selections(server, rounds):
    plans = [server.devices.plan(round_index) for round_index in range(rounds)]
    return [server.algorithm.select(server.state, number, plan).clients for number, plan in enumerate(plans)]


def test_a_synchronous_round_waits_for_the_slowest(trainer):
    server = trainer(devices=SLOWEST_FIRST, local_steps=6)
    total = 0.0
    for round_index, clients in enumerate(selections(server, 4)):
        metrics = server.train_round(round_index)
        slowest = max(6 / SPEEDS[client] for client in clients)
        total += slowest
        assert metrics["simulated_time_s/round"] == pytest.approx(slowest)
        assert metrics["simulated_time_s/total"] == pytest.approx(total)
    assert server.summary()["simulated_time_s"] == pytest.approx(total)


def test_a_round_waits_for_clients_whose_result_never_comes(trainer):
    server = trainer(devices=SLOWEST_FIRST | {"dropout": 0.5}, local_steps=6, clients_per_round=6)
    assert server.train_round(0)["simulated_time_s/round"] == pytest.approx(6.0)


@pytest.mark.parametrize("algorithm", ["fedavg", "dms"])
def test_an_interval_has_its_length_whoever_takes_part(trainer, algorithm):
    work = {"kind": "interval", "interval_s": 2.5}
    server = trainer(algorithm=algorithm, devices=SLOWEST_FIRST, work=work)
    metrics = train_rounds(server, 4)
    assert [row["simulated_time_s/round"] for row in metrics] == [2.5] * 4
    assert max(row["local_steps/max"] for row in metrics) == 10


@pytest.mark.parametrize("algorithm", ["fedavg", "dms"])
def test_an_interval_in_which_nobody_works_lasts_as_long(trainer, algorithm):
    devices, work = SLOWEST_FIRST | {"availability": 1e-6}, {"kind": "interval", "interval_s": 2.5}
    metrics = trainer(algorithm=algorithm, devices=devices, work=work).train_round(0)
    assert (metrics["clients/selected"], metrics["simulated_time_s/round"]) == (0, 2.5)


def test_clients_are_drawn_without_repetition_and_each_as_often(trainer):
    server = trainer()
    drawn = selections(server, 300)
    assert all(len(set(clients)) == 3 and list(clients) == sorted(clients) for clients in drawn)
    counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=6)
    assert counts.sum() == 900
    assert counts.min() > 110
    assert drawn == selections(trainer(), 300)
    assert drawn != selections(trainer(seed=4), 300)


def test_fewer_are_asked_where_fewer_can(trainer):
    server = trainer(selection={"min_steps": 2}, clients_per_round=6)
    assert selections(server, 1) == [[0, 1, 3, 5]]
    server = trainer(devices={"availability": 0.3}, clients_per_round=6)
    counts = {len(clients) for clients in selections(server, 30)}
    assert 0 in counts or 1 in counts
    assert max(counts) <= 6


def test_an_asynchronous_server_asks_only_those_who_can(trainer):
    server = trainer(algorithm="fedasync", selection={"min_steps": 2}, clients_per_round=2)
    train_rounds(server, 8)
    assert set(server.fleet.costs) == {0, 1, 3, 5}


def simulate_arrivals(server, arrivals):
    """Repeat the asynchronous server by hand: (client, staleness, seconds) of every arrival.

    A start draws one of the idle clients from the stream of its number; the earliest arrival lands first, and of
    equals the one that started first.
    """
    settings = server.config.horizontal
    clock, version, number, landed = 0.0, 0, 0, []
    flights = []

    def start():
        nonlocal number
        while len(flights) < settings.clients_per_round:
            plan = server.devices.plan(number)
            idle = [client for client in range(6) if client not in {flight[2] for flight in flights}]
            draw = generator(server.config.seed, "selection", number)
            client = idle[int(torch.randint(len(idle), (1,), generator=draw))]
            flights.append((clock + float(plan.seconds_N[client]), number, client, version))
            number += 1

    start()
    for _ in range(arrivals):
        flight = min(flights)
        flights.remove(flight)
        clock = flight[0]
        landed.append((flight[2], version - flight[3], clock))
        version += 1
        start()
    return landed


@pytest.mark.parametrize("speed", [{"kind": "case2"}, {"kind": "fixed"}, {"kind": "exponential", "mean": 3.0}])
def test_clients_arrive_in_the_order_of_their_time(trainer, monkeypatch, speed):
    server = trainer(algorithm="fedasync", devices={"speed": speed}, local_steps=6)
    expected = simulate_arrivals(server, 12)
    landed = []
    step = server.server_step

    def recording(reports):
        (report,) = reports
        landed.append((report.work.client, report.staleness, server.simulated_time_s))
        return step(reports)

    monkeypatch.setattr(server, "server_step", recording)
    train_rounds(server, 4)
    assert [row[:2] for row in landed] == [row[:2] for row in expected]
    assert [row[2] for row in landed] == pytest.approx([row[2] for row in expected])
    assert server.simulated_time_s == pytest.approx(expected[-1][2])


def test_a_late_client_starts_from_the_version_it_was_sent(trainer, monkeypatch):
    """Every arrival's weights start where the server was when the client was asked."""
    server = trainer(algorithm="fedasync", devices=SLOWEST_FIRST, local_steps=6, clients_per_round=4)
    versions, late = [server.state["weights"]], 0
    step = server.server_step

    def checking(reports):
        nonlocal late
        (report,) = reports
        assert torch.equal(report.start_P, versions[-1 - report.staleness])
        late += report.staleness > 0
        outcome = step(reports)
        versions.append(server.state["weights"])
        return outcome

    monkeypatch.setattr(server, "server_step", checking)
    train_rounds(server, 4)
    assert late > 4


def test_lost_flights_end_without_a_report(trainer):
    server = trainer(algorithm="fedasync", devices=SLOWEST_FIRST | {"dropout": 0.5}, local_steps=6)
    reporting = [server.train_round(round_index)["clients/reporting"] for round_index in range(6)]
    assert server.version == sum(reporting) < 18
    assert len(server.flights) == 3


def test_a_server_waits_for_clients_that_are_rarely_there(trainer):
    server = trainer(algorithm="fedasync", devices={"availability": 0.02})
    metrics = server.train_round(0)
    assert metrics["clients/reporting"] == 3


def test_a_server_that_never_finds_a_client_says_so(trainer):
    server = trainer(algorithm="fedasync", devices={"availability": 1e-12})
    refuses("horizontal.devices.availability", lambda: server.train_round(0), STARTS_TRIED)
