"""What a round cost: multiply-accumulates, bytes and seconds, as counted at a party and at the server.

A party's `RoundMeter` counts what it computes. The server's `Ledger` records every message once, beside its dense size,
by party, direction and kind, when it is sent or has been read: nothing is derived from orders. The `Clock` keeps the
seconds of every round, measured between processes or on the virtual machines of ``simulation``. Parties work at the
same time, so a round lasts as long as its slowest party; what the server computes takes no simulated time.
"""

import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from vfl.base.costs import CONTROL, EVALUATION, Direction, PartyCosts, round_metrics, total_costs
from vfl.compression.sparsify import omega
from vfl.config.devices import DeviceConfig, SimulationConfig
from vfl.messages.control import RoundReport
from vfl.messages.messages import MEASURING, MESSAGE_BYTES, Message
from vfl.runs.checkpoint import State
from vfl.runs.loop import Metrics
from vfl.runs.runtime import Runtime

BACKWARD_FORWARDS = 2
"""Forward passes that a backward pass counts as: gradients of the inputs and of the weights. That of the lowest layer's
input is counted too, though nobody computes it: a few percent of a small model's training."""


@dataclass(eq=False)
class RoundMeter:
    """Counts the multiply-accumulates (macs), seconds and lightweighting errors of one round."""

    runtime: Runtime
    train_macs: int = 0
    unpruned_train_macs: int = 0
    refit_macs: int = 0
    skipped_macs: int = 0
    unpruned_skipped_macs: int = 0
    train_time_s: float = 0.0
    omega: float = 0.0
    """Sum over the round's exchanges."""
    psi: float = 0.0

    @contextmanager
    def training(self) -> Generator[None]:
        """Count the seconds of the enclosed work as training."""
        self.runtime.synchronize()
        started_s = time.perf_counter()
        yield
        self.runtime.synchronize()
        self.train_time_s += time.perf_counter() - started_s

    @contextmanager
    def not_training(self) -> Generator[None]:
        """Exclude the enclosed work from training: later rounds will not have it."""
        started_s = time.perf_counter()
        yield
        self.runtime.synchronize()
        self.train_time_s -= time.perf_counter() - started_s

    def forward(self, macs: int, samples: int) -> None:
        """Count a forward pass with ``macs`` per sample."""
        self.train_macs += macs * samples

    def backward(self, macs: int, samples: int, skipped_macs: int = 0) -> None:
        """Count a backward pass, of which frozen layers save ``skipped_macs`` per sample."""
        self.train_macs += (BACKWARD_FORWARDS * macs - skipped_macs) * samples
        self.skipped_macs += skipped_macs * samples

    def updated(self, unpruned_macs: int, samples: int, iterations: int, skipped_macs: int = 0) -> None:
        """Count an exchange's local iterations as the unpruned model, with as many frozen layers, would take them."""
        self.unpruned_train_macs += ((1 + BACKWARD_FORWARDS) * unpruned_macs - skipped_macs) * iterations * samples
        self.unpruned_skipped_macs += skipped_macs * iterations * samples

    def sent(self, dense_nD: Tensor, sent_nD: Tensor) -> None:
        """Add the error between a batch's embeddings and those sent."""
        self.omega += omega(dense_nD, sent_nD)


class Cost(NamedTuple):
    """A party's cost; bytes without those of control parts, which are few and of fixed size."""

    macs: int = 0
    downlink_bytes: int = 0
    uplink_bytes: int = 0


@dataclass(frozen=True)
class Workload:
    """Amount of work of every party in a round: E local iterations in each exchange."""

    exchanges: int
    local_iterations: int
    ahead: int = 0
    """Exchanges by which parties run ahead."""

    @property
    def steps(self) -> int:
        """Local iterations in a round."""
        return self.exchanges * self.local_iterations

    @property
    def passes(self) -> int:
        """Passes of batches through the feature model in a round; a backward one counts as two."""
        return self.exchanges * self.passes_per_exchange

    @property
    def passes_per_exchange(self) -> int:
        """The same in an exchange."""
        return self.local_iterations * 3

    @cached_property
    def under_way(self) -> int:
        """Exchanges under way at a pruning, whose batches are embedded twice."""
        return 1 + self.ahead


class Spent(NamedTuple):
    """A party's costs and seconds in a round."""

    alpha: float
    beta: float
    macs: int
    downlink_bytes: int
    uplink_bytes: int
    compute_s: float
    downlink_s: float
    uplink_s: float
    latency_s: float
    ahead: int = 0
    """Exchanges by which the party ran ahead (training.staleness)."""

    @property
    def seconds(self) -> float:
        """Seconds of the round."""
        return overlap_seconds(self.ahead, self.compute_s, self.downlink_s, self.uplink_s, self.latency_s)


def overlap_seconds(ahead: int, compute_s: float, downlink_s: float, uplink_s: float, latency_s: float) -> float:
    """Return the seconds of a round in which each exchange overlaps with ``ahead`` others, apart from start and end.

    The serial time of an exchange is divided among the overlapping ones; but a machine, and each direction of a link,
    serves one at a time.
    """
    return max(compute_s, downlink_s, uplink_s, (compute_s + downlink_s + uplink_s + latency_s) / (1 + ahead))


class Ledger:
    """Costs of all parties since round 0. A link cannot change what is counted here."""

    def __init__(self, parties: Iterable[str]) -> None:
        self.costs = {name: PartyCosts() for name in parties}
        self._before = deepcopy(self.costs)

    def record(self, party: str, direction: Direction, message: Message) -> None:
        """Record a message that was sent, or has been read and found valid."""
        costs, measuring = self.costs[party], message.kind in MEASURING
        for part in message.parts:
            kind = EVALUATION if measuring else part.kind.name.lower()
            costs.record_bytes(direction, kind, part.size, part.dense_size)
        costs.record_bytes(direction, EVALUATION if measuring else CONTROL, MESSAGE_BYTES, MESSAGE_BYTES)

    def record_report(self, party: str, report: RoundReport) -> None:
        """Record a party's computation in a round."""
        costs = self.costs[party]
        costs.train_macs += report.train_macs + (report.refit_macs or 0)
        costs.unpruned_train_macs += report.unpruned_train_macs
        costs.train_time_s += report.elapsed_s

    def start_round(self) -> None:
        """Start counting a round."""
        # A copy, as the same objects go on counting.
        self._before = deepcopy(self.costs)

    def round_metrics(self) -> dict[str, float]:
        """Return the round's bytes and seconds, and the savings up to its end, by TensorBoard tag."""
        return round_metrics(self._before, self.costs)

    def round_cost(self, party: str) -> Cost:
        """Return a party's cost of the round."""
        spent = self.costs[party].since(self._before[party])
        return Cost(spent.train_macs, spent.tensor_bytes("downlink"), spent.tensor_bytes("uplink"))

    def totals(self) -> dict[str, int]:
        """Return the summary's totals over all parties."""
        return total_costs(self.costs)

    def summary(self, party: str) -> dict[str, Any]:
        """Return the summary's entries of one party."""
        costs = self.costs[party]
        return {
            "uplink_bytes": costs.training_bytes("uplink"),
            "downlink_bytes": costs.training_bytes("downlink"),
            "train_macs": costs.train_macs,
            "train_time_s": costs.train_time_s,
            "bytes_by_kind": {"uplink": dict(costs.uplink_bytes), "downlink": dict(costs.downlink_bytes)},
        }

    def state_dict(self) -> State:
        """Return all costs."""
        return {name: asdict(costs) for name, costs in self.costs.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        self.costs = {name: PartyCosts(**costs) for name, costs in state.items()}


@dataclass(eq=False)
class Clock:
    """Keeps the costs and seconds of every party in every round."""

    simulation: SimulationConfig
    """The parties' simulated machines, if any."""
    work: Workload
    history: list[dict[str, Spent]] = field(default_factory=list[dict[str, Spent]], init=False)
    """Costs and seconds of every round so far, by party."""
    total_s: float = field(default=0.0, init=False)

    def end_round(
        self,
        round_index: int,
        reports: Mapping[str, RoundReport],
        costs: Mapping[str, Cost],
        under_way_s: Mapping[str, float],
        round_trips: int | None = None,
    ) -> Metrics:
        """Record a round of the parties with ``costs``, and return its seconds by tag.

        ``under_way_s`` are the seconds during which orders were under way, of parties to which they travel. Returns
        nothing if there is only the computer's own clock. ``round_trips``: one per exchange if None.
        """
        trips = self.work.exchanges if round_trips is None else round_trips
        spent = {
            name: self._spent(round_index, name, reports[name], cost, under_way_s.get(name), trips)
            for name, cost in costs.items()
        }
        self.history.append(spent)
        if not spent or not (under_way_s or self.simulation.given):
            return {}
        round_s = max(each.seconds for each in spent.values())
        self.total_s += round_s
        exchange_s = {f"exchange_s/{name}": each.seconds / self.work.exchanges for name, each in spent.items()}
        return {"simulated_time_s/round": round_s, "simulated_time_s/total": self.total_s, **exchange_s}

    def state_dict(self) -> State:
        """Return the rounds so far."""
        rounds = [{name: list(spent) for name, spent in each.items()} for each in self.history]
        return {"history": rounds, "total_s": self.total_s}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        self.history = [{name: Spent(*values) for name, values in each.items()} for each in state["history"]]
        self.total_s = state["total_s"]

    def _spent(
        self, round_index: int, name: str, report: RoundReport, cost: Cost, under_way_s: float | None, trips: int
    ) -> Spent:
        if under_way_s is None and self.simulation.given:
            seconds = simulate_seconds(self.simulation.of(name), round_index, cost, trips)
        else:
            seconds = divide_seconds(cost, report.elapsed_s, under_way_s or 0.0, self.work.ahead)
        return Spent(report.alpha, report.beta, *cost, *seconds, self.work.ahead)


def simulate_seconds(
    device: DeviceConfig, round_index: int, cost: Cost, round_trips: int
) -> tuple[float, float, float, float]:
    """Return the seconds of computation, downlink, uplink and latency on a simulated machine."""
    return (
        device.compute_s(round_index, cost.macs),
        device.downlink_s(round_index, cost.downlink_bytes),
        device.uplink_s(round_index, cost.uplink_bytes),
        device.latency_s * round_trips,
    )


def divide_seconds(cost: Cost, compute_s: float, under_way_s: float, ahead: int) -> tuple[float, float, float, float]:
    """Return the same of a real machine, from its own clock and the server's while orders were under way.

    Time without computation is the link's. Its two directions and its latency cannot be separated: each direction gets
    the share of its bytes. If exchanges overlap, the link's time hidden behind computation is not known either: it is
    computed by inverting ``overlap_seconds``, which gives an upper bound.
    """
    # The inverse of `overlap_seconds`: there the sum of all parts, shared by 1 + ahead exchanges, is the round.
    link_s = max(0.0, (1 + ahead) * under_way_s - compute_s)
    share = cost.downlink_bytes / max(1, cost.downlink_bytes + cost.uplink_bytes)
    return compute_s, min(share * link_s, under_way_s), min((1 - share) * link_s, under_way_s), 0.0
