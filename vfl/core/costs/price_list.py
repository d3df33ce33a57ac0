"""Forecast of the exchanges' costs at any ratios; the parties are asked about their models once in a run."""

from dataclasses import dataclass, field
from functools import cached_property, partial

from vfl.core.costs.forecast import Forecast
from vfl.core.costs.prices import build_forecast, checked_prices, scheduled_alphas
from vfl.core.exchanges import Exchanges
from vfl.messages.control import AskedRatios, Prices
from vfl.messages.messages import Kind, Message
from vfl.runs.checkpoint import State


@dataclass(eq=False)
class PriceList:
    """The parties' answers, and the forecast based on them."""

    exchanges: Exchanges
    """Exchanges whose costs are forecast."""
    prices: dict[str, Prices] = field(default_factory=dict[str, Prices], init=False)

    @cached_property
    def forecast(self) -> Forecast:
        """The costs of all parties."""
        roster, config = self.exchanges.roster, self.exchanges.config
        alphas = scheduled_alphas(config.lightweighting.alpha)
        request = Message(Kind.MODEL_COSTS, parts=(AskedRatios(alphas=alphas).part(),))
        asked = [party.ask(request) for party in roster if party.name not in self.prices]
        # Nothing can be spared a party that is away.
        free = Prices(macs_per_sample=(0,) * len(alphas), parameters=(0,) * len(alphas))
        self.prices |= {each.party.name: each.read(partial(checked_prices, alphas)) or free for each in asked}
        macs = {name: dict(zip(alphas, self.prices[name].macs_per_sample, strict=True)) for name in roster.names}
        parameters = {name: dict(zip(alphas, self.prices[name].parameters, strict=True)) for name in roster.names}
        shares = self.exchanges.presence.mean_shares()
        rows = {name: config.training.batch_size * share for name, share in zip(roster.names, shares, strict=True)}
        receivers = {party.name: party.receiver for party in roster}
        return build_forecast(config, self.exchanges.work, rows, macs, parameters, receivers, self.exchanges.trainer)

    def state_dict(self) -> State:
        """Return the answers, without replacements for missing ones."""
        return {name: each.model_dump(mode="json") for name, each in self.prices.items() if max(each.macs_per_sample)}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        self.prices = {name: Prices.restored(each) for name, each in state.items()}
