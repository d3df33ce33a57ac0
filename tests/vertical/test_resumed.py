"""Ways to the same bits: resumed or not, heads replayed or sent, answers prompt or late; and the naive rule."""

import copy
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import small_config
from hypothesis import given, settings
from hypothesis import strategies as st
from shorthand import (
    TWO,
    assert_models,
    at_every_run,
    build_here,
    check_resumed,
    digest,
    links_of,
    parties_of,
    reference_of,
    release,
    replace_links,
    train_rounds,
)
from tiny_training import timeless
from torch import Tensor, nn

from vfl.core.local import LocalLink
from vfl.core.party import FeatureParty
from vfl.core.presence import batch_rows
from vfl.core.reference import Reference
from vfl.core.round_orders import orders_of
from vfl.core.server import HeadServer
from vfl.messages.messages import Kind, Message
from vfl.parties.network.wire.frame import pack, unpack

FALLING = {"alpha": {1: 0.2, 3: 0.5}, "beta": 0.5, "error_feedback": True}
PRUNED = {"alpha": {1: 0.3}, "beta": {0: 0.4, 2: 0.7}, "error_feedback": True}
QUANTISED = {"bits": 4, "gradients": {"beta": 0.5, "bits": 8, "error_feedback": True}}
MEET_LATER = {"local_rounds": 2, "auxiliary": 0.5, "local_iterations": 2, "party_dropout": 0.2}
HALF_FIRST = {"resolution": {0: 0.5, 2: 1.0}, "alpha": {1: 0.3, 3: 0.5}, "beta": 0.3}
FAST = {"macs_per_s": 4e9, "uplink_bytes_per_s": 1e6, "downlink_bytes_per_s": 2e6, "latency_s": 0.01}
MACHINES = {"parties": {"all": FAST}}

RESUMED: dict[str, tuple[int, dict[str, Any]]] = {
    f"{labels} labels after {split}": (
        split,
        {
            "training": {"labels": labels, "local_iterations": 2},
            "lightweighting": FALLING,
            "channels_last": split == 2,
            "wire": QUANTISED if split == 2 else {},
        },
    )
    for labels in ("shared", "server")
    for split in (1, 2, 3)
}
RESUMED |= {
    f"local rounds, {sync}, after {split}": (
        split,
        {"training": MEET_LATER | {"head_sync": sync}, "lightweighting": {"alpha": {1: 0.3, 3: 0.5}, "beta": 0.4}},
    )
    for sync in ("replay", "broadcast")
    for split in (1, 2, 3)
}
RESUMED |= {
    f"own classifiers, {labels}": (
        1,
        {
            "training": {"labels": labels, "auxiliary": 1.0, "staleness": 1, "local_iterations": 2},
            "lightweighting": PRUNED,
            "wire": {"bits": 8},
        },
    )
    for labels in ("shared", "server")
}
RESUMED |= {
    f"smaller images that move, after {split}": (
        split,
        {
            "data": TWO | {"augmentation": {"shift": 1}},
            "training": {"staleness": staleness, "local_iterations": 2, "steps_per_round": 4},
            "lightweighting": HALF_FIRST,
        },
    )
    for split, staleness in ((1, 1), (2, 0), (3, 1))
}
REFIT = {"alpha": {1: 0.3, 3: 0.6}, "beta": 0.3, "pruning": {"refit": True}}
RESUMED |= {
    f"refitted, after {split}": (split, {"training": {"staleness": 1, "local_iterations": 2}, "lightweighting": REFIT})
    for split in (1, 2)
}
NOISE = {side: {"kind": "gaussian", "strength": each} for side, each in {"gradients": 0.5, "embeddings": 0.2}.items()}
ALONE = {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8, "batch_norm": False}, "head": {"hidden": [16]}}
RESUMED |= {
    "defended by noise": (2, {"training": {"labels": "server"}, "privacy": NOISE, "models": ALONE}),
    "defended by max norm": (2, {"training": {"labels": "server"}, "privacy": {"gradients": "max_norm"}}),
    "defended by distance correlation": (2, {"privacy": {"embeddings": "distance_correlation"}}),
}
RESUMED["virtual clock"] = (1, {"simulation": MACHINES})
OF_RELEASE = {
    *(f"{labels} labels after {split}" for labels in ("shared", "server") for split in (1, 3)),
    *(f"local rounds, {sync}, after {split}" for sync in ("replay", "broadcast") for split in (1, 3)),
    *(f"smaller images that move, after {split}" for split in (2, 3)),
    *(f"defended by {by}" for by in ("noise", "max norm", "distance correlation")),
}


@pytest.mark.parametrize("case", [release(case) if case in OF_RELEASE else case for case in RESUMED])
def test_resumed_equals_uninterrupted(build, case: str):
    split, sections = RESUMED[case]
    check_resumed(build, split, 4, **{"data": TWO} | sections)


REPLAYED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one iteration": ({"local_iterations": 1}, {"lightweighting": PRUNED | {"error_feedback": False}}),
    "three iterations": ({"local_iterations": 3}, {"lightweighting": PRUNED}),
    "bfloat16": ({"local_iterations": 3}, {"lightweighting": PRUNED, "wire": {"values": "bfloat16"}}),
    "absent rows": ({"local_iterations": 2, "party_dropout": 0.3}, {"lightweighting": PRUNED}),
    "own classifiers": (
        {"auxiliary": 0.5, "local_iterations": 3, "party_dropout": 0.3},
        {"lightweighting": {"beta": 0.4}},
    ),
}


@pytest.mark.parametrize(
    "case", [release(case) if case in ("one iteration", "bfloat16") else case for case in REPLAYED]
)
def test_replay_and_broadcast_give_equal_bits(build, case: str):
    training, sections = REPLAYED[case]
    digests = set()
    for head_sync in ("replay", "broadcast"):
        server = build(data=TWO, training=training | {"head_sync": head_sync}, **sections)
        drifts = [metrics.get("head_drift/party_1", 0.0) for metrics in train_rounds(server, 3)]
        assert drifts == [0.0] * 3
        digests.add(digest(server))
    assert len(digests) == 1


CNN = {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8}, "head": {"hidden": [16]}}


class Stale(Reference):
    """All parties and the server, embedding with the models of ``staleness`` updates ago."""

    def round(self, batches: Sequence[Tensor], staleness: int) -> None:
        """Run a round: before its first update models are those with which it begins."""
        history = [copy.deepcopy(self.models)]
        for exchange, rows_B in enumerate(batches):
            self.stale_exchange(history[max(0, exchange - staleness)], rows_B)
            history.append(copy.deepcopy(self.models))

    def stale_exchange(self, old: Sequence[nn.Module], rows_B: Tensor) -> None:
        """As an exchange of Algorithm 1, with embeddings and first gradients of older models."""
        y_B, replica = self.labels_N[rows_B], copy.deepcopy(self.head)
        sent = [self.sparsify(model(x[rows_B]).detach()) for model, x in zip(old, self.features, strict=True)]
        leaves = [h.clone().requires_grad_() for h in sent]
        at_server = torch.autograd.grad(F.cross_entropy(self.head(torch.cat(leaves, 1)), y_B), leaves)
        for k, model in enumerate(self.models):
            for iteration in range(self.iterations):
                source = old[k] if iteration == 0 else model
                own = source(self.features[k][rows_B])
                others = [*sent[:k], own, *sent[k + 1 :]]
                shared = self.labels == "shared"
                loss = F.cross_entropy(replica(torch.cat(others, 1)), y_B) if shared else (own * at_server[k]).sum()
                gradients = torch.autograd.grad(loss, list(source.parameters()))
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.grad = gradient
                self.optimizers[model].step()
        for _ in range(self.iterations):
            self.descend(self.head, F.cross_entropy(self.head(torch.cat(sent, 1)), y_B))


@pytest.mark.parametrize("labels", ["shared", "server"])
@pytest.mark.parametrize(("staleness", "iterations", "beta"), at_every_run([(1, 1, 0.0), (2, 2, 0.6)], 2))
def test_equals_the_rule_written_down_naively(build, labels: str, staleness: int, iterations: int, beta: float):
    training = {"batch_size": 8, "labels": labels, "local_iterations": iterations, "staleness": staleness}
    models = CNN | {"feature": CNN["feature"] | {"batch_norm": False}}
    server: HeadServer = build(models=models, training=training, lightweighting={"beta": beta})
    naive = reference_of(server, Stale, beta=beta)
    for round_index in range(2):
        server.train_round(round_index)
        naive.round(batch_rows(3, round_index, 6, 48, 8), staleness)
    assert_models(server, naive.models, naive.head, rtol=2e-5, atol=1e-6)


class LateLink(LocalLink):
    """A party in this process that handles an order no earlier than its answer is waited for."""

    def __init__(self, party: FeatureParty) -> None:
        super().__init__(party)
        self.pending = party.pending
        self.waiting = deque[bytes]()
        self.answers = deque[Message]()
        self.most_under_way = self.most_pending = 0

    def send(self, request: Message) -> "Future[Message]":
        self.waiting.append(pack(request))
        self.most_under_way = max(self.most_under_way, len(self.waiting))
        return Late(self)

    def handle(self) -> Message:
        answer = self.party.handle(unpack(self.waiting.popleft()))
        self.most_pending = max(self.most_pending, len(self.pending))
        return unpack(pack(answer))


class Late(Future[Message]):
    """An answer that is made when it is waited for."""

    def __init__(self, link: LateLink) -> None:
        super().__init__()
        self.link = link
        self.answer: Message | None = None

    def result(self, timeout: float | None = None) -> Message:
        self.answer = self.answer or self.link.handle()
        return self.answer


def built(sections: dict[str, Any], link: type[LocalLink]) -> HeadServer:
    server = build_here(small_config(**sections)).server
    replace_links(server, [link(party) for party in parties_of(server)])
    return server


@st.composite
def experiments(draw: st.DrawFn) -> dict[str, Any]:
    """Two rounds of three exchanges, the second of which prunes."""
    training = {
        "staleness": draw(st.sampled_from([0, 1, 2])),
        "labels": draw(st.sampled_from(["shared", "server"])),
        "head_sync": draw(st.sampled_from(["replay", "broadcast"])),
        "local_iterations": draw(st.sampled_from([1, 2])),
        "party_dropout": draw(st.sampled_from([0.0, 0.4])),
        "batch_size": draw(st.sampled_from([2, 16])),
        "steps_per_round": 3,
    }
    gradients = {"beta": 0.5, "bits": 4, "error_feedback": draw(st.booleans())}
    return {
        "models": CNN,
        "training": training,
        "lightweighting": {"alpha": {1: 0.5}, "beta": 0.4, "error_feedback": draw(st.booleans())},
        "wire": {"gradients": gradients} if draw(st.booleans()) else {},
    }


@pytest.mark.release
@given(experiments())
@settings(max_examples=6)
def test_late_answers_and_a_resume_change_no_bit_and_no_more_is_under_way_than_was_asked(sections: dict[str, Any]):
    prompt, late, resumed = (built(sections, link) for link in (LocalLink, LateLink, LocalLink))
    rounds = [(prompt.train_round(0), late.train_round(0))]
    resumed.load_state_dict(copy.deepcopy(prompt.state_dict()))
    rounds.append((prompt.train_round(1), late.train_round(1)))
    resumed.train_round(1)
    for link in links_of(late):
        assert isinstance(link, LateLink)
        assert link.most_under_way == link.most_pending == sections["training"]["staleness"] + 1
        assert not link.waiting
        assert not link.pending
    assert {report.head_drift for report in prompt.reports.last.values()} <= {0.0, None}
    ours, theirs, again = (timeless(server.summary()) for server in (prompt, late, resumed))
    assert ours == theirs == again
    for mine, others in rounds:
        assert timeless(mine) == timeless(others)


@given(st.integers(1, 9), st.integers(0, 2))
def test_every_exchange_is_embedded_once_and_updated_once_s_exchanges_later(steps: int, staleness: int):
    if staleness >= steps:
        return
    orders = orders_of(steps, staleness)
    assert [order.exchange for order in orders if order.kind is Kind.EMBED] == [*range(steps)]
    assert [order.brings for order in orders if order.brings is not None] == [*range(steps)]
    assert [order.brings for order in orders[: staleness + 1]] == [None] * (staleness + 1)
    assert [order.kind for order in orders[steps:]] == [Kind.UPDATE] * staleness + [Kind.END_ROUND]
