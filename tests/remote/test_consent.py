"""What costs a party's owner processor time is ordered within a round as often as the training needs it."""

import pytest

from vfl.config import parse_config
from vfl.messages.control import AskedRatios, RoundStart
from vfl.messages.messages import Kind, Message, MessageError
from vfl.parties.network.admission import Terms
from vfl.parties.network.party.consent import Consent

CONFIG = parse_config({"name": "agreed"})


def order(kind: Kind, control: AskedRatios | RoundStart) -> Message:
    return Message(kind, 0, 0, (control.part(),))


def test_prices_for_which_a_model_is_pruned_are_told_once_in_a_round():
    consent = Consent(Terms.of(CONFIG, "party_1", evaluation_rows=10), CONFIG.network.consent)
    prices, start = order(Kind.MODEL_COSTS, AskedRatios(alphas=(0.0, 0.5))), RoundStart(alpha=0.0, beta=0.0)
    consent.check(prices)
    with pytest.raises(MessageError, match="prices are ordered again"):
        consent.check(prices)
    consent.check(order(Kind.START_ROUND, start))
    consent.check(prices)
    consent.start_session()
    consent.check(prices)
