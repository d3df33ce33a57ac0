"""The ledger of a training: the cost of every message and round to each party, beside the dense cost.

Bytes are recorded per party, direction and kind, when a message is sent or has been read. The baseline of a part is its
own `dense`, set where the frame is encoded or decoded: nothing is derived from orders.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import asdict
from typing import Any

from vfl.base.costs import CONTROL, EVALUATION, Direction, PartyCosts, round_metrics, total_costs
from vfl.core.costs.forecast import Cost
from vfl.messages.control import RoundReport
from vfl.messages.messages import MEASURING, MESSAGE_BYTES, Message
from vfl.runs.checkpoint import State


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
