"""The parties' reports: checked against assignments and earlier reports, and the last one of each party."""

import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vfl.core.costs.ledger import Workload
from vfl.messages.control import RoundReport, RoundStart, fixed_seconds
from vfl.messages.messages import Message, MessageError
from vfl.runs.checkpoint import State
from vfl.runs.loop import Metrics

PRESENT = ("alpha", "beta", "parameters", "macs_per_sample")
"""Entries that describe a party's present model."""
SHOWN = (*PRESENT, "omega", "psi", "head_drift")
"""Entries of a party's report that are metrics unchanged."""
IDLE: dict[str, Any] = {
    "train_macs": 0,
    "unpruned_train_macs": 0,
    "refit_macs": None,
    "train_time_s": fixed_seconds(0.0),
    "omega": 0.0,
    "psi": 0.0,
}
"""Entries of a report for a round without the party."""
UNKNOWN = RoundReport(alpha=0.0, beta=0.0, macs_per_sample=0, parameters=0, **IDLE)
"""Report of a party that never reported."""

CLOCKS = 1.01
"""Factor to which two machines' clocks agree over a round."""


@dataclass
class Reports:
    """Every party's last report, and sums over all of them."""

    work: Workload
    last: dict[str, RoundReport] = field(default_factory=dict[str, RoundReport])
    ratio_sums: dict[str, float] = field(default_factory=lambda: {"alpha": 0.0, "beta": 0.0})
    """Sums of alpha and beta over rounds and parties, with which Corollary 1's convergence bound grows."""

    def read(
        self, party: str, assigned: RoundStart, samples: Sequence[int], began_s: float, reply: Message
    ) -> RoundReport:
        """Read the report of a round that began at ``began_s`` of the monotonic clock, with ``samples`` by exchange.

        Raises MessageError, naming the key, for values that cannot be true.
        """
        report = RoundReport.of(reply)
        check_report(report, assigned, self.last.get(party), self.work, samples, time.monotonic() - began_s)
        return report

    def add(self, party: str, report: RoundReport | None) -> RoundReport:
        """Store and return a report; None for an absent party, which keeps its last ratios and is idle."""
        self.last[party] = report or self.last.get(party, UNKNOWN).model_copy(update=IDLE)
        for ratio in self.ratio_sums:
            self.ratio_sums[ratio] += getattr(self.last[party], ratio)
        return self.last[party]

    def metrics(self) -> Metrics:
        """Return the parties' reports of the last round, by tag."""
        metrics = {
            f"{tag}/{name}": float(value)
            for tag in SHOWN
            for name, report in self.last.items()
            if (value := getattr(report, tag)) is not None
        }
        return metrics | {f"corollary1/sum_{ratio}": total for ratio, total in self.ratio_sums.items()}

    def present(self, party: str) -> dict[str, float | None]:
        """Return the summary's entries about a party's present model."""
        return {key: getattr(self.last.get(party), key, None) for key in PRESENT}

    def state_dict(self) -> State:
        """Return reports and sums."""
        reports = {name: report.model_dump(exclude_none=True) for name, report in self.last.items()}
        return {"reports": reports, "ratio_sums": self.ratio_sums}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state, whose reports were checked on arrival."""
        self.last = {name: RoundReport.model_construct(**report) for name, report in state["reports"].items()}
        self.ratio_sums = state["ratio_sums"]


def check_report(
    report: RoundReport,
    assigned: RoundStart,
    before: RoundReport | None,
    work: Workload,
    samples: Sequence[int],
    wall_s: float,
    local: bool = False,
) -> None:
    """Raise MessageError, naming the key, for a report that cannot be true.

    ``before`` is the party's last one, ``samples`` is by exchange, ``wall_s`` the round's seconds by the server's
    clock; ``local``: the party trained alone. The server does not know a model's size (its inputs are the party's
    own): the first report has it, and later ones must agree. Multiply-accumulates are exact for alpha = 0 and full
    images. A pruned model, or one on smaller images, has those that the party claims, at most the unpruned ones.
    """
    alphas = assigned.alpha, max(assigned.alpha, before.alpha if before else 0.0)
    _check(alphas[0] <= report.alpha <= alphas[1], f"alpha {report.alpha:g} where {assigned.alpha:g} was assigned")
    replays = assigned.head_digest is not None
    _check(replays == (report.head_drift is not None), f"head_drift {report.head_drift}")
    difference = f"resolution {report.resolution or 1:g} where {assigned.resolution or 1:g} was assigned"
    _check(report.resolution == assigned.resolution, difference)
    _check(report.beta == assigned.beta, f"beta {report.beta:g} where {assigned.beta:g} was assigned")
    _check(report.alpha > 0 or report.refit_macs is None, f"refit_macs {report.refit_macs} of a model never pruned")
    if sum(samples):
        forwards = sum(samples) * work.passes_per_exchange
        _check_macs(report, forwards, embedded_twice=0 if local else sum(samples[: work.under_way]))
    else:
        _check(report.train_macs == report.unpruned_train_macs == 0, f"train_macs {report.train_macs} for no sample")
    if before is not None and before.parameters:  # not what stood in for the party
        _check_size(report, before)
    _check((report.own_loss is not None) == (local and sum(samples) > 0), f"own_loss {report.own_loss}")
    _check(report.elapsed_s <= CLOCKS * wall_s, f"train_time_s {report.train_time_s} of a round of {wall_s:.3g} s")


def _check_macs(report: RoundReport, forwards: int, embedded_twice: int) -> None:
    """Raise MessageError unless the sums are those of ``forwards``, samples times passes.

    A party that was pruned in the round had embedded the first samples, under way at that moment, before.
    """
    skipped, unpruned_skipped = report.skipped_macs or 0, report.unpruned_skipped_macs or 0
    unpruned, rest = divmod(report.unpruned_train_macs + unpruned_skipped, forwards)
    _check(rest == 0, f"unpruned_train_macs {report.unpruned_train_macs} for {forwards} passes")
    exact = report.alpha == 0 and report.resolution is None
    _check(
        report.macs_per_sample == unpruned if exact else report.macs_per_sample <= unpruned,
        f"macs_per_sample {report.macs_per_sample} of {unpruned} at alpha {report.alpha:g}",
    )
    passes = forwards // 3 * 2  # two of three are of the backward pass
    for macs, each, what in ((skipped, report.macs_per_sample, ""), (unpruned_skipped, unpruned, "unpruned_")):
        _check(macs <= passes * each, f"{what}skipped_macs {macs} for {passes} passes")
    more = report.train_macs + skipped - forwards * report.macs_per_sample
    extra, rest = divmod(more, embedded_twice) if embedded_twice else (0, more)
    spent = rest == 0 and (extra == 0 or report.macs_per_sample <= extra <= unpruned)
    _check(spent, f"train_macs {report.train_macs} for {report.macs_per_sample} a sample")


def _check_size(report: RoundReport, before: RoundReport) -> None:
    """Raise MessageError unless the size is equal to the last one at the same alpha, else no larger at a larger.

    Multiply-accumulates are compared only with those of images of the same size.
    """
    same, above = report.alpha == before.alpha, report.alpha > before.alpha
    agree = operator.eq if same else operator.le if above else operator.ge  # below: back from an older checkpoint
    for key in ("macs_per_sample", "parameters") if report.resolution == before.resolution else ("parameters",):
        now, then = getattr(report, key), getattr(before, key)
        _check(agree(now, then), f"{key} {now} at alpha {report.alpha:g} after {then} at alpha {before.alpha:g}")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise MessageError(f"Report: {what}")
