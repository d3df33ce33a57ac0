"""Bytes: what the ledger says equals what really travelled, and only what may travel did."""

from collections.abc import Iterator
from concurrent.futures import Future
from itertools import product

import pytest
from shorthand import at_every_run, links_of, release, replace_links, train_rounds

from vfl.compression.codec import dense_frame_size, frame_info
from vfl.core.server import HeadServer
from vfl.messages.messages import Buffer, Kind, Message, PartKind
from vfl.parties.network.wire.frame import ROUTE_BYTES, pack, unpack

EVALUATION_KINDS = (Kind.EVALUATE, Kind.EVALUATION, Kind.DESCRIBE, Kind.DESCRIPTION)
AT_EVERY_RUN = {("shared", "replay", "float16"), ("shared", "broadcast", "float32"), ("server", "replay", "float32")}
"""The other combinations are for a release."""


class RecordingLink:
    """Keeps every serialized message that passes."""

    def __init__(self, link) -> None:
        self.link = link
        self.name = link.name
        self.under_way_s = None
        self.down: list[Buffer] = []
        self.up: list[Buffer] = []

    def send(self, request: Message) -> "Future[Message]":
        self.down.append(pack(request))
        reply = self.link.send(request)
        self.up.append(pack(reply.result()))
        return reply


def record(server: HeadServer, rounds: int) -> list[RecordingLink]:
    links = [RecordingLink(link) for link in links_of(server)]
    replace_links(server, links)
    for round_index in range(rounds):
        server.train_round(round_index)
        server.evaluate()
    return links


def messages(data: list[Buffer], *, evaluation: bool) -> Iterator[tuple[Buffer, Message]]:
    for item in data:
        message = unpack(item)
        if (message.kind in EVALUATION_KINDS) == evaluation:
            yield item, message


def size(data: list[Buffer], *, evaluation: bool) -> int:
    return sum(len(item) - ROUTE_BYTES for item, _ in messages(data, evaluation=evaluation))


@pytest.mark.parametrize(
    ("labels", "head_sync", "values"),
    [
        each if each in AT_EVERY_RUN else release(*each)
        for each in product(["shared", "server"], ["replay", "broadcast"], ["float32", "float16"])
    ],
)
def test_totals_equal_the_sum_of_the_serialized_messages(build, labels: str, head_sync: str, values: str):
    server = build(
        training={"rounds": 2, "batch_size": 16, "local_iterations": 2, "labels": labels, "head_sync": head_sync},
        lightweighting={"alpha": {1: 0.4}, "beta": {0: 0.3, 1: 0.8}},
        wire={"values": values},
    )
    links = record(server, 2)
    summary = server.summary()
    for direction, recorded in (("uplink", "up"), ("downlink", "down")):
        training = {link.name: size(getattr(link, recorded), evaluation=False) for link in links}
        assert {name: party[f"{direction}_bytes"] for name, party in summary["parties"].items()} == training
        assert summary[f"{direction}_bytes"] == sum(training.values())
        measured = sum(size(getattr(link, recorded), evaluation=True) for link in links)
        assert summary[f"evaluation_{direction}_bytes"] == measured > 0
        by_kind = [party["bytes_by_kind"][direction] for party in summary["parties"].values()]
        assert sum(sum(kinds.values()) for kinds in by_kind) == sum(training.values()) + measured


@pytest.mark.parametrize("labels", at_every_run(["shared", "server"], "shared"))
def test_dense_bytes_are_what_beta_0_would_have_sent(build, labels: str):
    training = {"rounds": 2, "batch_size": 16, "labels": labels}
    sparse = build(training=training, lightweighting={"beta": 0.7})
    links = record(sparse, 2)
    summary = sparse.summary()
    expected = 0
    for link in links:
        for item, message in messages(link.up, evaluation=False):
            frames = message.payloads(PartKind.EMBEDDING)
            info = [frame_info(frame) for frame in frames]
            dense = sum(dense_frame_size(each.shape) for each in info)
            expected += len(item) - ROUTE_BYTES - sum(map(len, frames)) + dense
    assert summary["dense_uplink_bytes"] == expected
    assert summary["uplink_bytes"] < 0.5 * summary["dense_uplink_bytes"]
    dense_run = build(training=training)
    record(dense_run, 2)
    total = dense_run.summary()
    assert total["uplink_bytes"] <= total["dense_uplink_bytes"]
    for name, costs in sparse.ledger.costs.items():
        assert dense_run.ledger.costs[name].dense_uplink_bytes["embedding"] == costs.dense_uplink_bytes["embedding"]


def test_labels_at_the_server_send_a_party_nothing_but_its_own_gradient(build):
    server = build(training={"rounds": 2, "batch_size": 16, "labels": "server"}, lightweighting={"beta": 0.3})
    for link in record(server, 2):
        kinds = {part.kind for _, message in messages(link.down, evaluation=False) for part in message.parts}
        assert kinds == {PartKind.GRADIENT, PartKind.CONTROL}


@pytest.mark.parametrize("labels", ["shared", "server"])
@pytest.mark.parametrize("staleness", at_every_run([0, 1], 1))
def test_coding_changes_bytes_alone(build, labels: str, staleness: int):
    training = {"rounds": 2, "batch_size": 48, "labels": labels, "staleness": staleness, "steps_per_round": 3}
    summaries = []
    for coding in ("packed", "entropy"):
        gradients = {"bits": 8} if labels == "server" else {}
        wire = {"bits": 4, "gradients": gradients, "rounding": "dithered", "coding": coding}
        server = build(
            training=training, wire=wire, models={"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 32}}
        )
        train_rounds(server, 2)
        summaries.append(server.summary())
    packed, coded = summaries
    assert coded["model_digest"] == packed["model_digest"]
    assert coded["dense_uplink_bytes"] == packed["dense_uplink_bytes"]
    assert coded["uplink_bytes"] < packed["uplink_bytes"]
    assert coded["downlink_bytes"] < packed["downlink_bytes"]


def test_shared_labels_forward_the_others_frames_as_they_came(build):
    server = build(training={"rounds": 1, "batch_size": 16}, lightweighting={"beta": 0.5})
    links = record(server, 1)
    sent = {
        link.name: [frame for _, m in messages(link.up, evaluation=False) for frame in m.payloads(PartKind.EMBEDDING)]
        for link in links
    }
    for link in links:
        updates = [m for _, m in messages(link.down, evaluation=False) if m.payloads(PartKind.EMBEDDING)]
        assert len(updates) == len(sent[link.name])
        for exchange, update in enumerate(updates):
            others = [sent[other.name][exchange] for other in links if other is not link]
            assert update.payloads(PartKind.EMBEDDING) == others


def test_the_head_travels_once_per_round_or_at_each_exchange(build):
    for head_sync, times in (("replay", 1), ("broadcast", 3)):
        training = {"rounds": 1, "batch_size": 16, "head_sync": head_sync}
        links = record(build(training=training), 1)
        carrying = [m for _, m in messages(links[0].down, evaluation=False) if m.payloads(PartKind.HEAD)]
        assert len(carrying) == times
