"""Results of a finished run, and the quantities that reports and studies derive from them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from statistics import mean
from typing import Any

from vfl.base.costs import sent_bytes, shares_saved
from vfl.base.metrics import is_better, reached
from vfl.runs.run_folder import Row

CLOCK = "simulated_time_s/total"
"""Seconds on the run's clock: a virtual one, or for separate processes the real one."""


@dataclass(frozen=True)
class RunResult:
    """A finished run. Scores such as accuracy are shares in [0, 1]; for regression they may be errors."""

    rows: tuple[Row, ...]
    """Rows of ``metrics.jsonl``, one per round."""
    summary: dict[str, Any]

    @property
    def simulated(self) -> bool:
        """Return whether its owners are clients with a simulated clock, which hold samples instead of features."""
        return "simulated_time_s" in self.summary

    @property
    def clocked(self) -> bool:
        """Return whether every round has seconds on a clock."""
        return all(CLOCK in row for row in self.rows)

    @property
    def unmet(self) -> dict[str, int]:
        """Return, by party, the number of rounds in which the controller's goal could not be met."""
        tags = [tag.split("/") for row in self.rows for tag in row if tag.startswith("reason/")]
        return Counter(party for _, party, reason in tags if reason == "bound")

    @property
    def metric(self) -> str:
        """Name of the metric by which the run is compared."""
        return reached(self.summary)[0]

    @property
    def score(self) -> float:
        """Final test score, in that metric."""
        return reached(self.summary)[1][self.metric]

    @property
    def curve(self) -> list[tuple[int, float]]:
        """The evaluated rounds and their scores."""
        tag = f"{self.metric}/test"
        return [(int(row["round"]), row[tag]) for row in self.rows if tag in row]

    @property
    def sent_bytes(self) -> int:
        """Bytes of training in both directions."""
        return sent_bytes(self.summary)

    @property
    def bytes_saved(self) -> float:
        """Share of the bytes, in both directions, that sparsification saved."""
        return shares_saved(self.summary)["savings_communication"]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of training."""
        return self.summary["train_macs"]

    @property
    def macs_saved(self) -> float:
        """Share of the multiply-accumulates that pruning saved."""
        return shares_saved(self.summary)["savings_compute"]

    def over_parties(self, name: str) -> list[list[float]]:
        """Return a quantity's values of every round, one per party; empty lists if it is not measured."""
        return [[value for tag, value in row.items() if tag.startswith(f"{name}/")] for row in self.rows]

    def mean_over_parties(self, name: str) -> list[float]:
        """Return a quantity of every round in which it is measured, mean over the parties."""
        return [mean(values) for values in self.over_parties(name) if values]

    def omega(self) -> float | None:
        """Return the mean over rounds and parties of the error due to sparsification; None if unmeasured."""
        values = [value for values in self.over_parties("omega") for value in values]
        return mean(values) if values else None

    def psi(self) -> float | None:
        """Return the mean over parties of the sum over rounds of the error due to pruning; None if unmeasured."""
        per_round = self.mean_over_parties("psi")
        return sum(per_round) if per_round else None

    def corollary_sum(self, ratio: str) -> float | None:
        """Return Corollary 1's sum of ``alpha`` or ``beta`` over rounds and parties; None if unmeasured."""
        return self.rows[-1].get(f"corollary1/sum_{ratio}")

    def bytes_by_round(self) -> list[float]:
        """Return the bytes sent up to the end of every round, in both directions."""
        per_round = zip(self.over_parties("uplink_bytes"), self.over_parties("downlink_bytes"), strict=True)
        return list(accumulate(sum(up) + sum(down) for up, down in per_round))

    def macs_by_round(self) -> list[float]:
        """Return the multiply-accumulates up to the end of every round."""
        if self.simulated:  # who is chosen differs from round to round, and so do the costs
            return list(accumulate(sum(values) for values in self.over_parties("train_macs")))
        # All rounds have the same steps, and so nearly the same cost without pruning: parties may lack rows.
        whole = self.summary["unpruned_train_macs"] / len(self.rows)
        if any("round_savings/compute" not in row for row in self.rows):  # older: a round's share had the total's name
            saved = (row.get("round_savings/compute", row["savings/compute"]) for row in self.rows)
            return list(accumulate((1 - share) * whole for share in saved))
        return [(1 - row["savings/compute"]) * whole * done for done, row in enumerate(self.rows, 1)]

    def seconds_by_round(self) -> list[float]:
        """Return the seconds up to the end of every round: on the clock, or the slowest party's own work."""
        if self.clocked:
            return [row[CLOCK] for row in self.rows]
        return list(accumulate(max(values) for values in self.over_parties("train_time_s")))

    def round_reaching(self, target: float) -> int | None:
        """Return the position of the first row whose score is as good as ``target``; None if none is."""
        # Not the row's round: a run may have lost rows. As good: the target is not better.
        tag = f"{self.metric}/test"
        scores = ((place, row[tag]) for place, row in enumerate(self.rows) if tag in row)
        return next((place for place, score in scores if not is_better(self.metric, target, score)), None)


Quantity = Callable[[RunResult], float | None]
