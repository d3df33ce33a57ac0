"""Bytes and multiply-accumulates that are booked, against messages that are really packed and samples counted."""

import pytest
import torch

from vfl.compression.codec import encode
from vfl.horizontal.components import ALGORITHMS
from vfl.horizontal.flat import transfer_bytes
from vfl.messages.messages import Kind, Message, Part, PartKind, control
from vfl.parties.network.wire.frame import ROUTE_BYTES, pack

STATISTICS = 2 * 5
SERVER_ONLY = {"h", "v", "first_steps"}
"""Entries of a server's state that no client needs."""


@pytest.fixture
def spied(recorded):
    """Let a server train a round; return its metrics, assignments, results and reports."""

    def run(server):
        trained, reported = recorded(server.fleet, "train"), recorded(server.fleet, "report")
        metrics = server.train_round(0)
        asked = [each for (assignments,), _ in trained for each in assignments]
        return metrics, asked, [each for _, results in trained for each in results], [each for _, each in reported]

    return run


def unpadded(model, vector):
    """Return a vector as it would travel, without the zeros between parameters."""
    if len(vector) != len(model.weights_P):
        return vector
    return torch.cat([part.flatten() for part in model.split(vector)])


def message_bytes(vectors, settings):
    """Pack vectors with settings; a zero counts as any other value, as nothing is sparsified here."""
    parts = [Part(PartKind.HEAD, encode(vector.where(vector != 0, torch.ones(())))) for vector in vectors]
    return len(pack(Message(Kind.START_ROUND, 7, 0, (*parts, control(settings))))) - ROUTE_BYTES


VARIANTS = {name: {"algorithm": name} for name in ALGORITHMS.built_in} | {
    "batch norm": {"algorithm": "fedavg", "batch_norm": True},
    "scaffold batch norm": {"algorithm": "scaffold", "batch_norm": True},
    "local buffers": {"algorithm": "fedavg", "batch_norm": True, "buffers": "local"},
    "dms with a slope": {"algorithm": "dms", "dms": {"slope": 0.1}},
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_booked_bytes_are_those_of_packed_messages(trainer, spied, settings):
    server = trainer(**settings)
    model = server.fleet.model
    travels = settings.get("batch_norm") and server.config.horizontal.buffers == "average"
    metrics, asked, results, reports = spied(server)
    buffers = [torch.zeros(STATISTICS)] if travels else []
    down = up = 0
    for assignment, result in zip(asked, results, strict=True):
        names = assignment.start.keys() - {"statistics"} - SERVER_ONLY
        sent = [unpadded(model, assignment.start[name]) for name in sorted(names)]
        down += message_bytes([*sent, *buffers], {"learning_rate": result.learning_rate, "steps": result.steps})
    for report in reports:
        numbers = {"loss": float(report.result.loss), "samples": report.work.samples, "steps": report.result.steps}
        up += message_bytes([*(unpadded(model, vector) for vector in report.upload.values()), *buffers], numbers)
    assert metrics["downlink_bytes/clients"] == down
    assert metrics["uplink_bytes/clients"] == up
    totals = server.summary()
    assert (totals["downlink_bytes"], totals["uplink_bytes"]) == (down, up)
    assert sum(party["uplink_bytes"] for party in totals["parties"].values()) == up


def test_a_client_that_drops_out_has_received_but_not_sent(trainer, monkeypatch):
    server = trainer(clients_per_round=6, devices={"dropout": 0.7})
    metrics = server.train_round(0)
    lost = 6 - metrics["clients/reporting"]
    assert lost > 0
    parties = server.summary()["parties"].values()
    assert sum(party["uplink_bytes"] == 0 for party in parties) == lost
    assert all(party["downlink_bytes"] > 0 and party["train_macs"] > 0 for party in parties)


@pytest.mark.parametrize("algorithm", ALGORITHMS.built_in)
def test_compute_is_three_passes_per_sample_and_step(trainer, spied, algorithm, problem):
    server = trainer(algorithm=algorithm, local_epochs=2, clients_per_round=6)
    metrics, _, results, _ = spied(server)
    epochs = 1 if algorithm == "fedsgd" else 2
    for result in results:
        assert result.samples == epochs * problem.sizes[result.client]
    # Of fedasync some clients start again before the round is over, which are computed with it.
    expected = 35 * 3 * sum(result.samples for result in results)
    assert metrics["train_macs/clients"] == expected == server.summary()["train_macs"]


def test_the_full_gradient_of_scaffolds_option_1_is_counted(trainer):
    first, second = (trainer(algorithm="scaffold", clients_per_round=6, scaffold={"option": kind}) for kind in (1, 2))
    macs = [server.train_round(0)["train_macs/clients"] for server in (first, second)]
    samples = sum(first.algorithm.samples_N)
    assert macs == [35 * 3 * 2 * samples, 35 * 3 * samples]


def test_short_batches_count_as_they_are(trainer, spied, problem):
    server = trainer(local_steps=3, clients_per_round=6)
    _, _, results, _ = spied(server)
    expected = {6: 4 + 2 + 4, 8: 12, 3: 9, 10: 10, 4: 12, 7: 4 + 3 + 4}
    assert {result.client: result.samples for result in results} == {
        client: expected[size] for client, size in enumerate(problem.sizes)
    }


def test_transfers_take_the_time_of_their_vectors():
    vectors = [torch.randn(43), torch.randn(10)]
    parts = tuple(Part(PartKind.HEAD, encode(vector)) for vector in vectors)
    assert transfer_bytes([43, 10]) == len(pack(Message(Kind.START_ROUND, parts=parts))) - ROUTE_BYTES
