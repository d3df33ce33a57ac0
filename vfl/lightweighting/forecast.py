"""Forecast of the costs of alpha and beta: every party's multiply-accumulates and bytes.

It is exact except for three things: the coded size of a sparse frame's positions depends on where the entries lie; an
entropy-coded frame depends on its values, which are taken as normally distributed (most are not, and need less); and a
party with missing rows is counted with its mean number of rows in a batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vfl.lightweighting.schedule import Ratios

ALPHAS = tuple(tenths / 10 for tenths in range(10))
"""Ratios alpha to consider; a rise by one of them is worth a pruning."""
BETAS = tuple(twentieths / 20 for twentieths in range(20))


class Cost(NamedTuple):
    """A party's cost; bytes without those of control parts, which are few and of fixed size."""

    macs: int = 0
    downlink_bytes: int = 0
    uplink_bytes: int = 0


class Curve(NamedTuple):
    """Cost of a party's model by alpha."""

    macs: Mapping[float, int]
    """Multiply-accumulates of one sample's forward pass."""
    parameters: Mapping[float, int]


@dataclass(frozen=True)
class Workload:
    """Amount of work of every party in a round: E local iterations in each exchange."""

    exchanges: int
    local_iterations: int
    ahead: int = 0
    """Exchanges by which parties run ahead."""

    @property
    def passes(self) -> int:
        """Return the passes of batches through the feature model in a round; a backward one counts as two."""
        return self.exchanges * self.local_iterations * 3


@dataclass(frozen=True)
class Forecast:
    """The costs of all parties."""

    work: Workload
    rows: Mapping[str, float]
    """Mean number of samples of a batch in which a party takes part."""
    curves: Mapping[str, Curve]
    frame_bytes: Callable[[str, float], int]
    """Size of a party's embedding at a ratio beta."""
    answer_bytes: Callable[[str], int]
    """Bytes that an exchange sends a party beside others' embeddings: its gradient, or the head if it is broadcast."""
    forwarded: bool
    """The others' embeddings are forwarded to a party."""
    head_bytes: int
    """Bytes of the head, if it is sent once a round."""

    def cost(self, name: str, ratios: Ratios, betas: Mapping[str, float], before: Ratios | None = None) -> Cost:
        """Return the cost of a round to a party with these ratios if the others have these ``betas``.

        With ratios ``before`` it includes the forward pass that a pruning repeats.
        """
        # A generator: frames are encoded to be measured, and not at all where nothing is forwarded.
        others = (self.frame_bytes(other, betas[other]) for other in self.curves if other != name)
        down = self.answer_bytes(name) + (sum(others) if self.forwarded else 0)
        repeated = self._repeated(name, ratios.alpha, before.alpha) if before else 0
        return Cost(
            round(self.work.passes * self.rows[name] * self.curves[name].macs[ratios.alpha]) + repeated,
            self.work.exchanges * down + self.head_bytes,
            self.work.exchanges * self.frame_bytes(name, ratios.beta),
        )

    def round(self, ratios: Mapping[str, Ratios], before: Mapping[str, Ratios]) -> dict[str, Cost]:
        """Return every party's cost of a round after one with ratios ``before``, with passes repeated by a pruning."""
        betas = {name: each.beta for name, each in ratios.items()}
        return {name: self.cost(name, ratios[name], betas, before[name]) for name in self.curves}

    def _repeated(self, name: str, alpha: float, before: float) -> int:
        macs = self.curves[name].macs
        # Batches under way were embedded before the pruning, and are embedded once more after it.
        return round((1 + self.work.ahead) * self.rows[name] * macs[before]) if macs[alpha] != macs[before] else 0
