"""What a party may report of a round, from what it was assigned and what it reported before."""

from vfl.lightweighting.forecast import Work
from vfl.wire.control import Report, RoundStart
from vfl.wire.messages import MessageError

CLOCKS = 1.01
"""Two machines' clocks agree this well over a round."""
LEAST_KEPT = 2 / 3
"""Of the (1 - alpha) * width channels that a layer should keep; what rounding to whole ones leaves at least."""


def check_report(report: Report, assigned: RoundStart, before: Report | None, work: Work, wall_s: float) -> None:
    """Raise MessageError, naming the key, for a report that cannot be true.

    ``before`` is the party's last one, ``wall_s`` the round's seconds by the server's clock. Multiply-accumulates are
    exact in alpha = 0; the widths that a larger alpha leaves are the party's model's own, which bounds them.
    """
    alphas = assigned.alpha, max(assigned.alpha, before.alpha if before else 0.0)
    _check(alphas[0] <= report.alpha <= alphas[1], f"alpha {report.alpha:g} where {assigned.alpha:g} was assigned")
    replays = assigned.head_digest is not None
    _check(replays == (report.head_drift is not None), f"head_drift {report.head_drift}")
    _check(report.beta == assigned.beta, f"beta {report.beta:g} where {assigned.beta:g} was assigned")
    unpruned, rest = divmod(report.unpruned_train_macs, work.forwards)
    _check(rest == 0, f"unpruned_train_macs {report.unpruned_train_macs} for {work.forwards} passes")
    least = unpruned if report.alpha == 0 else (LEAST_KEPT * (1 - report.alpha)) ** 2 * unpruned
    _check(
        least <= report.macs_per_sample <= unpruned,
        f"macs_per_sample {report.macs_per_sample} of {unpruned} at alpha {report.alpha:g}",
    )
    _check(_is_spent(report, unpruned, work), f"train_macs {report.train_macs} for {report.macs_per_sample} a sample")
    _check(report.elapsed_s <= CLOCKS * wall_s, f"train_time_s {report.train_time_s} of a round of {wall_s:.3g} s")


def _is_spent(report: Report, unpruned: int, work: Work) -> bool:
    """Whether the passes add up; a pruned party has made one more forward pass, before it was pruned."""
    extra, rest = divmod(report.train_macs - work.forwards * report.macs_per_sample, work.batch_size)
    return rest == 0 and (extra == 0 or report.macs_per_sample <= extra <= unpruned)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise MessageError(f"Report: {what}")
