"""What an engine computes, against loops written by hand over torch.func's gradients."""

from dataclasses import replace

import pytest
import torch
from refusals import refuses
from torch import nn
from torch.func import functional_call, grad
from torch.testing import assert_close

from vfl.config import OptimizerConfig
from vfl.horizontal.engines.batched import BatchedEngine
from vfl.horizontal.engines.sequential import SequentialEngine
from vfl.horizontal.flat import FlatModel
from vfl.horizontal.local import LocalTask, batch_loss
from vfl.runs.runtime import Runtime

OPTIMIZERS = {
    "plain": {"momentum": 0.0},
    "momentum": {"momentum": 0.9},
    "decay": {"momentum": 0.5, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}


@pytest.fixture
def model(problem):
    torch.manual_seed(0)
    return FlatModel(problem.build_module())


@pytest.fixture
def trained(problem, model, engine):
    """Train tasks with a fresh engine."""

    def train(*tasks, **optimizer):
        settings = OptimizerConfig.model_validate({"learning_rate": 0.5, "momentum": 0.0} | optimizer)
        runtime = Runtime(torch.device("cpu"))
        return engine.build(model, problem.features, problem.labels, settings, runtime, problem.loss).train(tasks)

    return train


@pytest.fixture
def task(problem, model):
    """Three batches of client 2, the last one smaller."""

    def make(client=1, **fields):
        rows_N = problem.rows[client]
        batches = [rows_N[:4], rows_N[2:6], rows_N[5:8]]
        start_P = model.weights_P.clone()
        return replace(LocalTask(client, rows_N, start_P, model.statistics_Q.clone(), batches, 0.1), **fields)

    return make


@pytest.fixture
def gradient(problem, model):
    """Return the gradient [P] of the mean loss over rows at some weights."""
    names = [name for name, _ in model.module.named_parameters()]

    def compute(weights_P, rows):
        def loss(parameters):
            named = dict(zip(names, parameters, strict=True))
            return batch_loss(functional_call(model.module, named, (problem.features[rows],)), problem.labels[rows])

        flat_P = torch.zeros_like(weights_P)
        gradients = grad(loss)(tuple(part.clone() for part in model.split(weights_P)))
        for place, own in zip(model.split(flat_P), gradients, strict=True):
            place.copy_(own)
        return flat_P

    return compute


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_follow_the_gradient_the_shift_and_the_pull(trained, task, gradient, model, optimizer):
    shift_P = torch.zeros_like(model.weights_P)
    for part in model.split(shift_P):
        part.normal_(generator=torch.Generator().manual_seed(5))
    asked = task(pull=0.7, shift_P=shift_P)
    momentum, decay = optimizer["momentum"], optimizer.get("weight_decay", 0.0)
    weights_P, velocity_P = asked.start_P.clone(), torch.zeros_like(shift_P)
    for rows in asked.batches:
        slope_P = gradient(weights_P, rows) + shift_P + 0.7 * (weights_P - asked.start_P) + decay * weights_P
        velocity_P = momentum * velocity_P + slope_P
        ahead_P = slope_P + momentum * velocity_P if optimizer.get("nesterov") else velocity_P
        weights_P = weights_P - 0.1 * ahead_P
    (result,) = trained(asked, **optimizer)
    assert_close(result.delta_P, weights_P - asked.start_P, rtol=1e-4, atol=1e-6)
    assert (result.client, result.steps, result.samples, result.learning_rate) == (1, 3, 11, 0.1)


def test_reported_losses_and_norms_are_those_of_the_clients_own_loss(trained, task, gradient, problem, model):
    shift_P = torch.zeros_like(model.weights_P)
    model.split(shift_P)[0].fill_(1.0)
    asked = task(pull=2.0, shift_P=shift_P, gradient_norms=True, full_gradient="start")
    (result,) = trained(asked)
    weights_P, norms, losses = asked.start_P.clone(), [], []
    for rows in asked.batches:
        own_P = gradient(weights_P, rows)
        model.load(weights_P, asked.statistics_Q)
        losses.append(batch_loss(model.module(problem.features[rows]), problem.labels[rows]).detach())
        norms.append(own_P.square().sum())
        weights_P = weights_P - 0.1 * (own_P + shift_P + 2.0 * (weights_P - asked.start_P))
    assert_close(result.squared_norms_S, torch.stack(norms), rtol=1e-4, atol=1e-6)
    assert_close(result.loss, torch.stack(losses).mean(), rtol=1e-4, atol=1e-6)
    assert_close(result.full_gradient_P, gradient(asked.start_P, asked.rows_N), rtol=1e-4, atol=1e-6)


def test_what_was_not_asked_for_is_not_there(trained, task):
    (result,) = trained(task())
    assert result.squared_norms_S is None
    assert result.full_gradient_P is None


def test_a_client_is_not_moved_by_who_trains_beside_it(trained, task, engine):
    tasks = [task(0), task(1, pull=0.5), task(3)]
    together = trained(*tasks, momentum=0.9)
    for one, result in zip(tasks, together, strict=True):
        (alone,) = trained(one, momentum=0.9)
        engine.check_same(result.delta_P, alone.delta_P)
        assert result.client == one.client


def test_results_do_not_change_when_the_engine_goes_on(trained, task, problem, model, engine):
    settings = OptimizerConfig(learning_rate=0.1, momentum=0.0)
    own = engine.build(model, problem.features, problem.labels, settings, Runtime(torch.device("cpu")), problem.loss)
    first, second = task(0), task(3)
    (result,) = own.train([first])
    before = [tensor.clone() for tensor in (result.delta_P, result.statistics_Q, first.start_P, result.loss)]
    own.train([second])
    after = [result.delta_P, result.statistics_Q, first.start_P, result.loss]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_padding_stays_zero(trained, task, model):
    (result,) = trained(task(pull=1.0), momentum=0.9, weight_decay=0.1)
    assert torch.count_nonzero(result.delta_P) <= model.weight_count < len(model.weights_P)


def test_running_statistics_are_those_of_the_clients_batches(problem_with_batch_norm, engine):
    problem = problem_with_batch_norm
    torch.manual_seed(0)
    model = FlatModel(problem.build_module())
    rows_N = problem.rows[1]
    start_Q = model.statistics_Q.clone()
    one = LocalTask(1, rows_N, model.weights_P.clone(), start_Q, [rows_N], 0.1, full_gradient="start")
    layer, norm, *_ = model.module.children()
    hidden = layer(problem.features[rows_N]).detach()
    settings = OptimizerConfig(learning_rate=0.1, momentum=0.0)
    built = engine.build(model, problem.features, problem.labels, settings, Runtime(torch.device("cpu")), problem.loss)
    (result,) = built.train([one])
    model.load(one.start_P, result.statistics_Q)
    assert_close(norm.running_mean, 0.1 * hidden.mean(dim=0), rtol=1e-4, atol=1e-6)
    assert_close(norm.running_var, 0.9 + 0.1 * hidden.var(dim=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine_class", [SequentialEngine, BatchedEngine])
def test_frozen_and_unused_layers_stay_as_they_are(engine_class):
    class Partly(nn.Module):
        def __init__(self, frozen: bool) -> None:
            super().__init__()
            self.first, self.last, self.unused = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2)
            self.first.requires_grad_(not frozen)

        def forward(self, x):
            return self.last(torch.relu(self.first(x)))

    model = FlatModel(Partly(frozen=engine_class is SequentialEngine))
    features, labels, rows_N = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1]), torch.arange(6)
    task = LocalTask(0, rows_N, model.weights_P.clone(), model.statistics_Q, [rows_N, rows_N], 0.1, pull=0.5)
    engine = engine_class(model, features, labels, OptimizerConfig(momentum=0.0), Runtime(torch.device("cpu")))
    (result,) = engine.train([replace(task, gradient_norms=True)])
    refuses("models.classifier", lambda: FlatModel(Partly(frozen=True).requires_grad_(False)), "nothing")
    moved = [bool(delta.any()) for delta in model.split(result.delta_P)]
    assert moved == [True] * (len(moved) - 2) + [False, False]
    assert model.weight_count == (16 if engine_class is SequentialEngine else 32)
