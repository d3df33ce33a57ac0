"""Which engine is built, and what cannot be stacked."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from refusals import refused
from shorthand import build_classifier, parse_horizontal
from torch import Tensor, nn

from vfl.horizontal.build import build_engine
from vfl.horizontal.engines.batched import BatchedEngine
from vfl.horizontal.engines.distributed import share_out
from vfl.horizontal.engines.sequential import SequentialEngine
from vfl.horizontal.engines.stacked import stack_model
from vfl.horizontal.flat import FlatModel
from vfl.runs.runtime import Runtime
from vfl.runs.torchrun_group import SingleProcess


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight


class Owner(nn.Module):
    """Has a parameter of its own beside a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.ones(3))
        self.layer = layer


class Coded(nn.Module):
    """A linear layer within code of its own."""

    def __init__(self, code: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.code = nn.Linear(3, 3), code

    def forward(self, samples: Tensor) -> Tensor:
        return self.code(self.layer, samples)


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Bilinear(3, 3, 3)

    def forward(self, samples: Tensor) -> Tensor:
        return self.both(samples, samples)


def build_around(module: nn.Module, engine: str):
    config = parse_horizontal({"name": "choice", "mode": "horizontal", "horizontal": {"engine": engine}})
    runtime, model = Runtime(torch.device("cpu"), None), FlatModel(module)
    features, labels = torch.linspace(-1, 2, 15).reshape(5, 3).sin(), torch.arange(5) % 3
    return build_engine(config, model, features, labels, runtime, SingleProcess(), lambda done, total: None)


def build(kind: str, engine: str, precision: str = "float32"):
    shape = (12,) if kind == "char_lstm" else (1, 16, 16)
    config = parse_horizontal({"name": "choice", "mode": "horizontal", "horizontal": {"engine": engine}})
    features, labels = torch.zeros(4, *shape), torch.zeros(4, dtype=torch.int64)
    runtime = Runtime(torch.device("cpu"), torch.bfloat16 if precision == "bfloat16" else None)
    model = FlatModel(build_classifier(kind, input_shape=shape, classes=5))
    return build_engine(config, model, features, labels, runtime, SingleProcess(), lambda done, total: None)


@pytest.mark.parametrize(
    ("kind", "engine", "built"),
    [
        ("mlp", "auto", BatchedEngine),
        ("logistic", "auto", BatchedEngine),
        ("mlp", "sequential", SequentialEngine),
        ("cnn_mcmahan", "auto", SequentialEngine),
        ("cnn_mcmahan", "batched", BatchedEngine),
        ("char_lstm", "auto", SequentialEngine),
    ],
)
def test_the_faster_engine_is_chosen_and_a_named_one_is_built(kind, engine, built):
    assert type(build(kind, engine)) is built


def test_auto_does_not_stack_what_it_cannot():
    assert type(build("mlp", "auto", "bfloat16")) is SequentialEngine


@pytest.mark.parametrize(
    ("kind", "precision", "named"),
    [
        ("char_lstm", "float32", ("LSTM",)),
        ("mlp", "bfloat16", ("precision=float32",)),
    ],
)
def test_batched_on_what_it_cannot_stack_is_one_line(kind, precision, named):
    with refused("horizontal.engine", *named):
        build(kind, "batched", precision)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), ("dropout",)),
        (nn.Sequential(nn.LSTM(3, 3)), ("LSTM",)),
        (Tied(), ("share",)),
        (nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)), ("frozen",)),
        (nn.Sequential(nn.BatchNorm1d(3, momentum=None)), ("momentum=None",)),
        (Owner(nn.Dropout(0.5)), ("Dropout",)),
        (Owner(nn.BatchNorm1d(3)), ("buffers",)),
    ],
)
def test_layers_that_would_compute_something_else_are_refused(module, reason):
    with refused("horizontal.engine", *reason):
        stack_model(FlatModel(module))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Coded(lambda layer, samples: F.dropout(layer(samples), 0.5)), ("draws",)),
        (lambda: Coded(lambda layer, samples: F.linear(samples, layer.weight)), ("asks",)),
        (lambda: Coded(lambda layer, samples: layer(samples - samples.mean(dim=0))), ("independently",)),
        (Pairs, ("asks",)),
    ],
)
def test_code_that_cannot_be_stacked_is_found_by_one_pass(make: Callable[[], nn.Module], reason: tuple[str, ...]):
    with refused("horizontal.engine", *reason):
        build_around(make(), "batched")
    assert type(build_around(make(), "auto")) is SequentialEngine


def test_the_comparison_draws_nothing_and_changes_no_weight():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    state, before = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    assert type(build_around(module, "batched")) is BatchedEngine
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


def test_a_stacked_module_leaves_the_original_as_it_was():
    module = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    layers = list(module.modules())
    stack_model(FlatModel(module))
    assert all(one is other for one, other in zip(layers, module.modules(), strict=True))


def test_work_is_shared_out_largest_first_to_the_least_loaded():
    assert share_out([5, 1, 9, 4, 4], 2) == [[2, 4], [0, 3, 1]]
    assert share_out([1, 1], 3) == [[0], [1], []]
    assert share_out([], 2) == [[], []]
