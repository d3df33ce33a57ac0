"""Missing rows and party dropout: who takes part, what is trained, and that nothing is spent on the others."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from shorthand import build_here
from torch import Tensor, nn

from vfl.base.metrics import lost_without, subsets_of
from vfl.compression.codec import dense_frame_size
from vfl.core.party import FeatureParty
from vfl.core.presence import Presence, RowMask, batch_rows, pack, unpack
from vfl.core.server import HeadServer
from vfl.data.files import LabelData, PartyData
from vfl.data.source import Split
from vfl.data.sources.images import ImageGrid
from vfl.messages.messages import MessageError
from vfl.models.mlp import MLP
from vfl.runs.optim import build_optimizer

SHARES = (1.0, 0.7, 0.5, 0.06)
"""Of the samples that each party has a row for: the last one has often one in a batch, or none."""


@given(st.integers(0, 5), st.sampled_from([0.0, 0.3, 0.9]), st.integers(1, 4), st.booleans())
def test_of_the_parties_with_a_row_one_stays(seed: int, dropout: float, parties: int, gaps: bool):
    held_NK = torch.rand(60, parties, generator=torch.Generator().manual_seed(seed)) < 0.6
    presence = Presence(held_NK if gaps else None, parties, dropout, seed)
    held_NK = held_NK if gaps else torch.ones_like(held_NK)
    batches = batch_rows(seed, 1, 3, 60, 20)
    drawn = drawn_by(presence, 1, batches)
    for rows_B, there_BK in zip(batches, drawn, strict=True):
        assert not (there_BK & ~held_NK[rows_B]).any()
        assert torch.equal(there_BK.any(1), held_NK[rows_B].any(1))
        if dropout == 0:
            assert torch.equal(there_BK, held_NK[rows_B])
    assert all(map(torch.equal, drawn_by(presence, 1, batches), drawn))
    if dropout and parties > 1:
        assert not all(map(torch.equal, drawn_by(presence, 2, batches), drawn))


def drawn_by(presence: Presence, round_index: int, batches: list[Tensor]) -> list[Tensor]:
    return [stacked(shares) for shares in presence.of_round(round_index, batches)]


def stacked(shares: list[RowMask]) -> Tensor:
    assert all(share.count == int(share.present_B.sum()) for share in shares)
    return torch.stack([share.present_B for share in shares], dim=1)


@pytest.mark.parametrize(("dropout", "gaps"), [(0.3, False), (0.6, True), (0.0, True)])
def test_a_party_is_left_out_as_often_as_was_asked(dropout: float, gaps: bool):
    rows_B = torch.arange(40_000)
    held_NK = torch.rand(40_000, 3, generator=torch.Generator().manual_seed(1)) < torch.tensor([1.0, 0.5, 0.1])
    presence = Presence(held_NK if gaps else None, 3 if gaps else 2, dropout, 0)
    (there_BK,) = drawn_by(presence, 0, [rows_B])
    torch.testing.assert_close(there_BK.double().mean(0).tolist(), presence.mean_shares(), atol=0.01, rtol=0)
    if not gaps:
        left_out = 0.3 - 0.3**2 / 2  # where both would be, one of them stays
        assert presence.mean_shares() == pytest.approx([1 - left_out] * 2)


def test_who_takes_part_travels_as_bits():
    present = [torch.tensor([True, False, True]), torch.tensor([False] * 7)]
    batches = [torch.arange(3), torch.arange(7)]
    shares = [RowMask.of(present_B) for present_B in present]
    bits = pack(shares)
    assert len(bits) == 2
    read = unpack(bits, batches)
    assert [share.count for share in read] == [2, 0]
    assert all(map(torch.equal, [share.present_B for share in read], present))
    with pytest.raises(MessageError, match="presence of 8 samples came, the round has 10"):
        unpack(b"\0", batches)
    rows_nD = torch.randn(2, 4)
    assert torch.equal(shares[0].rows_of(shares[0].spread(rows_nD, float("nan"))), rows_nD)


@pytest.fixture
def build_gaps(configure, monkeypatch):
    """Build the small experiment, of whose samples the parties have some only."""

    def build(**sections) -> tuple[HeadServer, list[FeatureParty]]:
        monkeypatch.setattr(ImageGrid, "split", lambda source: with_gaps(whole(source)))
        built = build_here(configure(**sections))
        return built.server, list(built.parties)

    whole = ImageGrid.split
    return build


def with_gaps(split: Split) -> Split:
    draw = torch.Generator().manual_seed(0)
    present = {
        part: torch.rand(len(getattr(split.labels, part).ids), 4, generator=draw) < torch.tensor(SHARES)
        for part in ("train", "test")
    }
    parties = [
        PartyData(
            data.party,
            replace(data.train, present=present["train"][:, k]),
            replace(data.test, present=present["test"][:, k]),
        )
        for k, data in enumerate(split.parties)
    ]
    train, test = (replace(getattr(split.labels, part), present=present[part]) for part in ("train", "test"))
    return Split(tuple(parties), LabelData(split.labels.classes, train, test))


Removed = dict[str, list[int]]
"""Filters of a party's model, by layer."""


class Joint(nn.Module):
    """One joint model, by hand: rows of a party that takes no part reach no model, a placeholder is in their place.

    Nothing is pruned: removed filters are masked, from the exchange on in which the parties remove them.
    """

    def __init__(self, server: HeadServer, parties: list[FeatureParty]) -> None:
        super().__init__()
        self.models = nn.ModuleList(copy.deepcopy(party.model).train() for party in parties)
        weights = dict(server.trainer.head.state_dict())
        self.placeholder = nn.Parameter(weights.pop("placeholder").clone())
        self.head = MLP(32, [16], 10)
        self.head.load_state_dict(weights)
        self.images = [party.train.features for party in parties]
        self.labels_N = server.exchanges.labels_N
        config = server.config.training.optimizer
        head = nn.ModuleList([self.head])
        head.register_parameter("placeholder", self.placeholder)
        self.optimizers = [build_optimizer(module, config) for module in (*self.models, head)]
        self.sizes: set[int] = set()
        self.masked: list[tuple[torch.Tensor, list[int]]] = []

    def step(
        self,
        rows_B: torch.Tensor,
        present_BK: torch.Tensor,
        removed: list[Removed],
        labels: str,
    ) -> None:
        """Take a step."""
        parts = [self.embed(k, rows_B, present_BK[:, k].tolist()) for k in range(4)]
        for part in parts:
            part.retain_grad()
        self.zero_grad()
        F.cross_entropy(self.head(torch.cat(parts, 1)), self.labels_N[rows_B]).backward()
        if removed:
            self.prune(removed)
            self.descend_masked(rows_B, present_BK, parts, labels)
        for optimizer, takes_part in zip(self.optimizers, [*present_BK.any(0), True], strict=True):
            if takes_part:
                optimizer.step()
        self.mask()

    def embed(self, k: int, rows_B: torch.Tensor, present: list[bool]) -> torch.Tensor:
        own = [row for row, here in zip(rows_B.tolist(), present, strict=True) if here]
        self.sizes.add(len(own))
        if not present:
            return self.placeholder[8 * k : 8 * k + 8].expand(0, 8)
        self.models[k].train(len(own) > 1)
        embedded = iter(self.models[k](self.images[k][own]) if own else ())
        return torch.stack([next(embedded) if here else self.placeholder[8 * k : 8 * k + 8] for here in present])

    def prune(self, removed: list[Removed]) -> None:
        """Mask the filters that the parties removed, and what normalises them."""
        for model, layers in zip(self.models, removed, strict=True):
            modules = dict(model.named_modules())
            order = list(modules)
            for name, filters in layers.items():
                norm = modules[order[order.index(name) + 1]]
                self.masked += [(value, filters) for each in (modules[name], norm) for value in each.parameters()]
        self.mask()

    @torch.no_grad()
    def mask(self) -> None:
        for parameter, filters in self.masked:
            parameter[filters] = 0

    def descend_masked(
        self,
        rows_B: torch.Tensor,
        present_BK: torch.Tensor,
        parts: list[torch.Tensor],
        labels: str,
    ) -> None:
        """Take the masked models' gradients; what the others and the head know is from before."""
        sent = [part.detach() for part in parts]
        for k, model in enumerate(self.models):
            own = self.embed(k, rows_B, present_BK[:, k].tolist())
            gradient = parts[k].grad
            assert gradient is not None
            loss = (own * gradient).sum()
            if labels == "shared":
                outputs = self.head(torch.cat([*sent[:k], own, *sent[k + 1 :]], 1))
                loss = F.cross_entropy(outputs, self.labels_N[rows_B])
            if present_BK[:, k].any():
                model.zero_grad()
                loss.backward(inputs=list(model.parameters()))


@pytest.mark.parametrize("labels", ["shared", "server"])
def test_training_with_missing_rows_equals_the_joint_masked_model_with_placeholders(
    in_float64, build_gaps, labels: str
):
    optimizer = {"learning_rate": 0.001, "momentum": 0.9}
    training = {"rounds": 4, "batch_size": 16, "labels": labels, "party_dropout": 0.2, "optimizer": optimizer}
    server, parties = build_gaps(training=training, lightweighting={"alpha": {3: 0.4}})
    joint = Joint(server, parties)
    for round_index in range(6):
        server.train_round(round_index)
        removed = [party.pruner.state_dict()["history"][0]["removed"] for party in parties if round_index == 3]
        for exchange, rows_B in enumerate(server.exchanges.batches(round_index)):
            present_BK = stacked(server.exchanges.masks[exchange])
            joint.step(rows_B, present_BK, removed if exchange == 0 else [], labels)
    assert {0, 1} < joint.sizes
    expected = joint.head.state_dict() | {"placeholder": joint.placeholder}
    for name, value in server.trainer.head.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-8)
    for party, model in zip(parties, joint.models, strict=True):
        assert party.macs < party.unpruned_macs
        images = party.train.features
        torch.testing.assert_close(party.model.eval()(images), model.eval()(images), rtol=1e-6, atol=1e-8)
    assert joint.placeholder.detach().abs().min() > 0


def run(built: tuple[HeadServer, list[FeatureParty]], rounds: int, start: int = 0) -> HeadServer:
    for round_index in range(start, rounds):
        built[0].train_round(round_index)
    return built[0]


@pytest.mark.parametrize("labels", ["shared", "server"])
def test_what_is_missing_costs_no_bytes_and_no_macs(build_gaps, labels: str):
    training = {"labels": labels, "local_iterations": 2, "party_dropout": 0.3}
    server, parties = build_gaps(training=training)
    rows = [0] * 4
    frames = [[], [], [], []]  # of each party's embeddings, dense
    for round_index in range(2):
        server.train_round(round_index)
        for shares in server.exchanges.masks:
            counts = [share.count for share in shares]
            rows = [before + new for before, new in zip(rows, counts, strict=True)]
            for k, count in enumerate(counts):
                frames[k].append(dense_frame_size((count, 8)) if count else 0)
    part, total = 5, sum(map(sum, frames))  # 5: a part's header
    exchanges = len(frames[0])
    for k, party in enumerate(parties):
        costs = server.ledger.costs[party.name]
        assert costs.train_macs == costs.unpruned_train_macs == rows[k] * party.macs * 2 * 3
        assert costs.uplink_bytes["embedding"] <= sum(frames[k]) + part * exchanges
        assert costs.dense_uplink_bytes["embedding"] == sum(frames[k]) + part * exchanges
        if labels == "server":
            assert costs.dense_downlink_bytes["gradient"] == sum(frames[k]) + part * exchanges
            assert costs.downlink_bytes["presence"] == 2 * (part + 3 * 16 // 8)
        else:
            assert costs.dense_downlink_bytes["embedding"] == total - sum(frames[k]) + 3 * part * exchanges
            assert "presence" not in costs.downlink_bytes
    assert 0 < rows[3] < rows[2] < rows[0]


def test_missing_test_rows_are_neither_embedded_nor_sent(build_gaps):
    server, parties = build_gaps(
        evaluation={"batch_size": 4},
        models={"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8, "batch_norm": False}},
    )
    server.evaluate()
    assert {int(held_B.sum()) for held_B in parties[3].test.present.split(4)} == {0, 1}
    for party in parties:
        assert party.evaluated.macs == int(party.test.present.sum()) * party.macs
    embeddings = server.joint.without(["party_1"]).embeddings(0, 40)
    assert embeddings["party_1"].isnan().all()
    for party in parties[1:]:
        assert torch.equal(embeddings[party.name].isnan().any(1), ~party.test.present)


def test_a_server_that_wants_rows_that_a_party_lacks_is_refused(build_gaps):
    server, _ = build_gaps(training={"labels": "server"})
    server.exchanges.presence = replace(server.exchanges.presence, held_NK=None)
    with pytest.raises(MessageError, match="party_2 has no row for samples that the server wants; match the tables"):
        server.train_round(0)


def test_each_set_of_parties_is_tested_as_if_the_others_were_away(build_gaps):
    server, _ = build_gaps(evaluation={"subsets": True}, training={"party_dropout": 0.3})
    metrics = run((server, []), 1).evaluate()
    assert [*server.evaluation.subsets] == ["+".join(each) for each in subsets_of([f"party_{k}" for k in range(1, 5)])]
    assert len(server.evaluation.subsets) == 15
    assert server.evaluation.subsets["party_1+party_2+party_3+party_4"]["loss"] == metrics["loss/test"]
    for parties, values in server.evaluation.subsets.items():
        away = set(server.roster.names) - set(parties.split("+"))
        predictions_MC = server.joint.without(away).predictions()
        assert server.trainer.task.metrics(predictions_MC, server.joint.samples.values).items() <= values.items()
        assert metrics[f"accuracy_of/{parties}"] == values["accuracy"]
    assert server.summary()["subsets"] == server.evaluation.subsets
    resumed, _ = build_gaps(training={"party_dropout": 0.3})
    resumed.load_state_dict(server.state_dict())
    assert "subsets" not in resumed.summary()  # they would be those of another model after one more round
    values = {parties: each["accuracy"] for parties, each in server.evaluation.subsets.items()}
    whole = values["party_1+party_2+party_3+party_4"]
    names = server.roster.names
    assert lost_without(values, names, "accuracy")["party_1"] == whole - values["party_2+party_3+party_4"]
    assert lost_without(values, names, "log_loss")["party_1"] == values["party_2+party_3+party_4"] - whole


def test_of_many_parties_those_that_lack_one_are_tested_and_single_ones():
    assert len(subsets_of("abcdef")) == 63
    assert len(set(subsets_of("abcdefgh"))) == 1 + 8 + 8
    assert subsets_of("a") == [("a",)]
