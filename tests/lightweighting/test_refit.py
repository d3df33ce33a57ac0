"""Refitting after a pruning: the closed form, structures of all kinds, what stays, and what it costs."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from shorthand import parties_of, release
from torch import Tensor, nn

from vfl.compression.pruning import StructuredPruner
from vfl.compression.refit import RIDGE, Refit
from vfl.core.costs.ledger import Workload
from vfl.core.costs.reports import check_report
from vfl.core.server import HeadServer
from vfl.messages.control import RoundReport, RoundStart
from vfl.messages.messages import MessageError


class Chain(nn.Module):
    """Convolutions with and without bias, a stride, padding of two kinds, then linear layers after a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 6, 3, stride=2, padding=1, padding_mode="replicate")
        self.c = nn.Conv2d(6, 5, (1, 3), dilation=(1, 2), bias=False)
        self.d = nn.Linear(5 * 5 * 1, 7)
        self.e = nn.Linear(7, 4)

    def forward(self, x: Any) -> Any:
        x = self.c(self.b(self.a(x).relu()).relu()).relu()
        return self.e(self.d(x.flatten(1)).relu())


class Residual(nn.Module):
    """A residual sum, a depthwise convolution and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1)
        self.left = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.right = nn.Conv2d(8, 6, 1)
        self.last = nn.Linear(14, 4)

    def forward(self, x: Any) -> Any:
        x = self.stem(x).relu()
        x = (x + self.left(x)).relu()
        both = torch.cat([self.deep(x).relu(), self.right(x).relu()], dim=1)
        return self.last(both.mean(dim=(2, 3)))


def submodule(model: nn.Module, name: str) -> Any:
    return model.get_submodule(name)


def inputs_of(model: nn.Module, layer: nn.Module, images: Tensor) -> Tensor:
    """Return what a layer reads when the model embeds images."""
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(images)
    hook.remove()
    return seen[0]


def test_weights_are_those_of_least_squares_at_the_whole_layers_outputs():
    torch.manual_seed(0)
    model, images = Chain().double(), torch.randn(300, 2, 9, 9, dtype=torch.float64)
    whole = copy.deepcopy(model)
    inputs = {name: inputs_of(whole, submodule(whole, name), images) for name in "bde"}
    pruner = StructuredPruner(model, images)
    cut = copy.deepcopy((model, pruner))
    refit = Refit(lambda: model(images))
    pruner.prune_to(0.5, refit=refit)
    cut[1].prune_to(0.5)
    removed = pruner.state_dict()["history"][0]["removed"]
    for name, before, patches_per_channel in (("b", "a", 9), ("d", "c", 5), ("e", "d", 1)):
        layer, old = submodule(whole, name), submodule(cut[0], name)
        if name == "b":
            padded = F.pad(inputs["b"], (1, 1, 1, 1), "replicate")
            patches = F.unfold(padded, 3, stride=2).transpose(1, 2).flatten(0, 1)
        else:
            patches = inputs[name]
        gone = torch.tensor(removed[before])
        lost = (torch.arange(patches.shape[1]) // patches_per_channel).unsqueeze(1).eq(gone).any(dim=1)
        left = [each for each in range(len(layer.weight)) if each not in removed.get(name, [])]
        whole_weight = layer.weight.detach().flatten(1)[left]
        target = patches[:, lost] @ whole_weight[:, lost].t()
        kept = torch.cat([patches[:, ~lost], torch.ones(len(patches), 1, dtype=torch.float64)], dim=1)
        # The ridge as further rows of an ordinary problem, solved by another method than the product's.
        size = RIDGE * patches[:, ~lost].square().sum(dim=0).mean()
        rows = torch.eye(kept.shape[1], dtype=torch.float64)[:-1] * size.sqrt()
        zeros = torch.zeros(len(rows), target.shape[1], dtype=torch.float64)
        more = torch.linalg.lstsq(torch.cat([kept, rows]), torch.cat([target, zeros]), driver="gelsd").solution
        got = submodule(model, name)
        expected = old.weight.detach().flatten(1) + more[:-1].t()
        torch.testing.assert_close(got.weight.detach().flatten(1), expected, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(got.bias.detach(), old.bias.detach() + more[-1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("make", [Chain, Residual])
def test_outputs_are_nearer_to_the_whole_models(make: type[nn.Module]):
    torch.manual_seed(1)
    model, images, others = make(), torch.randn(512, 2, 9, 9), torch.randn(64, 2, 9, 9)
    with torch.no_grad():
        expected = model(others)
    cut = copy.deepcopy(model)
    StructuredPruner(cut, images).prune_to(0.5)
    pruner = StructuredPruner(model, images)
    pruner.prune_to(0.5, refit=Refit(lambda: model(images)))
    with torch.no_grad():
        errors = [(each(others) - expected).square().mean() for each in (model, cut)]
    assert errors[0] < 0.5 * errors[1]
    assert {name: each.shape for name, each in model.state_dict().items()} == {
        name: each.shape for name, each in cut.state_dict().items()
    }


@pytest.mark.parametrize("kind", ["vgg11", release("vgg16")])
def test_a_vggs_embeddings_of_other_rows_are_nearer_to_the_whole_models(build, kind: str):
    """As they are evaluated: statistics are those of each model's weights."""
    models = {"feature": {"kind": kind, "width": 0.25, "embedding_size": 8}, "head": {"hidden": [16]}}
    server: HeadServer = build(
        models=models,
        data={"train_samples": 256, "partition": {"rows": 1, "columns": 1}},  # with 48 rows VGG16 gains little
        lightweighting={"pruning": {"refit": True}},
    )
    (party,) = parties_of(server)
    rows = [party.test.features]
    whole = party.evaluated.embed("finished", rows, 0.0)
    refitted = party.evaluated.embed("pruned", rows, 0.4)
    party.evaluated.forget()
    assert party.evaluated.pruner is not None
    party.evaluated.pruner.refits = False
    cut = party.evaluated.embed("pruned", rows, 0.4)
    errors = [float((each - whole).square().mean()) for each in (refitted, cut)]
    assert errors[0] < 0.8 * errors[1]


def test_a_pruning_of_dead_filters_changes_no_bit():
    torch.manual_seed(2)
    model, images = Residual(), torch.randn(64, 2, 9, 9)
    assert model.right.bias is not None
    with torch.no_grad():
        for name in ("stem", "left", "deep"):  # coupled by the sum
            for tensor in submodule(model, name).parameters():
                tensor[:4] = 0
        model.right.weight[:3] = model.right.bias[:3] = 0
    cut = copy.deepcopy(model)
    StructuredPruner(cut, images).prune_to(0.5)
    pruner = StructuredPruner(model, images)
    pruner.prune_to(0.5, refit=Refit(lambda: model(images)))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, cut.state_dict()[name]), name


def test_frozen_layers_and_infinite_inputs_stay_as_cut():
    torch.manual_seed(3)
    for what in ("frozen", "infinite"):
        model, images = Chain(), torch.randn(32, 2, 9, 9)
        if what == "frozen":
            model.requires_grad_(False)
        sample = images if what == "frozen" else images / 0
        cut = copy.deepcopy(model)
        StructuredPruner(cut, images).prune_to(0.5)
        StructuredPruner(model, images).prune_to(0.5, refit=Refit(lambda model=model, sample=sample: model(sample)))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), cut.parameters(), strict=True)), what


def test_bfloat16_solves_in_the_digits_of_float32():
    """Of inputs that depend on each other, so that sums in bfloat16 could not be solved for."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 8))
    rows = torch.randn(512, 4) @ torch.randn(4, 64)

    def embed_sample() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(rows)

    expected = model(rows).detach()
    cut = copy.deepcopy(model)
    StructuredPruner(cut, rows).prune_to(0.5)
    StructuredPruner(model, rows).prune_to(0.5, refit=Refit(embed_sample))
    errors = [(each(rows) - expected).square().mean() for each in (model, cut)]
    assert errors[0] < 0.1 * errors[1]


REFIT = {"alpha": {1: 0.3, 3: 0.6}, "pruning": {"refit": True}}


def solved_macs(layer: Any, whole: Any, patches: int) -> int:
    """Multiply-accumulates of a layer's least squares: products, what was lost, factor, two solutions."""
    bias = int(layer.bias is not None)
    read, kept = whole.weight[0].numel() + bias, layer.weight[0].numel() + bias
    outputs, lost = len(layer.weight), read - kept
    return patches * read**2 + kept * lost * outputs + kept**3 // 6 + kept**2 * outputs


@pytest.mark.release
def test_costs_are_counted_in_the_rounds_that_prune(build):
    models = {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8}, "head": {"hidden": [16]}}
    server: HeadServer = build(models=models, lightweighting=REFIT)
    cut: HeadServer = build(models=models, lightweighting=REFIT | {"pruning": {"refit": False}})
    parties, reported = parties_of(server), {"refit_macs": 0}
    for round_index in range(4):
        wholes = {party.name: copy.deepcopy(party.model) for party in parties}
        macs, spent = {party.name: party.macs for party in parties}, copy.deepcopy(server.ledger.costs)
        for each in (server, cut):
            each.train_round(round_index)
        for party in parties:
            report = server.reports.last[party.name]
            now, then = server.ledger.costs[party.name].train_macs, spent[party.name].train_macs
            assert now - then == report.train_macs + (report.refit_macs or 0)
            assert report.train_macs == cut.reports.last[party.name].train_macs
            if round_index in (0, 2):
                assert report.refit_macs is None
                continue
            expected = 48 * macs[party.name]  # the sample is all training rows
            for name, pixels in (("features.4", 64), ("features.8", 16), ("embedding", 1)):
                layer, whole = (submodule(model, name) for model in (party.model, wholes[party.name]))
                expected += solved_macs(layer, whole, 48 * pixels)
            assert report.refit_macs == expected
            reported["refit_macs"] += expected
    assert reported["refit_macs"] == server.summary()["train_macs"] - cut.summary()["train_macs"]


def test_the_test_right_after_a_pruning_is_of_the_refitted_model(build):
    """Of the model that the party then trains on, whose statistics are estimated alike."""
    server: HeadServer = build(lightweighting=REFIT)
    server.train_round(0)
    party = parties_of(server)[0]
    party.alpha = 0.3
    rows = party.test.features
    before = party.evaluated.macs
    tested = party.evaluated.embed("pruned", [rows], 0.3)
    spent = party.evaluated.macs - before
    assert party.prune()
    party.evaluated.forget()
    torch.testing.assert_close(tested, party.evaluated.embed("finished", [rows], 0.3), rtol=0, atol=0)
    assert spent > party.meter.refit_macs > 0


def test_a_refit_of_a_model_that_was_never_pruned_is_refused():
    report = RoundReport(
        alpha=0, beta=0, macs_per_sample=1, parameters=1, train_macs=3, unpruned_train_macs=3, refit_macs=1,
        train_time_s="0.000000e+00", omega=0, psi=0,
    )  # fmt: skip
    with pytest.raises(MessageError, match="refit_macs 1 of a model never pruned"):
        check_report(report, RoundStart(alpha=0, beta=0), None, Workload(1, 1), [1], 1.0)
