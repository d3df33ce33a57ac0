"""The cost ledger: bytes, multiply-accumulates and seconds of every party, beside those without lightweighting.

Bytes are those of the packed messages; a link within the process passes the same encoded tensors without the header.
They are recorded per party, direction and kind: ``embedding``, ``gradient``, ``head``, ``control`` (headers and
settings) and ``evaluation``. Evaluation is measurement, not training: its bytes are recorded and reported separately.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

Direction = Literal["uplink", "downlink"]
EVALUATION, CONTROL = "evaluation", "control"


@dataclass
class PartyCosts:
    """Totals of one party since round 0. Bytes by kind; multiply-accumulates (macs) of the feature model."""

    uplink_bytes: dict[str, int] = field(default_factory=dict[str, int])
    downlink_bytes: dict[str, int] = field(default_factory=dict[str, int])
    dense_uplink_bytes: dict[str, int] = field(default_factory=dict[str, int])
    dense_downlink_bytes: dict[str, int] = field(default_factory=dict[str, int])
    train_macs: int = 0
    unpruned_train_macs: int = 0
    train_time_s: float = 0.0

    def record_bytes(self, direction: Direction, kind: str, sent: int, dense: int) -> None:
        """Record a part of a message: ``sent`` bytes, and ``dense`` bytes, those with its tensors in float32."""
        for size, in_float32 in ((sent, False), (dense, True)):
            bytes_by_kind = self.bytes_of(direction, dense=in_float32)
            bytes_by_kind[kind] = bytes_by_kind.get(kind, 0) + size

    def bytes_of(self, direction: Direction, *, dense: bool = False) -> dict[str, int]:
        """Return the bytes by kind of one direction, as sent or as dense float32."""
        if direction == "uplink":
            return self.dense_uplink_bytes if dense else self.uplink_bytes
        return self.dense_downlink_bytes if dense else self.downlink_bytes

    def training_bytes(self, direction: Direction, *, dense: bool = False) -> int:
        """Return the bytes of training in one direction, as sent or as dense float32."""
        return sum(size for kind, size in self.bytes_of(direction, dense=dense).items() if kind != EVALUATION)

    def tensor_bytes(self, direction: Direction) -> int:
        """Return the bytes of training in one direction, without control parts and headers."""
        return self.training_bytes(direction) - self.bytes_of(direction).get(CONTROL, 0)

    def evaluation_bytes(self, direction: Direction) -> int:
        """Return the bytes of evaluations in one direction."""
        return self.bytes_of(direction).get(EVALUATION, 0)

    def since(self, before: "PartyCosts") -> "PartyCosts":
        """Return the costs since ``before``."""
        return PartyCosts(
            _difference(self.uplink_bytes, before.uplink_bytes),
            _difference(self.downlink_bytes, before.downlink_bytes),
            _difference(self.dense_uplink_bytes, before.dense_uplink_bytes),
            _difference(self.dense_downlink_bytes, before.dense_downlink_bytes),
            self.train_macs - before.train_macs,
            self.unpruned_train_macs - before.unpruned_train_macs,
            self.train_time_s - before.train_time_s,
        )


def _difference(now: Mapping[str, int], then: Mapping[str, int]) -> dict[str, int]:
    return {kind: size - then.get(kind, 0) for kind, size in now.items()}


def savings(actual: float, baseline: float) -> float:
    """Return 1 - actual / baseline; 0 if ``baseline``, the cost without lightweighting, is 0."""
    return 1.0 - actual / baseline if baseline else 0.0


def sent_bytes(summary: Mapping[str, Any]) -> int:
    """Return the bytes that a training exchanged, in both directions, from its summary."""
    return summary["uplink_bytes"] + summary["downlink_bytes"]


def shares_saved(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the shares of compute and of bytes, in both directions, that a run saved, from its summary."""
    sent = sent_bytes(summary)
    dense = summary["dense_uplink_bytes"] + summary["dense_downlink_bytes"]
    return {
        "savings_compute": savings(summary["train_macs"], summary["unpruned_train_macs"]),
        "savings_communication": savings(sent, dense),
    }


def round_metrics(before: Mapping[str, PartyCosts], after: Mapping[str, PartyCosts]) -> dict[str, float]:
    """Return one round's bytes and seconds by TensorBoard tag, and the savings up to its end.

    ``savings/communication`` counts both directions of training traffic; ``savings/compute`` counts
    multiply-accumulates of the feature models; ``savings_communication/PARTY`` and ``savings_compute/PARTY`` are the
    same of one party, ``round_savings/`` those of only this round.
    """
    spent = {name: costs.since(before[name]) for name, costs in after.items()}
    metrics: dict[str, float] = {}
    for name, own in spent.items():
        metrics[f"uplink_bytes/{name}"] = own.training_bytes("uplink")
        metrics[f"downlink_bytes/{name}"] = own.training_bytes("downlink")
        metrics[f"train_time_s/{name}"] = own.train_time_s
        metrics |= {f"{share}/{name}": value for share, value in shares_saved(total_costs({name: after[name]})).items()}
    for prefix, costs in (("", after), ("round_", spent)):
        saved = shares_saved(total_costs(costs))
        metrics |= {f"{prefix}{share.replace('_', '/')}": value for share, value in saved.items()}
    return metrics


def total_costs(parties: Mapping[str, PartyCosts]) -> dict[str, int]:
    """Return the summary's totals over all parties."""
    costs = parties.values()
    return {
        "uplink_bytes": sum(party.training_bytes("uplink") for party in costs),
        "downlink_bytes": sum(party.training_bytes("downlink") for party in costs),
        "dense_uplink_bytes": sum(party.training_bytes("uplink", dense=True) for party in costs),
        "dense_downlink_bytes": sum(party.training_bytes("downlink", dense=True) for party in costs),
        "evaluation_uplink_bytes": sum(party.evaluation_bytes("uplink") for party in costs),
        "evaluation_downlink_bytes": sum(party.evaluation_bytes("downlink") for party in costs),
        "train_macs": sum(party.train_macs for party in costs),
        "unpruned_train_macs": sum(party.unpruned_train_macs for party in costs),
    }


@lru_cache(maxsize=64)
def exact(number: float) -> Fraction:
    """Return the fraction that a number's decimal form means: floor(exact(0.29) * 100) is 29, floor(0.29 * 100) 28."""
    return Fraction(repr(float(number)))


def amount(number: float) -> str:
    """Return a count with three digits and a decimal prefix, such as ``78.5 M``; the unit follows directly."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"


def duration(seconds: float) -> str:
    """Return a time in the unit in which it is read, such as ``45 s``, ``12 min`` or ``3.3 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
