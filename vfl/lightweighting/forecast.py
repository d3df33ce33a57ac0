"""What alpha and beta will cost, before it is spent: every party's multiply-accumulates and bytes.

Exact but for three things: how far the codec shortens the positions of a sparse frame depends on where the entries lie,
an entropy-coded frame depends on its values, which count as normally distributed (most are not, and take less), and who
lacks rows is counted with those that its batches have in the mean.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vfl.lightweighting.schedule import Ratios

ALPHAS = tuple(tenths / 10 for tenths in range(10))
"""Ratios alpha that are looked at: a rise by one of them is worth a pruning event."""
BETAS = tuple(twentieths / 20 for twentieths in range(20))


class Cost(NamedTuple):
    """What something costs a party; bytes without those of control parts, which are few and of fixed size."""

    macs: int = 0
    downlink_bytes: int = 0
    uplink_bytes: int = 0


class Curve(NamedTuple):
    """What a party's model costs, by alpha."""

    macs: Mapping[float, int]
    """Multiply-accumulates of one sample's forward pass."""
    parameters: Mapping[float, int]


@dataclass(frozen=True)
class Work:
    """What every party computes in a round: E local iterations at each of the exchanges."""

    exchanges: int
    local_iterations: int
    ahead: int = 0
    """Exchanges by which parties are ahead."""

    @property
    def passes(self) -> int:
        """Passes of batches through the feature model in a round, a backward one counted as two."""
        return self.exchanges * self.local_iterations * 3


@dataclass(frozen=True)
class Forecast:
    """The costs of all parties."""

    work: Work
    rows: Mapping[str, float]
    """In how many samples of a batch a party takes part, in the mean."""
    curves: Mapping[str, Curve]
    frame_bytes: Callable[[str, float], int]
    """Of a party's embedding at a ratio beta."""
    answer_bytes: Callable[[str], int]
    """Of what an exchange brings a party beside others' embeddings: its gradient, or the head where it is broadcast."""
    forwarded: bool
    """Whether the others' embeddings come down to a party."""
    head_bytes: int
    """Of the head, where it comes down once a round."""

    def cost(self, name: str, ratios: Ratios, betas: Mapping[str, float], before: Ratios | None = None) -> Cost:
        """Return what a round costs a party of these ratios, when the others have these ``betas``.

        After ratios ``before`` it may be pruned, which repeats a forward pass; without them that is left out.
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
        """Return what a round costs every party, after one of ratios ``before``: a pruning repeats a forward pass."""
        betas = {name: each.beta for name, each in ratios.items()}
        return {name: self.cost(name, ratios[name], betas, before[name]) for name in self.curves}

    def _repeated(self, name: str, alpha: float, before: float) -> int:
        macs = self.curves[name].macs
        # Batches under way were embedded before the pruning, and are embedded once more after it.
        return round((1 + self.work.ahead) * self.rows[name] * macs[before]) if macs[alpha] != macs[before] else 0
