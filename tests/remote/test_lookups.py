"""Who is asked for rows by key, and what a party may answer: anything else is a MessageError, and it is blamed."""

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vfl.base.errors import Diverged, PeerLost
from vfl.config.network import ConsentConfig
from vfl.core.embeddings import encode_as
from vfl.messages.keys import LOOKED, Found, keys_part, presence_part, read_found
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.parties.serving.fetched_rows import RecentRows
from vfl.parties.serving.scorer import Scorer, Served
from vfl.parties.serving.serving_party import MINUTE_S, Allowance

KEYS = [b"a", b"b", b"c"]
WIDTH = 4


@pytest.fixture(scope="module")
def scorer():
    made: Any = Scorer.__new__(Scorer)
    party = SimpleNamespace(name="shop", receiver=SimpleNamespace(width=WIDTH, what="shop's embedding"))
    roster = SimpleNamespace(parties=[party])
    made.version = SimpleNamespace(joint=roster, foreign=("other",), leader="shop")
    made.config = SimpleNamespace(wire=SimpleNamespace(values="float32"))
    return made


def reply(there=(True, False, True), rows=2, width=WIDTH, value=1.0, foreign=(b"x", b"y"), control=None):
    frame = encode_as("float32", torch.full((rows, width), value), "rows")
    parts = (control or Found().part(), presence_part(np.asarray(there)), Part(PartKind.EMBEDDING, frame))
    return Message(Kind.FOUND, parts=(*parts, keys_part(foreign)))


def test_rows_come_with_their_keys(scorer):
    found, away = scorer._parse("shop", KEYS, reply())
    assert away == set()
    assert {key: names for key, (_, names) in found.items()} == {b"a": (b"x",), b"c": (b"y",)}
    assert all(row_D.tolist() == [1.0] * WIDTH for row_D, _ in found.values())
    assert scorer._parse("shop", KEYS, reply(there=(False,) * 3, foreign=())) == ({}, set())
    assert scorer._parse("shop", KEYS, reply(control=Found(outcome="expired").part())) is None


@pytest.mark.parametrize(
    "answer",
    [
        reply(rows=3),
        reply(width=5),
        reply(there=(True,) * 9),
        reply(there=(True,) * 3),
        reply(foreign=(b"x",)),
        reply(foreign=()),
        reply(control=Part(PartKind.CONTROL, b'{"outcome": "other"}')),
    ],
)
def test_other_answers_are_refused(scorer, answer):
    with pytest.raises(MessageError):
        scorer._parse("shop", KEYS, answer)


def test_a_party_says_for_which_keys_it_is_away():
    assert read_found(reply(), KEYS) == set()
    assert read_found(reply(control=Found(away=(1,)).part()), KEYS) == {b"b"}
    assert read_found(reply(control=Found(away=(0, 1, 2)).part()), KEYS) == {*KEYS}
    assert Found().part().payload == LOOKED == b'{"outcome":"looked"}'  # no bytes where nobody is away


@pytest.mark.parametrize("places", ["[3]", "[-1]", "[]", "[4096]", "[true]", '"1"', str([0] * 4097)])
def test_places_of_other_keys_are_refused(places: str):
    control = Part(PartKind.CONTROL, b'{"outcome": "looked", "away": %s}' % places.encode())
    with pytest.raises(MessageError):
        read_found(reply(control=control), KEYS)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e7])
def test_values_that_would_spoil_a_score_are_refused(scorer, value):
    with pytest.raises(Diverged, match="shop's embedding"):
        scorer._parse("shop", KEYS, reply(value=value))


@given(st.integers(0, 3), st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_refused(scorer, place, payload):
    parts = list(reply().parts)
    parts[place] = Part(parts[place].kind, payload)
    with suppress(MessageError, Diverged):
        found, away = scorer._parse("shop", KEYS, Message(Kind.FOUND, parts=tuple(parts))) or ({}, set())
        assert away <= {*KEYS}
        assert found.keys() <= {*KEYS}
        assert all(row_D.shape == (WIDTH,) and row_D.isfinite().all() for row_D, _ in found.values())


@pytest.mark.parametrize(
    ("foreign", "at_first", "then"),
    [
        ((), ["shop", "bank", "slow"], []),
        (("bank",), ["shop", "slow"], ["bank"]),
        (("slow",), ["shop", "bank"], ["slow"]),
    ],
)
def test_whoever_can_be_asked_is_asked_before_the_others_answer(foreign, at_first, then):
    asked: dict[str, Future[Message]] = {}

    def send(name: str, _order: Message) -> Future[Message]:
        return asked.setdefault(name, Future())

    async def settled() -> list[str]:
        for _ in range(20):
            await asyncio.sleep(0)
        return [*asked]

    async def ask() -> None:
        asking = asyncio.create_task(asker._ask_all([("1",)]))
        assert await settled() == at_first
        asked["shop"].set_result(reply(there=(True,), rows=1, foreign=[b"x"] * len(foreign)))
        assert await settled() == [*at_first, *then]  # whoever else has not answered
        for name in [*asked][1:]:
            asked[name].set_result(reply(there=(True,), rows=1, foreign=()))
        assert {found.outcome(("1",)) for found in (await asking).values()} == {"row"}

    names = ("shop", "bank", "slow")
    ready: Future[None] = Future()
    ready.set_result(None)
    asker: Any = Scorer.__new__(Scorer)
    roster = [SimpleNamespace(name=name, receiver=SimpleNamespace(width=WIDTH, what=name)) for name in names]
    asker.version = SimpleNamespace(joint=SimpleNamespace(parties=roster), foreign=foreign, leader="shop")
    asker.config = SimpleNamespace(wire=SimpleNamespace(values="float32"))
    asker.settings, asker.secret, asker._names = SimpleNamespace(timeout_ms=60_000, cache_s=0), None, names
    asker._cache = RecentRows(0, 1)
    links: Any = {name: SimpleNamespace(send=partial(send, name)) for name in names}
    asker._parties = {name: Served(link, ready) for name, link in links.items()}
    asyncio.run(ask())


def test_a_party_that_is_lost_while_it_restores_is_not_ready():
    """A reload looks while nobody takes up whom the server has lost."""
    lost: Future[None] = Future()
    lost.set_exception(PeerLost("shop is gone"))
    scorer: Any = Scorer.__new__(Scorer)
    scorer._names, scorer._parties = ("shop", "bank"), {"shop": Served(cast(Any, None), lost)}
    assert scorer.ready() == {"shop": False, "bank": False}


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 6)), max_size=30))
def test_an_owner_answers_for_so_many_keys_in_any_minute(orders):
    now_s, granted = 0.0, []
    clock: Any = SimpleNamespace(now_s=lambda: now_s)
    allowance = Allowance(ConsentConfig(scored_keys=10), clock)
    for pause_s, keys in orders:
        now_s += pause_s
        lately = sum(count for at_s, count in granted if at_s > now_s - MINUTE_S)
        declined = allowance.take(keys)
        assert declined == (None if lately + keys <= 10 else Found(outcome="too_many"))
        granted += [(now_s, keys)] if declined is None else []
