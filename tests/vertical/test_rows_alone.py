import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shorthand import parties_of

from vfl.core.row_by_row import SIZES, RowByRow, each_alone
from vfl.models.features import ModelSpec, TableFeatures
from vfl.models.mlp import MLP, MemberHeads, PlaceholderMLP
from vfl.models.table import TableMLP
from vfl.runs.runtime import Runtime


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
