"""What costs a party's owner processor time is ordered within a round as often as the training needs it."""

from contextlib import nullcontext

import pytest

from vfl.config import parse_config
from vfl.config.network import ConsentConfig
from vfl.messages.control import AskedRatios, Explained, RoundStart
from vfl.messages.messages import Kind, Message, MessageError
from vfl.parties.network.admission import Terms
from vfl.parties.network.party.order_checks import Consent

CONFIG = parse_config({"name": "agreed"})


def order(kind: Kind, control: AskedRatios | Explained | RoundStart) -> Message:
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


@pytest.mark.parametrize(
    ("own", "bound", "ordered", "agreed"),
    [
        ({0: 0.5, 1: 1.0}, None, 0.5, True),
        ({0: 0.5, 1: 1.0}, None, 0.4, False),
        ({0: 0.5, 1: 1.0}, 0.7, 0.5, False),
        (1.0, None, 0.5, False),
        (1.0, 0.5, 0.5, True),
        (1.0, 0.5, None, True),
    ],
)
def test_images_are_no_smaller_than_the_owner_agreed_to(own, bound: float | None, ordered: float | None, agreed: bool):
    config = parse_config({"name": "agreed", "lightweighting": {"resolution": own}})
    consent = Consent(Terms.of(config, "party_1", evaluation_rows=10), ConsentConfig(resolution=bound))
    start = order(Kind.START_ROUND, RoundStart(alpha=0.0, beta=0.0, resolution=ordered))
    with nullcontext() if agreed else pytest.raises(MessageError, match=r"^resolution 0\.\d is ordered, at least"):
        consent.check(start)


@pytest.mark.parametrize("kind", [Kind.EXPLAIN, Kind.ATTRIBUTE])
def test_no_more_rows_are_explained_than_agreed_and_none_without_consent(kind: Kind):
    terms = Terms.of(CONFIG, "party_1", evaluation_rows=10)
    asked = Explained(start=0, stop=6, steps=256)
    Consent(terms, ConsentConfig()).check(Message(Kind.OFFER))
    with pytest.raises(MessageError, match=r"network\.consent\.reasons"):
        Consent(terms, ConsentConfig()).check(order(kind, asked))
    consent = Consent(terms, ConsentConfig(reasons="itself"))
    consent.check(order(kind, asked))
    with pytest.raises(MessageError, match="12 rows"):
        consent.check(order(kind, asked))
    consent.start_session()
    consent.check(order(kind, asked))


def test_whole_images_are_the_terms_that_they_were():
    text = Terms.of(CONFIG, "party_1", evaluation_rows=10).text()
    assert text == '{"alpha": {"0": 0.0}, "beta": {"0": 0.0}, "evaluation_rows": 10, "rounds": 10}'
