"""The seconds of a vertical round: on the virtual clock of ``simulation``, or as measured between processes.

Parties work at the same time, so that a round lasts as long as its slowest party; what the server computes meanwhile
takes no simulated time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vfl.config.devices import DeviceConfig, SimulationConfig
from vfl.core.costs.forecast import Cost, Workload
from vfl.core.costs.schedule import Spent
from vfl.messages.control import RoundReport
from vfl.runs.checkpoint import State
from vfl.runs.loop import Metrics


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
            seconds = simulated(self.simulation.of(name), round_index, cost, trips)
        else:
            seconds = measured(cost, report.elapsed_s, under_way_s or 0.0, self.work.ahead)
        return Spent(report.alpha, report.beta, *cost, *seconds, self.work.ahead)


def simulated(
    device: DeviceConfig, round_index: int, cost: Cost, round_trips: int
) -> tuple[float, float, float, float]:
    """Return the seconds of computation, downlink, uplink and latency on a simulated machine."""
    return (
        device.compute_s(round_index, cost.macs),
        device.downlink_s(round_index, cost.downlink_bytes),
        device.uplink_s(round_index, cost.uplink_bytes),
        device.latency_s * round_trips,
    )


def measured(cost: Cost, compute_s: float, under_way_s: float, ahead: int) -> tuple[float, float, float, float]:
    """Return the same of a real machine, from its own clock and the server's while orders were under way.

    Time without computation is the link's. Its two directions and its latency cannot be separated: each direction gets
    the share of its bytes. If exchanges overlap, the link's time hidden behind computation is not known either: it is
    computed by inverting ``overlapped``, which gives an upper bound.
    """
    # The inverse of `overlapped`: there the sum of all parts, shared by 1 + ahead exchanges, is the round.
    link_s = max(0.0, (1 + ahead) * under_way_s - compute_s)
    share = cost.downlink_bytes / max(1, cost.downlink_bytes + cost.uplink_bytes)
    return compute_s, min(share * link_s, under_way_s), min((1 - share) * link_s, under_way_s), 0.0
