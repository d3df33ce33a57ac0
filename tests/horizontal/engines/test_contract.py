"""What every engine must compute: local training as its definition says, whoever else is in the cohort."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from shorthand import IMAGE_CLASSIFIERS, build_classifier, examples, release
from torch import Tensor, nn

from vfl.config import OptimizerConfig
from vfl.horizontal.engines import batched
from vfl.horizontal.engines.batched import BatchedEngine
from vfl.horizontal.engines.distributed import DistributedEngine
from vfl.horizontal.engines.sequential import Engine, SequentialEngine
from vfl.horizontal.flat import FlatModel
from vfl.horizontal.local import LocalResult, LocalTask
from vfl.models.small_map import SmallMapConv2d
from vfl.runs.runtime import Runtime
from vfl.runs.torchrun_group import Workers

ROWS = 48
CPU = Runtime(torch.device("cpu"))
PLAIN = OptimizerConfig(learning_rate=0.1, momentum=0.0)


class Shifted(nn.Module):
    """A module that owns parameters, one of them a single number, beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.shift = nn.Parameter(torch.randn(12))
        self.layer = nn.Linear(12, 3)

    def forward(self, samples: Tensor) -> Tensor:
        return self.layer(samples.flatten(1) * self.scale + self.shift)


class Twice(nn.Module):
    """A module that calls one layer twice, whose gradients autograd adds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, samples: Tensor) -> Tensor:
        return self.last(self.layer(torch.tanh(self.layer(samples.flatten(1)))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 3, bias=False))


def group_norm_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 2, padding=1, groups=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)
    )


def batch_norm_cnn() -> nn.Module:
    return nn.Sequential(
        SmallMapConv2d(3, 4, bias=False),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 3),
        nn.BatchNorm1d(3),
    )


def grouped_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 2, groups=3), nn.Tanh(), nn.Flatten(), Shiftless(6), nn.Linear(6, 3))


class Shiftless(nn.Module):
    """Normalises without any parameter, and hands None on where a child may be."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, width, affine=False)
        self.nothing = None
        self.register_module("absent", None)

    def forward(self, samples: Tensor) -> Tensor:
        return self.norm(samples)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "group_norm_cnn": group_norm_cnn,
    "batch_norm_cnn": batch_norm_cnn,
    "grouped_cnn": grouped_cnn,
    "shifted": Shifted,
    "twice": Twice,
}


class OneWorker(Workers):
    """The first of one worker, without a process group."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1

    def add_up(self, values: Tensor, state: Sequence[int]) -> Tensor:
        return values


def build_distributed(model: FlatModel, *arguments: Any) -> Engine:
    return DistributedEngine(SequentialEngine(model, *arguments), model, OneWorker())


ENGINES: dict[str, Callable[..., Engine]] = {
    "sequential": SequentialEngine,
    "batched": BatchedEngine,
    "distributed": build_distributed,
}


each_engine = pytest.mark.parametrize("build", ENGINES.values(), ids=ENGINES)


@dataclass(frozen=True, repr=False)
class World:
    """A model and data; float64, so that engines differ by rounding only where they really do the same."""

    model: FlatModel
    features: Tensor
    labels: Tensor

    def engine(self, build: Callable[..., Engine], optimizer: OptimizerConfig = PLAIN, **options: Any) -> Engine:
        return build(self.model, self.features, self.labels, optimizer, CPU, **options)

    def task(self, client: int, sizes: Sequence[int], **options: Any) -> LocalTask:
        """A client with random rows in batches of these sizes, from random weights."""
        draw = torch.Generator().manual_seed(client)
        rows_N = torch.randperm(ROWS, generator=draw)[: max(8, max(sizes))]
        batches = [rows_N[torch.randperm(len(rows_N), generator=draw)[:size]] for size in sizes]
        start_P = self.random_weights(client)
        return LocalTask(client, rows_N, start_P, self.model.statistics_Q + 0.1 * client, batches, 0.1, **options)

    def random_weights(self, seed: int) -> Tensor:
        """Vectors with zeros between the parameters, as all vectors have."""
        draw = torch.Generator().manual_seed(seed)
        vector_P = torch.zeros_like(self.model.weights_P)
        for place in self.model.split(vector_P):
            place.copy_(0.5 * torch.randn(place.shape, generator=draw, dtype=vector_P.dtype))
        return vector_P


def make_world(kind: str) -> World:
    torch.manual_seed(7)
    features = torch.randn(ROWS, 3, 2, 2, dtype=torch.float64)
    return World(FlatModel(MODELS[kind]().double()), features, torch.randint(3, (ROWS,)))


def by_definition(world: World, task: LocalTask, optimizer: OptimizerConfig) -> LocalResult:
    """SGD on F(y) + <shift, y> + pull / 2 |y - start|^2, differentiated as written."""
    module = copy.deepcopy(world.model.module).train()
    twin = FlatModel(module)
    full_gradient_P = None

    def full_gradient(weights_P: Tensor) -> Tensor:
        twin.load(weights_P, task.statistics_Q)
        loss = F.cross_entropy(module(world.features[task.rows_N]), world.labels[task.rows_N])
        return flat(twin, torch.autograd.grad(loss, twin.parameters))

    if task.full_gradient == "start":
        full_gradient_P = full_gradient(task.start_P)
    twin.load(task.start_P, task.statistics_Q)
    settings = optimizer.model_dump(include={"momentum", "weight_decay", "nesterov"})
    sgd = torch.optim.SGD(twin.parameters, lr=task.learning_rate, **settings)
    losses, norms = [], []
    for rows_B in task.batches:
        loss = F.cross_entropy(module(world.features[rows_B]), world.labels[rows_B])
        losses.append(loss.detach())
        gradients = torch.autograd.grad(loss, twin.parameters, retain_graph=True)
        norms.append(flat(twin, gradients).square().sum())
        for parameter, start in zip(twin.parameters, twin.split(task.start_P), strict=True):
            loss = loss + task.pull / 2 * (parameter - start).square().sum()
        if task.shift_P is not None:
            for parameter, shift in zip(twin.parameters, twin.split(task.shift_P), strict=True):
                loss = loss + (parameter * shift).sum()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    end_P, end_Q = twin.weights_P.clone(), twin.statistics_Q.clone()
    if task.full_gradient == "end":
        full_gradient_P = full_gradient(end_P)
    return LocalResult(
        task.client,
        end_P - task.start_P,
        end_Q,
        task.learning_rate,
        len(task.batches),
        sum(len(rows_B) for rows_B in task.batches),
        torch.stack(losses).mean(),
        full_gradient_P,
        torch.stack(norms) if task.gradient_norms else None,
    )


def flat(model: FlatModel, tensors: Sequence[Tensor]) -> Tensor:
    vector_P = torch.zeros_like(model.weights_P)
    for place, tensor in zip(model.split(vector_P), tensors, strict=True):
        place.copy_(tensor)
    return vector_P


def check_equal(result: LocalResult, expected: LocalResult) -> None:
    """Every field, up to rounding in float64."""
    assert (result.client, result.steps, result.samples) == (expected.client, expected.steps, expected.samples)
    assert result.learning_rate == expected.learning_rate
    for name in ("delta_P", "statistics_Q", "loss", "full_gradient_P", "squared_norms_S"):
        found, wanted = getattr(result, name), getattr(expected, name)
        assert (found is None) == (wanted is None), name
        if wanted is not None:
            nothing = wanted.numel() == 0  # and so without a dtype that counts
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11, check_dtype=not nothing, msg=name)


def state_of(task: LocalTask) -> list[Tensor]:
    tensors = [task.rows_N, task.start_P, task.statistics_Q, *task.batches]
    return tensors if task.shift_P is None else [*tensors, task.shift_P]


OPTIMIZERS = st.sampled_from(
    [
        {"momentum": 0.0},
        {"momentum": 0.0, "weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.5, "weight_decay": 0.1, "nesterov": True},
    ]
)


@st.composite
def cohorts(draw: st.DrawFn, world: World) -> list[LocalTask]:
    """Clients with unequal steps, batches and wishes."""
    tasks = []
    for client in draw(st.lists(st.integers(0, 20), min_size=1, max_size=4)):
        sizes = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))  # BatchNorm needs two
        shift = draw(st.booleans())
        tasks.append(
            world.task(
                client,
                sizes,
                pull=draw(st.sampled_from([0.0, 0.3])),
                shift_P=0.1 * world.random_weights(client + 100) if shift else None,
                full_gradient=draw(st.sampled_from([None, "start", "end"])),
                gradient_norms=draw(st.booleans()),
            )
        )
    return [replace_rate(task, draw(st.sampled_from([0.1, 0.02]))) for task in tasks]


def replace_rate(task: LocalTask, learning_rate: float) -> LocalTask:
    return replace(task, learning_rate=learning_rate)


@pytest.mark.parametrize(
    ("build", "kind"),
    [  # the distributed engine hands its work to the sequential one
        pytest.param(
            build, kind, id=f"{kind}-{name}", marks=[pytest.mark.release] * (name == "distributed" and kind != "mlp")
        )
        for name, build in ENGINES.items()
        for kind in MODELS
    ],
)
class TestEveryEngine:
    @examples(15)
    @given(data=st.data(), optimizer=OPTIMIZERS)
    def test_trains_each_client_as_the_definition_says(self, build, kind, data, optimizer):
        world = make_world(kind)
        tasks = data.draw(cohorts(world))
        config = OptimizerConfig(learning_rate=0.1, **optimizer)
        before = [tensor.clone() for task in tasks for tensor in state_of(task)]
        results = world.engine(build, config).train(tasks)
        assert len(results) == len(tasks)
        for task, result in zip(tasks, results, strict=True):
            check_equal(result, by_definition(world, task, config))
        after = [tensor for task in tasks for tensor in state_of(task)]
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))

    def test_keeps_nothing_from_one_cohort_to_the_next(self, build, kind):
        world = make_world(kind)
        momentum = OptimizerConfig(learning_rate=0.1, momentum=0.9)
        engine = world.engine(build, momentum)
        tasks = [world.task(client, [3, 2], gradient_norms=True) for client in range(3)]
        first = engine.train(tasks)
        kept = [result.delta_P.clone() for result in first]
        engine.train([world.task(9, [4, 4, 4], shift_P=world.random_weights(5), full_gradient="start")])
        again = engine.train(tasks)
        for before, result, after in zip(kept, first, again, strict=True):
            assert torch.equal(result.delta_P, before)
            assert torch.equal(after.delta_P, before)

    def test_leaves_the_places_between_parameters_zero(self, build, kind):
        world = make_world(kind)
        task = world.task(1, [3, 3], pull=0.3, shift_P=world.random_weights(2), full_gradient="start")
        (result,) = world.engine(build).train([task])
        assert result.full_gradient_P is not None
        for vector_P in (result.delta_P.clone(), result.full_gradient_P.clone()):
            for place in world.model.split(vector_P):
                place.zero_()
            assert not vector_P.any()

    def test_follows_any_loss(self, build, kind):
        world = make_world(kind)

        def squares(outputs: Tensor, labels: Tensor) -> Tensor:
            return (outputs - labels[:, None]).square().mean()

        if build is build_distributed:
            engine = DistributedEngine(world.engine(SequentialEngine, loss=squares), world.model, OneWorker())
        else:
            engine = world.engine(build, loss=squares)
        tasks = [world.task(client, sizes) for client, sizes in enumerate([[4, 2], [3], [3, 3, 3]])]
        reference = world.engine(SequentialEngine, loss=squares).train(tasks)
        for result, expected in zip(engine.train(tasks), reference, strict=True):
            check_equal(result, expected)
            assert expected.delta_P.abs().max() > 1e-3


@each_engine
class TestEveryEngineOnce:
    def test_trains_nobody(self, build):
        assert make_world("mlp").engine(build).train([]) == []

    def test_reports_clients_as_they_get_ready(self, build):
        own = SequentialEngine if build is build_distributed else build  # a worker reports its own clients
        seen = []
        world = make_world("mlp")
        engine = world.engine(own, on_client=lambda done, total: seen.append((done, total)))
        engine.train([world.task(client, [2]) for client in range(3)])
        assert seen[-1] == (3, 3)
        assert seen == sorted(seen)

    def test_gives_clients_results_of_their_own(self, build):
        """A client that keeps its start gradient must not keep those of its cohort alive."""
        world = make_world("mlp")
        results = world.engine(build).train([world.task(client, [2], full_gradient="start") for client in range(3)])
        for result in results:
            assert result.full_gradient_P is not None
            assert result.full_gradient_P.untyped_storage().nbytes() < 1.5 * world.model.weights_P.nbytes

    def test_refuses_a_batch_of_one_sample_under_batch_norm(self, build):
        world = make_world("batch_norm_cnn")
        refuses("", lambda: world.engine(build).train([world.task(0, [4, 4]), world.task(1, [4, 1])]), "channel")


def test_stacks_in_parts_give_the_same(monkeypatch):
    world = make_world("group_norm_cnn")
    tasks = [world.task(client, [3] * (1 + client % 3), gradient_norms=True) for client in range(7)]
    whole = world.engine(BatchedEngine).train(tasks)
    monkeypatch.setitem(batched.STACK_BYTES, "cpu", 3 * world.model.weights_P.nbytes)
    for result, expected in zip(world.engine(BatchedEngine).train(tasks), whole, strict=True):
        check_equal(result, expected)


def test_no_work_is_done_for_clients_that_are_ready(monkeypatch):
    """Clients with fewer steps leave the stack: rows that go through the model are those that were asked for."""
    world = make_world("mlp")
    rows = []
    engine = world.engine(BatchedEngine)
    assert isinstance(engine, BatchedEngine)
    engine.module.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    engine.train([world.task(client, [2] * steps) for client, steps in enumerate([1, 4, 2])])
    assert rows == [6, 4, 2, 2]


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
    engine = engine_class(model, features, labels, PLAIN, CPU)
    (result,) = engine.train([replace(task, gradient_norms=True)])
    with pytest.raises(ValueError, match="nothing to train"):
        FlatModel(Partly(frozen=True).requires_grad_(False))
    moved = [bool(delta.any()) for delta in model.split(result.delta_P)]
    assert moved == [True] * (len(moved) - 2) + [False, False]
    assert model.weight_count == (16 if engine_class is SequentialEngine else 32)


@pytest.mark.parametrize(
    "kind",
    [release(each) if each.startswith(("vgg11", "resnet18")) else each for each in IMAGE_CLASSIFIERS],
)
def test_every_classifier_for_images_can_be_stacked(kind):
    torch.manual_seed(3)
    shape = (3, 16, 16)
    module = build_classifier(kind, input_shape=shape, classes=4)
    model = FlatModel(module)
    features, labels = torch.randn(12, *shape), torch.randint(4, (12,))
    start_P, statistics_Q = model.weights_P.clone(), model.statistics_Q.clone()
    batches = [torch.arange(4), torch.arange(4, 9)]
    tasks = [
        LocalTask(client, rows, start_P, statistics_Q, [rows], 0.01, gradient_norms=True)
        for client, rows in enumerate(batches)
    ]
    results = [engine(model, features, labels, PLAIN, CPU).train(tasks) for engine in (SequentialEngine, BatchedEngine)]
    for expected, result in zip(*results, strict=True):
        scale = expected.delta_P.abs().max()
        assert scale > 0
        torch.testing.assert_close(result.delta_P, expected.delta_P, rtol=0, atol=float(2e-3 * scale))
        torch.testing.assert_close(result.loss, expected.loss, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(result.statistics_Q, expected.statistics_Q, rtol=1e-3, atol=1e-5)
