"""What is looked at: the weights as they are, with the statistics of a fixed sample; training does not notice."""

import copy

import pytest
import torch
from shorthand import parties_of
from torch import Tensor, nn

from vfl.core import finished_model
from vfl.core.batch_statistics import batch_norms, estimate_statistics, sample_rows
from vfl.core.server import HeadServer
from vfl.runs.runtime import Runtime

PRUNED = {"lightweighting": {"alpha": {1: 0.4}}}


def train(server: HeadServer, rounds: int) -> list[dict[str, float]]:
    return [server.train_round(index) | server.evaluate() for index in range(rounds)]


def inputs_of_norms(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Return the input [C, N] of every batch normalization in evaluation mode, float64."""
    seen: dict[str, Tensor] = {}
    for name, layer in batch_norms(model).items():
        layer.register_forward_hook(
            lambda _, args, __, name=name: seen.update({name: args[0].double().transpose(0, 1).flatten(1)})
        )
    with torch.no_grad():
        model.eval()(inputs)
    return seen


@pytest.mark.parametrize("sections", [{}, PRUNED, {"channels_last": True, "precision": "bfloat16"}])
def test_statistics_are_the_exact_mean_and_variance_of_each_layers_input_over_the_sample(build, sections, monkeypatch):
    monkeypatch.setattr(finished_model, "STATISTICS_SAMPLES", 29)
    server = build(**sections)
    train(server, 2)
    for party in parties_of(server):
        sample = party.train.features[sample_rows(3, 48, 29)]
        with torch.autocast("cpu", torch.bfloat16, enabled="precision" in sections):
            seen = inputs_of_norms(party.evaluated.finished_copy(), sample)
        statistics = party.evaluated.finished.statistics
        assert statistics.keys() == {f"{name}.running_{what}" for name in seen for what in ("mean", "var")}
        for name, values_CN in seen.items():
            assert torch.allclose(statistics[f"{name}.running_mean"].double(), values_CN.mean(1), atol=1e-6)
            assert torch.allclose(statistics[f"{name}.running_var"].double(), values_CN.var(1, correction=0), rtol=1e-4)


def test_statistics_equal_those_of_training_mode_on_the_sample_as_one_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(20))
    inputs = 100 + torch.randn(7, 3, 4, 4)  # far from 0: sums of squares would cancel
    oracle = copy.deepcopy(model).double()
    for layer in batch_norms(oracle).values():
        layer.momentum = 1.0
    oracle.train()(inputs.double())
    found = estimate_statistics(model, [inputs], Runtime(torch.device("cpu")))
    for name, values in (("1", 7 * 4), ("4", 7)):
        unbiased_C = found[f"{name}.running_var"].double() * values / (values - 1)
        mean_C, variance_C = (oracle.get_buffer(f"{name}.running_{what}") for what in ("mean", "var"))
        assert torch.allclose(found[f"{name}.running_mean"].double(), mean_C, rtol=1e-4)
        assert torch.allclose(unbiased_C, variance_C, rtol=1e-3)


@pytest.mark.release
def test_no_bit_of_training_depends_on_what_is_looked_at(build, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(finished_model, "STATISTICS_SAMPLES", 10)
    seeing: HeadServer = build(**PRUNED)
    train(seeing, 3)
    blind: HeadServer = build(**PRUNED)
    monkeypatch.setattr(blind, "_test_pruning", dict)
    for index in range(3):
        blind.train_round(index)
    seen, unseen = seeing.summary(), blind.summary()
    for key in ("model_digest", "uplink_bytes", "downlink_bytes", "train_macs", "unpruned_train_macs"):
        assert seen[key] == unseen[key]
    assert seen["finished_model_digest"] != seen["model_digest"]
    states = [[party.model.state_dict() for party in parties_of(server)] for server in (seeing, blind)]
    torch.testing.assert_close(*states, rtol=0, atol=0)
    assert unseen["evaluation_macs"] < seen["evaluation_macs"]


def test_around_a_pruning_nothing_but_the_pruning_is_seen(build):
    # Steps of no size: what is seen right after the pruning is what is left at the round's end.
    still = {"rounds": 3, "optimizer": {"learning_rate": {0: 0.05, 2: 1e-12}, "momentum": 0.0}}
    lightweighting = {"alpha": {"party_1": {2: 0.6}, "party_3": 0.3}}
    server = build(training=still, lightweighting=lightweighting)
    rows = train(server, 3)
    for measure in ("accuracy", "loss"):
        assert rows[2][f"{measure}/test_before_pruning"] == rows[1][f"{measure}/test"]
    assert rows[2]["loss/test_after_pruning"] != rows[2]["loss/test_before_pruning"]
    assert rows[2]["loss/test_after_pruning"] == pytest.approx(rows[2]["loss/test"], rel=1e-5)
    assert not any("pruning" in tag for row in rows[:2] for tag in row)


def test_a_party_without_batch_normalization_is_looked_at_as_it_is(build):
    feature = {"kind": "mlp", "width": 0.05, "embedding_size": 8, "batch_norm": False}
    server = build(models={"feature": feature}, **PRUNED)
    assert "loss/test_after_pruning" in train(server, 2)[1]
    summary = server.summary()
    assert summary["finished_model_digest"] == summary["model_digest"]
