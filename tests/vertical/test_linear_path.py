"""The linear path: a sum over owners that no hidden layer touches, part of the embeddings and of the head."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shorthand import assert_models, build_here, reference_of, release
from tiny_training import check_resumed_run
from torch import Tensor

from vfl.core.export_model import export_model
from vfl.core.feature_models import check_feature_model
from vfl.core.local import InProcess
from vfl.core.presence import batch_rows
from vfl.models.features import Features, ModelSpec, TableFeatures
from vfl.models.mlp import MLP, MemberHeads
from vfl.models.table import MemberModels, TableMLP, mlp

TABLE = TableFeatures("table", (5,), (2, 7))
ROWS = torch.cat([torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), torch.ones(9, 2)], dim=1)


def settings(**more: Any) -> dict[str, Any]:
    """Return two owners of the breast cancer table whose models have a linear path."""
    values: dict[str, Any] = {
        "name": "linear",
        "threads": 1,
        "data": {"dataset": {"kind": "breast_cancer"}},
        "models": {
            "feature": {"embedding_size": 4, "width": 0.1, "batch_norm": False},
            "head": {"hidden": [4]},
            "linear_path": True,
        },
        "training": {"rounds": 2, "steps_per_round": 3, "batch_size": 32, "optimizer": {"learning_rate": 0.05}},
    }
    return {name: value | more.get(name, {}) if isinstance(value, dict) else value for name, value in values.items()}


def built(**more: Any) -> InProcess:
    return build_here(settings(**more))


def silence_hidden_layers(model: torch.nn.Module) -> None:
    """Let a model's hidden layers add nothing to its output."""
    for module in model.modules():
        last = module.output if isinstance(module, MLP) else module.embedding if isinstance(module, TableMLP) else None
        if last is not None:
            torch.nn.init.zeros_(last.weight)
            torch.nn.init.zeros_(last.bias)


def linear_of(model: Any) -> Tensor:
    return model.linear.weight


@given(seed=st.integers(0, 99), members=st.sampled_from([1, 2]))
def test_without_hidden_layers_it_is_a_linear_model_of_all_columns(seed: int, members: int):
    torch.manual_seed(seed)
    spec = ModelSpec(TableFeatures("table", (3,)), 4, width=0.1, members=members, linear_path=True)
    models = [mlp(spec).eval() for _ in range(2)]
    heads = [MLP(8 // members, [5], 2, linear_path=True) for _ in range(members)]
    head = heads[0] if members == 1 else MemberHeads(heads, [4, 4])
    for each in (*models, head):
        silence_hidden_layers(each)
    owned = [cast(Any, each).members if isinstance(each, MemberModels) else [each] for each in models]
    for model in (part for parts in owned for part in parts):
        torch.nn.init.normal_(linear_of(model))
    rows = [torch.randn(6, 3) for _ in models]
    found = head(torch.cat([model(row) for model, row in zip(models, rows, strict=True)], dim=1)).reshape(6, members, 2)
    for member, top in enumerate(heads):
        below = torch.block_diag(*(linear_of(parts[member]) for parts in owned))
        expected = torch.cat(rows, dim=1) @ (linear_of(top) @ below).T
        torch.testing.assert_close(found[:, member], expected, rtol=1e-4, atol=1e-5)


def test_it_begins_without_an_owners_part_and_learns_one():
    together = built()
    assert not any(linear_of(party.model).any() for party in together.parties)
    together.server.train_round(0)
    assert all(linear_of(party.model).any() for party in together.parties)


@pytest.mark.parametrize("labels", ["shared", "server"])
def test_training_equals_algorithm_1(labels: Any):
    training = {"labels": labels, "local_iterations": 2, "optimizer": {"learning_rate": 0.05, "momentum": 0.9}}
    server = built(training=training).server
    reference = reference_of(server)
    samples = len(server.exchanges.labels_N)
    server.train_round(0)
    for rows_B in batch_rows(server.config.seed, 0, 3, samples, 32):
        reference.exchange(rows_B)
    assert_models(server, reference.models, reference.head, rtol=1e-4, atol=1e-6)


@pytest.mark.release
@pytest.mark.parametrize("batch_norm", [True, release(False)])
@pytest.mark.parametrize(
    "features",
    [
        pytest.param(TABLE, id="table"),
        pytest.param(TableFeatures("table", (3,)), id="numbers", marks=pytest.mark.release),
        pytest.param(Features("images", (1, 2, 2)), id="images", marks=pytest.mark.release),
    ],
)
def test_a_model_with_it_keeps_the_contract_of_feature_models(features: Features, batch_norm: bool):
    rows = torch.randn(9, 1, 2, 2) if features.kind == "images" else ROWS[:, : features.shape[0]]
    model = mlp(ModelSpec(features, 4, width=0.2, batch_norm=batch_norm, dropout=0.2, linear_path=True))
    torch.nn.init.normal_(linear_of(model))  # as after a training: 0 would hide what it adds
    check_feature_model(model, rows)


@pytest.mark.release
def test_owner_and_head_are_exported_with_it(tmp_path: Path):
    model = mlp(ModelSpec(TABLE, 4, width=0.2, linear_path=True)).eval()
    torch.nn.init.normal_(linear_of(model))
    head = MLP(4, [3], 2, linear_path=True)
    for name, each, inputs in (("owner", model, ROWS), ("head", head, torch.randn(9, 4))):
        assert max(export_model(each, (inputs,), tmp_path, name).differences.values()) < 1e-5


def test_a_run_is_resumed_to_the_same_bits_and_replays_its_prunings(tmp_path: Path):
    check_resumed_run(settings() | {"lightweighting": {"alpha": 0.4}}, tmp_path)
