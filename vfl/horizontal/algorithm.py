"""The four steps of a horizontal algorithm over explicit state, and what they exchange.

    select          which clients take part, given what each could do this round
    client_task     what a client is asked to compute (an engine computes it)
    client_update   what the client sends back, and what it keeps
    aggregate       one change out of all reports
    server_update   the next state

``FederatedAlgorithm`` is the skeleton of plain averaging: an algorithm overrides the steps in which it differs. No step
changes its arguments, so that a state is a value: it can be kept, checkpointed, and handed to a late client.

Shapes: P entries of the weights, N clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from vfl.base.random import generator
from vfl.config import OptimizerConfig
from vfl.horizontal.config import AlgorithmConfig, HorizontalConfig
from vfl.horizontal.devices import RoundPlan, Work
from vfl.horizontal.flat import FlatModel
from vfl.horizontal.local import LocalResult, LocalTask

Vectors = dict[str, Tensor]
"""Vectors [P] (or scalars) by name: a server's state, a client's state, or what travels."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The clients of one round, ascending."""

    clients: Sequence[int]
    seconds: float | None = None
    """Simulated length of the round where the algorithm decides it; None: the slowest client's time."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    state: Vectors = field(default_factory=dict[str, Tensor])
    """Entries that the server's state gains or replaces from here on."""


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """Result of a client's local training, for the server and for the client itself."""

    upload: Vectors
    state: Vectors = field(default_factory=dict[str, Tensor])
    """State that the client keeps until its next round; empty for algorithms without client state."""


@dataclass(frozen=True, eq=False)
class Report:
    """One client's round as the server knows it."""

    work: Work
    upload: Vectors
    result: LocalResult
    start_P: Tensor
    """Weights that the client started from."""
    staleness: int = 0
    """Versions that the server has moved on since it sent ``start_P``."""


@dataclass(frozen=True, eq=False)
class Aggregate:
    """One change out of all reports of a round."""

    vectors: Vectors
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Diagnostics by TensorBoard tag."""
    statistics_share: float = 1.0
    """Weight of the clients' mean running statistics; the server's own have the rest."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Context of an algorithm beside its own settings."""

    horizontal: HorizontalConfig
    optimizer: OptimizerConfig
    """Optimizer of the clients."""
    batch_size: int
    seed: int
    samples_N: Sequence[int]
    """Sample counts n_i of all clients."""
    model: FlatModel
    """Model that tells sizes and the places of parameters; its values mean nothing."""


S = TypeVar("S", bound=AlgorithmConfig)


class FederatedAlgorithm(Generic[S]):
    """The skeleton of ``w += sum_i coefficient_i delta_i``; subclasses override what differs."""

    Settings: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    """Class of the section ``horizontal.NAME``."""
    asynchronous = False
    """The server handles every report separately, on arrival."""
    downloads: Sequence[str] = ("weights",)
    """Entries of the server's state that every selected client receives."""
    uploads: Sequence[str] = ("delta",)
    """Vectors that a client sends back."""
    one_step_full_batch = False
    """A client's work is one gradient over all its samples."""
    extra_passes = 0
    """Passes over all its samples that a client makes in addition to its SGD steps."""

    def __init__(self, settings: S, federation: Federation) -> None:
        self.settings = settings
        self.federation = federation
        self.horizontal = federation.horizontal
        self.samples_N = federation.samples_N

    def initial_state(self, weights_P: Tensor) -> Vectors:
        """Return the server's state before the first round."""
        return {"weights": weights_P}

    def select(self, state: Vectors, round_index: int, plan: RoundPlan) -> Selection:
        """Choose ``clients_per_round`` of the candidates at random (McMahan et al. 2017, Algorithm 1)."""
        candidates = plan.candidates(self.horizontal.selection.min_steps)
        draw = generator(self.federation.seed, "selection", round_index)
        count, weights = self.horizontal.clients_per_round, self.horizontal.selection.group_weights
        if weights:
            return Selection(sample_by_groups(candidates, weights, len(plan.steps_N), count, draw))
        order = torch.randperm(len(candidates), generator=draw)[:count]
        # Ascending, so that sums over the reports have one order, whatever was drawn first.
        return Selection([int(client) for client in candidates[order].sort().values])

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Return a client's task; ``task`` is plain SGD, ``own`` the client's state (empty at first)."""
        return task

    def client_update(self, result: LocalResult, own: Vectors, state: Vectors) -> ClientUpdate:
        """Return the vectors that a client sends and keeps; ``state`` is the one it received."""
        return ClientUpdate({"delta": result.delta_P})

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return the weighted sum of the clients' changes."""
        rate = self.horizontal.server_learning_rate
        return Aggregate({"delta": combine(reports, [rate * weight for weight in self.weights(reports)])})

    def server_update(self, state: Vectors, aggregate: Aggregate) -> Vectors:
        """Return the state of the next round."""
        return state | {"weights": state["weights"] + aggregate.vectors["delta"]}

    def weights(self, reports: Sequence[Report]) -> list[float]:
        """Return the weight p_i of every report, by ``horizontal.weights`` unless the algorithm averages equally."""
        if self.settings.averages_equally or self.horizontal.weights == "equal":
            return [1 / len(reports)] * len(reports)
        counts = [self.samples_N[report.work.client] for report in reports]
        # With "all" the weights sum to less than 1: clients that do not report count as unchanged.
        total = sum(self.samples_N) if self.horizontal.weights == "all" else sum(counts)
        return [count / total for count in counts]


def combine(reports: Sequence[Report], coefficients: Sequence[float], name: str = "delta") -> Tensor:
    """Return the sum of ``coefficient * upload[name]`` over the reports, added in their order."""
    total = torch.zeros_like(reports[0].upload[name])
    for report, coefficient in zip(reports, coefficients, strict=True):
        total.add_(report.upload[name], alpha=coefficient)
    return total


def equal_mean(reports: Sequence[Report], rate: float = 1.0) -> Tensor:
    """Return ``rate`` times the unweighted mean of the clients' changes."""
    return combine(reports, [rate * (1 / len(reports))] * len(reports))


def sample_by_groups(
    candidates: Tensor, group_weights: Sequence[float], clients: int, count: int, draw: torch.Generator
) -> list[int]:
    """Return ``count`` of the candidates, ascending, each with a chance in proportion to its group's weight.

    All ``clients`` form equal consecutive groups, each with a weight above 0. Unlike successive draws without
    replacement, systematic sampling (Madow 1949) gives exactly these chances, so that FLARE's 0.05, 0.15, 0.2 and 0.6
    for quarters of 40 clients, 10 of them per round, are met. A chance that would exceed 1 is 1, and the others share
    the rest.
    """
    if count >= len(candidates):
        return [int(client) for client in candidates.sort().values]
    weights = torch.tensor(group_weights, dtype=torch.float64)[candidates * len(group_weights) // clients]
    order = torch.randperm(len(candidates), generator=draw)
    # The chances lie end to end on a line of length `count`; ticks at distance 1 from a random start pick those that
    # they fall into. None is longer than 1, so that none is picked twice; the order is random,
    # so that any of them may come together.
    upper = inclusion_chances(weights, count)[order].cumsum(0)
    ticks = torch.rand(1, generator=draw, dtype=torch.float64) + torch.arange(count)
    # Rounding may leave the line's end just below the last tick.
    picked = torch.searchsorted(upper, ticks, right=True).clamp(max=len(candidates) - 1)
    return [int(client) for client in candidates[order[picked]].sort().values]


def inclusion_chances(weights: Tensor, count: int) -> Tensor:
    """Return chances that sum to ``count``: proportional to the weights, but at most 1."""
    certain = torch.zeros(len(weights), dtype=torch.bool)
    while True:
        places = count - int(certain.sum())
        # Those that are certain take a place each; the others share what is left, which may lift more of them above 1.
        chances = torch.where(certain, 1.0, weights * places / weights[~certain].sum())
        if not bool((chances > 1).any()):
            return chances
        certain |= chances >= 1
