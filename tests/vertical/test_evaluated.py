"""What is looked at: finished weights with the statistics of a fixed sample, and each row as if it were alone."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shorthand import parties_of
from torch import Tensor, nn

from vfl.core import finished_model
from vfl.core.batch_statistics import batch_norms, estimate_statistics, sample_rows
from vfl.core.row_by_row import SIZES, RowByRow, each_alone
from vfl.core.server import HeadServer
from vfl.models.features import ModelSpec, TableFeatures
from vfl.models.mlp import MLP, MemberHeads, PlaceholderMLP
from vfl.models.table import TableMLP
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


@pytest.mark.parametrize("width", [16, 51])  # rows of 51 numbers begin at changing places of a cache line
@given(order=st.permutations(range(70)), rows=st.integers(1, 70))
def test_a_rows_result_does_not_depend_on_the_rows_beside_it(width, order, rows):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(13, width), torch.nn.ReLU(), torch.nn.Linear(width, 8))
    whole_NW = torch.randn(70, 13)
    chosen = list(order)[:rows]
    with torch.inference_mode():
        expected = each_alone(lambda inputs: model(*inputs), [whole_NW])
        assert torch.equal(each_alone(lambda inputs: model(*inputs), [whole_NW[chosen]]), expected[chosen])
        assert torch.allclose(expected, model(whole_NW), atol=1e-5)


def table_model(width: float) -> torch.nn.Module:
    return TableMLP(ModelSpec(TableFeatures("table", (13,), (5, 7)), 16, width))


def rows_of(model: torch.nn.Module, rows: int, seed: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    inputs_BI = torch.randn(rows, 12 if isinstance(model, MemberHeads) else 13, generator=draw)
    if isinstance(model, TableMLP):
        inputs_BI[:, -2:] = torch.randint(0, 5, (rows, 2), generator=draw).float()
    if isinstance(model, PlaceholderMLP):
        inputs_BI[::3, :5] = torch.nan
    return [inputs_BI]


def pruned_model() -> torch.nn.Module:
    """A linear layer that lost weights and keeps the number of those before, as one that a checkpoint has shaped."""
    layer = torch.nn.Linear(26, 6)
    layer.weight = torch.nn.Parameter(layer.weight[:, :13].detach().contiguous())
    return layer


MODELS = {
    "pruned": pruned_model,
    "narrow": lambda: MLP(13, [51], 8),
    "wide": lambda: MLP(13, [256, 128], 16),
    "head": lambda: PlaceholderMLP(13, [32], 2),
    "linear": lambda: torch.nn.Linear(13, 1),
    "members": lambda: MemberHeads([MLP(6, [40], 3), MLP(6, [40], 3)], [12]),
    "table": lambda: table_model(0.5),
    "odd table": lambda: table_model(0.31),
    "linear path": lambda: TableMLP(ModelSpec(TableFeatures("table", (13,), (5, 7)), 16, linear_path=True)),
    "head with a linear path": lambda: PlaceholderMLP(13, [32], 2, linear_path=True),
    "without bias": lambda: torch.nn.Sequential(torch.nn.Linear(13, 96, bias=False), torch.nn.ReLU()),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_at_once_have_the_bits_of_each_alone(name: str):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    inputs = rows_of(model, 2 * SIZES[0] + 3, 1)
    with torch.inference_mode():
        expected = each_alone(lambda given: model(*given), inputs)
        by_row = RowByRow(copy.deepcopy(model), lambda own, *given: own(*given), lambda rows: rows_of(model, rows, 2))
        for rows in (*range(1, 20), 63, 64, 65, len(expected)):
            assert torch.equal(by_row([tensor[-rows:] for tensor in inputs]), expected[-rows:]), rows


@pytest.mark.parametrize("reads_others", [False, True])
def test_rows_are_computed_at_once_only_by_a_model_that_reads_each_alone(reads_others: bool):
    sizes: list[int] = []

    def forward(_model: torch.nn.Module, rows_BI: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows_BI))
        return rows_BI - rows_BI.mean(dim=0) if reads_others else 2 * rows_BI

    by_row = RowByRow(torch.nn.Identity(), forward, lambda rows: [torch.randn(rows, 3)])
    rows_BI = torch.randn(66, 3)
    for _ in range(2):
        sizes.clear()
        assert torch.equal(by_row([rows_BI]), each_alone(lambda given: forward(torch.nn.Identity(), *given), [rows_BI]))
    assert sizes[: -len(rows_BI)] == ([1] * 66 if reads_others else [64, 2])


def test_a_row_that_gets_noise_is_computed_by_itself(build, monkeypatch: pytest.MonkeyPatch):
    server = build(
        models={"feature": {"kind": "mlp", "width": 0.2, "embedding_size": 8}, "head": {"hidden": [16]}},
        training={"labels": "server"},
        privacy={"embeddings": {"kind": "gaussian", "strength": 0.1}},
    )
    party, sizes = parties_of(server)[0], list[int]()
    whole = Runtime.forward

    def counted(runtime, call, *inputs):
        sizes.append(len(inputs[0]))
        return whole(runtime, call, *inputs)

    monkeypatch.setattr(Runtime, "forward", counted)
    party.embed_new(party.test, torch.arange(16))
    assert sizes == [48] + [1] * 16  # after the statistics of all training rows
