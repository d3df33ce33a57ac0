"""Forecast of the costs of alpha and beta: every party's multiply-accumulates and bytes.

It is exact except for three things: the coded size of a sparse frame's positions depends on where the entries lie; an
entropy-coded frame depends on its values, which are taken as normally distributed (most are not, and need less); and a
party with missing rows is counted with its mean number of rows in a batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vfl.core.costs.schedule import Ratios

ALPHAS = tuple(tenths / 10 for tenths in range(10))
"""Ratios alpha to consider; a rise by one of them is worth a pruning."""
BETAS = tuple(twentieths / 20 for twentieths in range(20))


class Cost(NamedTuple):
    """A party's cost; bytes without those of control parts, which are few and of fixed size."""

    macs: int = 0
    downlink_bytes: int = 0
    uplink_bytes: int = 0


ByAlpha = Mapping[float, int]
"""A quantity of a party's model at each ratio alpha."""


@dataclass(frozen=True)
class Workload:
    """Amount of work of every party in a round: E local iterations in each exchange."""

    exchanges: int
    local_iterations: int
    ahead: int = 0
    """Exchanges by which parties run ahead."""

    @property
    def passes(self) -> int:
        """Passes of batches through the feature model in a round; a backward one counts as two."""
        return self.exchanges * self.passes_per_exchange

    @property
    def passes_per_exchange(self) -> int:
        """The same in an exchange."""
        return self.local_iterations * 3

    @property
    def under_way(self) -> int:
        """Exchanges under way at a pruning, whose batches are embedded twice."""
        return 1 + self.ahead


@dataclass(frozen=True)
class Forecast:
    """The costs of all parties."""

    work: Workload
    rows: Mapping[str, float]
    """Mean number of samples of a batch in which a party takes part."""
    macs: Mapping[str, ByAlpha]
    """Multiply-accumulates of one sample's forward pass, by party."""
    parameters: Mapping[str, ByAlpha]
    frame_bytes: Callable[[str, float], int]
    """Size of a party's embedding at a ratio beta."""
    answer_bytes: Callable[[str], int]
    """Bytes that an exchange sends a party beside others' embeddings: its gradient, or the head if it is broadcast."""
    forwarded: bool
    """The others' embeddings are forwarded to a party."""
    head_bytes: int
    """Bytes of the head, if it is sent once a round."""
    smaller: Mapping[str, Mapping[float, ByAlpha]] = field(default_factory=dict[str, Mapping[float, ByAlpha]])
    """``macs`` of smaller images, by party and resolution below 1."""

    def cost(self, name: str, ratios: Ratios, betas: Mapping[str, float], before: Ratios | None = None) -> Cost:
        """Return the cost of a round to a party with these ratios if the others have these ``betas``.

        With ratios ``before`` it includes the forward pass that a pruning repeats.
        """
        # A generator: frames are encoded to be measured, and not at all where nothing is forwarded.
        others = (self.frame_bytes(other, betas[other]) for other in self.macs if other != name)
        down = self.answer_bytes(name) + (sum(others) if self.forwarded else 0)
        macs = self.macs[name] if ratios.resolution == 1 else self.smaller[name][ratios.resolution]
        repeated = self._repeated(name, macs, ratios.alpha, before.alpha) if before else 0
        return Cost(
            round(self.work.passes * self.rows[name] * macs[ratios.alpha]) + repeated,
            self.work.exchanges * down + self.head_bytes,
            self.work.exchanges * self.frame_bytes(name, ratios.beta),
        )

    def round(self, ratios: Mapping[str, Ratios], before: Mapping[str, Ratios]) -> dict[str, Cost]:
        """Return every party's cost of a round after one with ratios ``before``, with passes repeated by a pruning."""
        betas = {name: each.beta for name, each in ratios.items()}
        return {name: self.cost(name, ratios[name], betas, before[name]) for name in self.macs}

    def alone(self, name: str, ratios: Ratios) -> Cost:
        """Return the cost of a round that a party trains alone; its classifier travels where the parties meet."""
        macs = self.macs[name] if ratios.resolution == 1 else self.smaller[name][ratios.resolution]
        return Cost(round(self.work.passes * self.rows[name] * macs[ratios.alpha]))

    def _repeated(self, name: str, macs: ByAlpha, alpha: float, before: float) -> int:
        return round(self.work.under_way * self.rows[name] * macs[before]) if macs[alpha] != macs[before] else 0
