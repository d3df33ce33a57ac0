"""Small federated problems, the engines that compute them, and a server with its clients over both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from shorthand import parse_horizontal
from torch import Tensor, nn

from vfl.base.random import seeded
from vfl.config import OptimizerConfig
from vfl.horizontal.algorithm import FederatedAlgorithm, Report
from vfl.horizontal.asynchronous import AsynchronousTrainer
from vfl.horizontal.build import build_algorithm
from vfl.horizontal.client_states import InMemory, OnDisk
from vfl.horizontal.config import HorizontalExperiment
from vfl.horizontal.devices import Devices, Work
from vfl.horizontal.engines.batched import BatchedEngine
from vfl.horizontal.engines.sequential import Engine, SequentialEngine
from vfl.horizontal.flat import FlatModel
from vfl.horizontal.fleet import Fleet
from vfl.horizontal.local import LocalResult, Loss, batch_loss
from vfl.horizontal.trainer import Evaluator, HorizontalTrainer, SynchronousTrainer
from vfl.runs.runtime import Runtime

Settings = dict[str, Any]
RUNTIME = Runtime(torch.device("cpu"))
MACS_PER_SAMPLE = 35


@dataclass(frozen=True)
class EngineCase:
    """An engine under test: how it is built, and how near to the sequential one it must come."""

    build: Callable[[FlatModel, Tensor, Tensor, OptimizerConfig, Runtime, Loss], Engine]
    exact: bool = False
    """In bits, or to the rounding of float32."""

    def check_same(self, actual: Tensor, expected: Tensor) -> None:
        if self.exact:
            assert torch.equal(actual, expected)
        else:
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


ENGINES = {"batched": EngineCase(BatchedEngine), "sequential": EngineCase(SequentialEngine, exact=True)}


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> EngineCase:
    return ENGINES[request.param]


@dataclass(frozen=True, eq=False)
class Problem:
    """Samples in the clients' order, how many each client has, and what is fitted to them."""

    build_module: Callable[[], nn.Module]
    features: Tensor
    labels: Tensor
    sizes: Sequence[int]
    loss: Loss = batch_loss

    @property
    def rows(self) -> list[Tensor]:
        return list(torch.arange(sum(self.sizes)).split(list(self.sizes)))


def classification(*, batch_norm: bool = False) -> Problem:
    """Six clients of unequal sizes and different labels; no batch of 4 leaves a single sample over."""
    sizes = (6, 8, 3, 10, 4, 7)
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(sum(sizes), 4, generator=draw)
    labels = torch.randint(0, 3, (sum(sizes),), generator=draw)
    for client, rows in enumerate(torch.arange(sum(sizes)).split(list(sizes))):
        features[rows] += 0.5 * client
        labels[rows[: len(rows) // 2]] = client % 3

    def build_module() -> nn.Module:
        norm = nn.BatchNorm1d(5) if batch_norm else nn.Identity()
        return nn.Sequential(nn.Linear(4, 5), norm, nn.ReLU(), nn.Linear(5, 3))

    return Problem(build_module, features, labels, sizes)


def quadratics(*clients: tuple[float, float], copies: int = 2) -> Problem:
    """F_i(w) = a_i/2 (w - b_i)^2 for clients (a_i, b_i), each with the same sample so many times.

    It is the squared error of w sqrt(a_i) against b_i sqrt(a_i): a linear layer of one weight.
    """
    curvatures, optima = torch.tensor(clients).repeat_interleave(copies, dim=0).unbind(dim=1)
    features, labels = curvatures.sqrt().unsqueeze(1), curvatures.sqrt() * optima
    sizes = [copies] * len(clients)
    return Problem(lambda: nn.Linear(1, 1, bias=False), features, labels, sizes, half_squared_error)


def half_squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean over a batch [B, 1], [B]."""
    return (outputs.squeeze(1) - labels).square().mean() / 2


def small_config(**sections: Settings) -> HorizontalExperiment:
    """Six clients, three per round, batches of 4, plain SGD; ``sections`` lay over it key by key."""
    values: Settings = {
        "name": "small",
        "mode": "horizontal",
        "seed": 3,
        "training": {"rounds": 3, "batch_size": 4},
        "horizontal": {"clients": 6, "clients_per_round": 3},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section if isinstance(section, dict) else section
    plain = {"learning_rate": 0.1, "momentum": 0.0}
    values["training"] = values["training"] | {"optimizer": plain | values["training"].get("optimizer", {})}
    return parse_horizontal(values)


def build_trainer(
    config: HorizontalExperiment,
    problem: Problem,
    engine: EngineCase = ENGINES["sequential"],
    run_dir: Path | None = None,
    kind: type[FederatedAlgorithm[Any]] | None = None,
) -> HorizontalTrainer:
    """Build a server with its clients; ``kind`` stands in for the algorithm that the configuration names."""
    with seeded(config.seed, "init"):
        model = FlatModel(problem.build_module())
    algorithm = build_algorithm(config, problem.sizes, model, kind)
    states = OnDisk(run_dir / "client_states", config.checkpoint.keep) if run_dir else InMemory()
    fleet = Fleet(
        config,
        algorithm,
        model,
        engine.build(model, problem.features, problem.labels, config.training.optimizer, RUNTIME, problem.loss),
        problem.rows,
        [f"client_{number}" for number in range(1, len(problem.sizes) + 1)],
        states,
        MACS_PER_SAMPLE,
    )
    devices = Devices(
        config.horizontal,
        problem.sizes,
        config.training.batch_size,
        config.seed,
        (1000, 500),
        full_batch=algorithm.one_step_full_batch,
        extra_passes=algorithm.extra_passes,
    )
    average = config.horizontal.buffers == "average"
    evaluator = Evaluator(model, problem.features, problem.labels, 16, RUNTIME, running_statistics=average)
    server = AsynchronousTrainer if algorithm.asynchronous else SynchronousTrainer
    return server(config, algorithm, fleet, devices, evaluator, data_digest="the data")


def make_report(
    client: int,
    delta_P: Tensor,
    *,
    steps: int = 1,
    epochs: float = 1.0,
    asked_epochs: float = 1.0,
    learning_rate: float = 0.1,
    start_P: Tensor | None = None,
    staleness: int = 0,
    squared_norms_S: Tensor | None = None,
) -> Report:
    """What the server knows of a client that came to ``delta_P`` in so many steps."""
    start_P = torch.zeros_like(delta_P) if start_P is None else start_P
    result = LocalResult(
        client, delta_P, torch.zeros(0), learning_rate, steps, steps, torch.tensor(1.0), None, squared_norms_S
    )
    work = Work(client, 1, steps, epochs, asked_epochs, seconds=1.0)
    return Report(work, {"delta": delta_P}, result, start_P, staleness)


@pytest.fixture
def configure() -> Callable[..., HorizontalExperiment]:
    return small_config


@pytest.fixture
def problem() -> Problem:
    return classification()


@pytest.fixture
def problem_with_batch_norm() -> Problem:
    return classification(batch_norm=True)


@pytest.fixture
def point() -> Callable[..., Problem]:
    return quadratics


@pytest.fixture
def build() -> Callable[..., HorizontalTrainer]:
    return build_trainer


@pytest.fixture
def trainer(engine: EngineCase) -> Callable[..., HorizontalTrainer]:
    """Build a trainer of six clients from settings of the section ``horizontal``."""

    def make(*, batch_norm: bool = False, seed: int = 3, **horizontal: Any) -> HorizontalTrainer:
        more: Any = {"seed": seed, "horizontal": horizontal}
        config = small_config(**more)
        return build_trainer(config, classification(batch_norm=batch_norm), engine)

    return make


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Any, Any]]]:
    """Return a list to which every later call of an object's method adds its arguments and its outcome."""

    def record(owner: object, name: str) -> list[tuple[Any, Any]]:
        calls: list[tuple[Any, Any]] = []
        own = getattr(owner, name)

        def recording(*arguments: Any, **named: Any) -> Any:
            calls.append((arguments, own(*arguments, **named)))
            return calls[-1][1]

        monkeypatch.setattr(owner, name, recording)
        return calls

    return record


@pytest.fixture
def report() -> Callable[..., Report]:
    return make_report
