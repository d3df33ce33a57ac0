"""The asynchronous server: an event per arrival, on the virtual clock.

``clients_per_round`` clients are at work at any time. When the first of them arrives its weights are mixed in, and
another client starts from the result. A "round" of the loop is ``clients_per_round`` arrivals.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from vfl.base.random import generator
from vfl.horizontal.algorithm import Report
from vfl.horizontal.devices import Work
from vfl.horizontal.fleet import Assignment
from vfl.horizontal.local import LocalResult
from vfl.horizontal.trainer import HorizontalTrainer, report_metrics, spent, spent_since
from vfl.runs.checkpoint import State
from vfl.runs.loop import Metrics

STARTS_TRIED = 1000
"""Attempts to find a client while nobody is at work, after which the run gives up."""


@dataclass(frozen=True, eq=False)
class Flight:
    """A client at work."""

    assignment: Assignment
    version: int
    """Number of arrivals before it started."""
    arrives_s: float
    """Simulated time of arrival."""
    lost: bool
    """The client drops out: it ends at that time, without a result."""


@dataclass(eq=False)
class AsynchronousTrainer(HorizontalTrainer):
    """A server that waits for no client."""

    flights: list[Flight] = field(default_factory=list[Flight], init=False)
    """Clients at work, in the order of their start."""
    results: dict[int, LocalResult] = field(default_factory=dict[int, LocalResult], init=False)
    """Computed results of flights, by their number (``stream``)."""
    started: int = field(default=0, init=False)
    version: int = field(default=0, init=False)

    def train_round(self, round_index: int) -> Metrics:
        """Process as many arrivals as there are clients at work, and return their metrics."""
        begun_s = self.simulated_time_s
        clients = range(self.config.horizontal.clients)
        before = spent(self.fleet, clients)
        reports: list[Report] = []
        sums: dict[str, float] = {}
        self._start_clients(round_index)
        for _ in range(self.config.horizontal.clients_per_round):
            arrived = self._land()
            if arrived is not None:
                reports.append(arrived)
                for tag, value in self.server_step([arrived]).items():
                    sums[tag] = sums.get(tag, 0.0) + value
                self.version += 1  # after the report, whose staleness counts the versions before it
            self._start_clients(round_index)
        return {
            **report_metrics(reports),
            "simulated_time_s/round": self.simulated_time_s - begun_s,
            "simulated_time_s/total": self.simulated_time_s,
            **spent_since(before, spent(self.fleet, clients)),
            **{tag: value / len(reports) for tag, value in sums.items()},
        }

    def state_dict(self) -> dict[str, State]:
        """Return the sections; the server's includes the clients at work and the results computed for them."""
        sections = super().state_dict()
        sections["server"] |= {
            "started": self.started,
            "version": self.version,
            "flights": [_flight_state(flight) for flight in self.flights],
            "results": {str(number): _result_state(result) for number, result in self.results.items()},
        }
        return sections

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state, bit for bit."""
        super().load_state_dict(state)
        server = state["server"]
        device = self.fleet.model.weights_P.device
        self.started, self.version = server["started"], server["version"]
        self.flights = [_flight(saved, device) for saved in server["flights"]]
        self.results = {int(number): _result(saved, device) for number, saved in server["results"].items()}

    def _start_clients(self, round_index: int) -> None:
        """Let idle clients start until enough are at work."""
        waited = 0
        while len(self.flights) < self.config.horizontal.clients_per_round:
            number = self.started
            plan = self.devices.plan(number, link_round=round_index)
            busy = {flight.assignment.work.client for flight in self.flights}
            candidates = plan.candidates(self.config.horizontal.selection.min_steps)
            idle = [int(client) for client in candidates if int(client) not in busy]
            self.started += 1  # also where nobody starts: the next try draws another availability
            if not idle:
                if self.flights:  # somebody else may be there when the next one arrives
                    return
                waited += 1
                if waited == STARTS_TRIED:
                    raise ValueError(
                        f"horizontal.devices.availability: no client could start in {waited} tries; raise it or lower "
                        "horizontal.selection.min_steps"
                    )
                continue
            draw = generator(self.config.seed, "selection", number)
            client = idle[int(torch.randint(len(idle), (1,), generator=draw))]
            work = plan.work(client)
            assignment = Assignment(work, self.state, round_index, stream=number)
            lost = bool(plan.drops_out_N[client])
            self.flights.append(Flight(assignment, self.version, self.simulated_time_s + work.seconds, lost))

    def _land(self) -> Report | None:
        """Advance the clock to the next arrival and return its report, None if it drops out."""
        # Arrivals follow from the virtual clock, not from what is computed.
        flight = min(self.flights, key=lambda each: each.arrives_s)  # of equals the first to start
        if flight.assignment.stream not in self.results:
            # Everybody's start is known, so all at work are computed as one cohort, whoever arrives first.
            waiting = [each for each in self.flights if each.assignment.stream not in self.results]
            outcomes = self.fleet.train([each.assignment for each in waiting])
            self.results |= {each.assignment.stream: outcome for each, outcome in zip(waiting, outcomes, strict=True)}
        self.flights.remove(flight)
        result = self.results.pop(flight.assignment.stream)
        self.simulated_time_s = flight.arrives_s
        if flight.lost:
            return None
        return self.fleet.report(flight.assignment, result, staleness=self.version - flight.version)


def _flight_state(flight: Flight) -> State:
    assignment = flight.assignment
    return {
        "work": asdict(assignment.work),
        "start": dict(assignment.start),
        "round_index": assignment.round_index,
        "stream": assignment.stream,
        "version": flight.version,
        "arrives_s": flight.arrives_s,
        "lost": flight.lost,
    }


def _flight(saved: Mapping[str, Any], device: torch.device) -> Flight:
    start: dict[str, Tensor] = {name: vector.to(device) for name, vector in saved["start"].items()}
    assignment = Assignment(Work(**saved["work"]), start, saved["round_index"], saved["stream"])
    return Flight(assignment, saved["version"], saved["arrives_s"], saved["lost"])


def _result_state(result: LocalResult) -> State:
    return {name: value for name, value in vars(result).items() if value is not None}


def _result(saved: Mapping[str, Any], device: torch.device) -> LocalResult:
    values: dict[str, Any] = {
        name: each.to(device) if isinstance(each, Tensor) else each for name, each in saved.items()
    }
    return LocalResult(**values)
