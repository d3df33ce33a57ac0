"""Forecast of the costs of alpha and beta: every party's multiply-accumulates and bytes.

It is exact except for three things: the coded size of a sparse frame's positions depends on where the entries lie; an
entropy-coded frame depends on its values, which are taken as normally distributed (most are not, and need less); and a
party with missing rows is counted with its mean number of rows in a batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from vfl.config.schedules import PartySchedule, named_parties, schedule_of, values_of
from vfl.core.compressors import gradient_compressor
from vfl.core.costs.ledger import Cost, Workload
from vfl.core.exchanges import Exchanges
from vfl.messages.control import AskedRatios, Prices
from vfl.messages.messages import Kind, Message, Part, PartKind
from vfl.runs.checkpoint import State

ALPHAS = tuple(tenths / 10 for tenths in range(10))
"""Ratios alpha to consider; a rise by one of them is worth a pruning."""
BETAS = tuple(twentieths / 20 for twentieths in range(20))

ByAlpha = Mapping[float, int]
"""A quantity of a party's model at each ratio alpha."""


class Ratios(NamedTuple):
    """A party's ratios in a round."""

    alpha: float = 0.0
    beta: float = 0.0
    reason: str = ""
    """Reason for a choice based on measurements."""
    exchange_s: float | None = None
    """Expected seconds of an exchange with these ratios."""
    resolution: float = 1.0
    """Share of the sides of the party's images: only the owner's schedule, no function chooses it."""


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
    skipped: Mapping[str, Mapping[float, ByAlpha]] = field(default_factory=dict[str, Mapping[float, ByAlpha]])
    """Multiply-accumulates of a sample's backward pass that frozen layers save, by party, if it has any, and
    resolution."""

    def cost(self, name: str, ratios: Ratios, betas: Mapping[str, float], before: Ratios | None = None) -> Cost:
        """Return the cost of a round to a party with these ratios if the others have these ``betas``.

        With ratios ``before`` it includes the forward pass that a pruning repeats.
        """
        # A generator: frames are encoded to be measured, and not at all where nothing is forwarded.
        others = (self.frame_bytes(other, betas[other]) for other in self.macs if other != name)
        down = self.answer_bytes(name) + (sum(others) if self.forwarded else 0)
        repeated = self._repeated(name, ratios, before.alpha) if before else 0
        return Cost(
            self._training(name, ratios) + repeated,
            self.work.exchanges * down + self.head_bytes,
            self.work.exchanges * self.frame_bytes(name, ratios.beta),
        )

    def round(self, ratios: Mapping[str, Ratios], before: Mapping[str, Ratios]) -> dict[str, Cost]:
        """Return every party's cost of a round after one with ratios ``before``, with passes repeated by a pruning."""
        betas = {name: each.beta for name, each in ratios.items()}
        return {name: self.cost(name, ratios[name], betas, before[name]) for name in self.macs}

    def alone(self, name: str, ratios: Ratios) -> Cost:
        """Return the cost of a round that a party trains alone; its classifier travels where the parties meet."""
        return Cost(self._training(name, ratios))

    def _training(self, name: str, ratios: Ratios) -> int:
        """Return the multiply-accumulates of a round's passes."""
        passes = self.work.passes * self.rows[name] * self._macs(name, ratios)[ratios.alpha]
        if name not in self.skipped:
            return round(passes)
        return round(passes - self.work.steps * self.rows[name] * self.skipped[name][ratios.resolution][ratios.alpha])

    def _macs(self, name: str, ratios: Ratios) -> ByAlpha:
        return self.macs[name] if ratios.resolution == 1 else self.smaller[name][ratios.resolution]

    def _repeated(self, name: str, ratios: Ratios, before: float) -> int:
        macs = self._macs(name, ratios)
        return round(self.work.under_way * self.rows[name] * macs[before]) if macs[ratios.alpha] != macs[before] else 0


@dataclass(eq=False)
class PriceList:
    """The parties' answers, and the forecast based on them."""

    exchanges: Exchanges
    """Exchanges whose costs are forecast."""
    prices: dict[str, Prices] = field(default_factory=dict[str, Prices], init=False)

    def __post_init__(self) -> None:
        names, ratios = self.exchanges.roster.names, self.exchanges.config.lightweighting
        self.alphas = scheduled_alphas(ratios.alpha)
        self.sizes = {name: tuple(ratios.sizes_of(name)) for name in names}

    def ask(self) -> None:
        """Ask the parties that have not answered yet. The answers are right only before the first pruning."""
        wanted = {
            name: AskedRatios(alphas=self.alphas, resolutions=sizes or None) for name, sizes in self.sizes.items()
        }
        asked = [
            party.ask(Message(Kind.MODEL_COSTS, parts=(wanted[party.name].part(),)))
            for party in self.exchanges.roster
            if party.name not in self.prices
        ]

        def read_prices(asked: AskedRatios, reply: Message) -> Prices:
            prices = Prices.of(reply)
            prices.check(asked.alphas, asked.resolutions or ())
            return prices

        # Nothing can be spared a party that is away.
        none = (0,) * len(self.alphas)
        for each in asked:
            name = each.party.name
            free = Prices(macs_per_sample=none, parameters=none, smaller=(none,) * len(self.sizes[name]) or None)
            self.prices[name] = each.read(partial(read_prices, wanted[name])) or free

    @cached_property
    def forecast(self) -> Forecast:
        """The costs of all parties."""
        self.ask()
        roster, config = self.exchanges.roster, self.exchanges.config

        def by_alpha(values: Sequence[int]) -> ByAlpha:
            return dict(zip(self.alphas, values, strict=True))

        prices = {name: self.prices[name] for name in roster.names}
        macs = {name: by_alpha(each.macs_per_sample) for name, each in prices.items()}
        smaller = {
            name: dict(zip(self.sizes[name], map(by_alpha, each.smaller or ()), strict=True))
            for name, each in prices.items()
        }
        skipped = {
            name: dict(zip((1.0, *self.sizes[name]), map(by_alpha, each.skipped), strict=True))
            for name, each in prices.items()
            if each.skipped is not None
        }
        parameters = {name: by_alpha(each.parameters) for name, each in prices.items()}
        shares = self.exchanges.presence.mean_shares()
        rows = {name: config.training.batch_size * share for name, share in zip(roster.names, shares, strict=True)}
        receivers = {party.name: party.receiver for party in roster}
        shared = config.training.labels == "shared"
        head_bytes = sum(part.size for part in self.exchanges.trainer.parts()) if shared else 0
        broadcast = config.training.head_sync == "broadcast"

        # A search over ratios asks for the same frames again and again, and each is really encoded.
        @cache
        def frame_bytes(name: str, beta: float) -> int:
            receiver = receivers[name]
            assert receiver.compressor is not None, "a training compresses"
            frame = receiver.compressor.compress(_probe(round(rows[name]), receiver.width), beta)
            return Part(PartKind.EMBEDDING, frame).size

        @cache
        def answer_bytes(name: str) -> int:
            if shared:
                return head_bytes if broadcast else 0
            gradient_nD = _probe(round(rows[name]), receivers[name].width)
            frame = gradient_compressor(config.wire).compress(gradient_nD, config.wire.gradients.beta)
            return Part(PartKind.GRADIENT, frame).size

        head_once = 0 if broadcast else head_bytes
        work = self.exchanges.work
        return Forecast(work, rows, macs, parameters, frame_bytes, answer_bytes, shared, head_once, smaller, skipped)

    def state_dict(self) -> State:
        """Return the answers, without replacements for missing ones."""
        return {
            name: each.model_dump(mode="json", exclude_none=True)
            for name, each in self.prices.items()
            if max(each.macs_per_sample)
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        self.prices = {name: Prices.restored(each) for name, each in state.items()}


def scheduled_alphas(alpha: PartySchedule) -> tuple[float, ...]:
    """Return the ratios to ask the parties about, ascending: the grid, and those of the configuration."""
    by_party = named_parties(alpha)
    schedules = [schedule_of(alpha, "")] if by_party is None else by_party.values()
    return tuple(sorted({*ALPHAS, *(value for schedule in schedules for value in values_of(schedule))}))


def _probe(rows: int, width: int) -> Tensor:
    """Return a random embedding [n, D]: sizes of packed frames depend only on the number of zeros."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
