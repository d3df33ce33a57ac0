"""A match in one process: the same as a plain join, nothing readable on the way, and what evil peers are told."""

import hashlib
import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from refusals import refuses
from shorthand import examples
from tiny_matches import (
    Wire,
    answers,
    brought,
    changed,
    match,
    owners,
    path_of,
    plain,
    result,
    rows_of,
    run,
    tables,
    write,
)

from vfl.base.errors import PeerMisbehaved
from vfl.config import parse_config
from vfl.data.tables.arrow import pa
from vfl.data.tables.columns import keys_of, read_table
from vfl.data.tables.join import matched
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.parties.matching import owner, server
from vfl.parties.matching.group import GENERATOR, POINT_BYTES, new_scalar, raise_keys
from vfl.parties.network.wire.frame import pack, unpack

WORDS = ["a", "b", "ä", "日本", "x y", "0", "1", "12", "é", "z" * 40]
CASES = st.tuples(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=10, unique=True), min_size=2, max_size=6),
    st.booleans(),
    st.sampled_from(["inner", "left"]),
    st.randoms(use_true_random=False),
)


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CASES)
def test_a_match_is_a_plain_join(tmp_path, case):
    lists, by_foreign_key, join, draw = case
    names = ["o0", "z", "b", "y", "c", "x"]  # in no order
    keys: dict[str, list[tuple[str, ...]]] = {
        names[number]: [(word, "7") for word in words] for number, words in enumerate(lists)
    }
    foreign = {}
    if by_foreign_key:  # a key of its own for every second owner; they repeat and have other columns
        for number, words in enumerate(lists):
            if number % 2:
                keys[names[number]] = [(word,) for word in words]
                foreign[names[number]] = [(draw.choice(WORDS),) for _ in lists[0]]
    for path in tmp_path.glob("*.match"):
        path.unlink()
    config = tables(tmp_path, keys, foreign, join)
    outcome, _links = run(config, chunk=draw.choice([1, 3, 100]))
    rows = rows_of(config)
    found = list(zip(*(rows[name].tolist() for name in keys), strict=True))
    assert len(found) == outcome.samples == len(set(found))
    assert set(found) == plain(keys, foreign, join)
    assert outcome.missing == {name: int((each < 0).sum()) for name, each in rows.items()}
    has = result(config, "o0").others
    assert {name: (each >= 0).tolist() for name, each in rows.items() if name != "o0"} == {
        name: each.tolist() for name, each in has.items()
    }


def test_equal_tables_doubled_keys_and_nothing_in_common(tmp_path):
    same = {"a": [(str(number),) for number in range(9)], "b": [(str(number),) for number in range(8, -1, -1)]}
    config = tables(tmp_path, same)
    assert run(config)[0].samples == 9
    doubled = {"a": [("1",), ("2",)], "b": [("2",), ("1",), ("2",), ("1",)]}
    refuses("b.csv", lambda: run(tables(tmp_path, doubled)), "repeat")
    config = tables(tmp_path, doubled, duplicates="first")
    run(config)
    assert sorted(zip(*rows_of(config).values(), strict=True)) == [(0, 1), (1, 0)]
    config = tables(tmp_path, {"a": [("1",), ("2",)], "b": [("3",)]})
    assert run(config)[0].samples == 0
    assert rows_of(config)["b"].tolist() == []


def test_the_test_samples_of_a_file_stand_at_the_end_in_every_owners_result(tmp_path):
    keys = {"a": [(str(number),) for number in range(20)], "b": [(str(number),) for number in range(5, 40)]}
    write(tmp_path / "test.csv", [["k0"], *[(str(number),) for number in range(3, 9)]])
    config = tables(tmp_path, keys, test_file=str(tmp_path / "test.csv"))
    run(config)
    a, b = (result(config, name) for name in "ab")
    assert a.test == b.test == 4
    assert sorted(a.rows[-4:]) == [5, 6, 7, 8]
    assert (a.order, len(a.order)) == (b.order, 64)
    assert (a.rows == b.rows + 5).all()


def test_a_group_stands_on_one_side_of_every_owners_result(tmp_path):
    keys = {"a": [(str(number),) for number in range(40)], "b": [(f"p{number}",) for number in range(9)]}
    known_as = [(f"p{number % 11}",) for number in range(40)]
    config = tables(tmp_path, keys, foreign={"b": known_as}, group="b0", test_share=0.25)
    run(config)
    a, b = (result(config, name) for name in "ab")
    assert a.test is not None
    assert a.test == b.test
    person_of = np.array([person for (person,) in known_as])[a.rows]
    train, test = set(person_of[: -a.test]), set(person_of[-a.test :])
    assert not train & test
    assert len(train | test) == 9, "of those that both have"
    assert set(b.rows[: -a.test]).isdisjoint(b.rows[-a.test :])
    for name in "ab":
        path_of(config, name).unlink()
    run(tables(tmp_path, keys, foreign={"b": known_as}))
    held = config.data.tables["a"]
    assert held.file is not None
    table = read_table(held.file, {}, keys_of(held, "ab"))
    refuses("data.group", lambda: matched({"a": table}, {"a": path_of(config, "a")}, config.data), "align")


HASHES = ("md5", "sha1", "sha256", "sha512", "blake2b", "sha3_256")


def _texts(said):
    """All texts of a control part."""
    inner = said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else ()
    yield from [said] if isinstance(said, str) else []
    for _key, each in inner:
        yield from _texts(each)


SPACE = [(f"{number:03}",) for number in range(1000)]


def test_no_byte_on_the_way_tells_a_key_even_to_one_who_can_list_all_keys(tmp_path):
    draw = random.Random(0)
    keys = {name: draw.sample(SPACE, 60) for name in "abc"}
    config = tables(tmp_path, keys)
    seen = []
    for _ in range(2):
        for path in tmp_path.glob("*.match"):
            path.unlink()
        _outcome, links = run(config)
        captured = b"".join(piece for link in links for piece in link.bytes)
        for (key,) in SPACE:
            readable = [getattr(hashlib, name)(key.encode()).digest()[:8] for name in HASHES]
            assert not any(each in captured for each in (*readable, raise_keys(bytes(31) + b"\1", [key])[1:9]))
        said = [
            bytes(text) for link in links for each in link.bytes for text in unpack(each).payloads(PartKind.CONTROL)
        ]
        words = [word for text in said for word in _texts(json.loads(text)) if word not in "abc" and len(word) != 64]
        assert said
        assert not words
        points = b"".join(link.points() for link in links)
        seen.append({points[start : start + POINT_BYTES] for start in range(0, len(points), POINT_BYTES)})
    assert not seen[0] & seen[1]
    assert len(seen[0]) > 3 * 3 * 60 - 60


def test_no_file_holds_a_secret(tmp_path, monkeypatch):
    drawn = []

    def drawing():
        drawn.append(new_scalar())
        return drawn[-1]

    for side in (owner, server):
        monkeypatch.setattr(side, "new_scalar", drawing)
    run(tables(tmp_path, KEYS))
    assert len(drawn) == 3 + 3  # a scalar for each owner's list, and the server's for each list's second pass
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 6
    assert not any(secret in content for secret in drawn for content in written)


def test_the_order_on_the_way_is_not_that_of_the_table(tmp_path):
    keys = {name: [(f"{number:03}",) for number in range(200)] for name in "ab"}
    config = tables(tmp_path, keys)
    run(config)
    rows = rows_of(config)["a"]
    assert abs(np.corrcoef(rows, np.arange(200))[0, 1]) < 0.3
    _outcome, _links = run(tables(tmp_path, keys, join="left"))
    assert (rows_of(config)["a"] != rows).any()


def test_a_second_start_leaves_a_finished_match_and_repeats_one_that_an_owner_lost(tmp_path):
    keys = {name: [(str(number),) for number in range(9)] for name in "abc"}
    config = tables(tmp_path, keys)
    run(config)
    order = result(config, "a").order
    outcome, links = run(config)
    assert outcome.again
    assert not any(link.points() for link in links)
    path_of(config, "b").unlink()
    assert not run(config)[0].again
    orders = {result(config, name).order for name in "abc"}
    assert len(orders) == 1
    assert orders != {order}
    write(tmp_path / "c.csv", [["k0"], *[(str(number),) for number in range(4)]])
    assert run(config)[0].samples == 4


@pytest.mark.parametrize("change", ["other foreign keys", "an owner less", "another test file", "no test file yet"])
def test_a_match_of_other_settings_is_neither_kept_nor_trained_with(tmp_path, change):
    keys = {name: [(str(number),) for number in range(12)] for name in "abc"}
    foreign = {"b": [(str(number % 7),) for number in range(12)], "c": [(str(number % 5),) for number in range(12)]}
    for name, first in (("one", 2), ("other", 6)):
        write(tmp_path / f"{name}.csv", [["k0"], *[(str(number),) for number in range(first, first + 4)]])
    tested = {} if change == "no test file yet" else {"test_file": str(tmp_path / "one.csv")}
    config = tables(tmp_path, keys, {} if change == "an owner less" else foreign, **tested)
    run(config)
    assert run(config)[0].again
    open_matches(config)
    data = config.model_dump(mode="json")["data"]
    match change:
        case "other foreign keys":
            own = data["tables"]["a"]["keys"]
            own["b"], own["c"] = own["c"], own["b"]
        case "an owner less":
            del data["tables"]["c"]
        case _:
            data["test_file"] = str(tmp_path / "other.csv")
    changed = parse_config({"name": "m", "data": data})
    with pytest.raises(ValueError, match="; run lvfl align again"):
        open_matches(changed)
    assert not run(changed)[0].again
    open_matches(changed)


def open_matches(config):
    read = {
        owner: read_table(table.file, {}, keys_of(table, config.owners)) for owner, table in config.data.tables.items()
    }
    return matched(read, {owner: path_of(config, owner) for owner in config.owners}, config.data)


KEYS = {name: [(str(number),) for number in range(40)] for name in "abc"}


def placed(payload):
    return answers(Kind.PLACES, lambda request, reply: Message(Kind.PLACED, parts=(Part(PartKind.PLACES, payload),)))


def public(change):
    """Other public keys."""

    def answer(request, reply):
        return Message(reply.kind, parts=(reply.parts[0], Part(PartKind.POINTS, change(reply.parts[1].payload))))

    return answers(Kind.MATCH, answer)


@pytest.mark.parametrize(
    ("evil", "change", "what"),
    [
        (
            "b",
            changed(Kind.LIST, lambda points: bytes(len(points))),
            "point 1 is the identity, the point of small order",
        ),
        ("b", changed(Kind.LIST, lambda points: b"\2" + b"\xff" * 32 + points[33:]), "point 1 is not on the curve"),
        ("b", changed(Kind.LIST, lambda points: points * 2), "462 bytes came where 7 points of 33 bytes are due"),
        ("c", changed(Kind.RAISE, lambda points: points[33:]), "198 bytes came where 7 points of 33 bytes are due"),
        ("b", lambda request, reply: b"garbage" * 9, "protocol version 103"),
        ("b", lambda request, reply: Message(Kind.DONE), "DONE of round 1"),
        ("a", brought(known_as={"b": 0}), "known_as: names b, not all other owners"),
        ("a", brought(known_as={"a": 0, "b": 0, "c": 0}), "known_as: names a, b, c, not all other owners"),
        ("a", brought(known_as=None, samples=None), "known_as: must come from a, the owner of the label"),
        ("b", brought(known_as={"a": 0, "c": 0}, samples=40), "known_as: must come from a, the owner of the label"),
        ("b", answers(Kind.MATCH, lambda request, reply: Message(reply.kind, parts=reply.parts[:1])), "BROUGHT with 1"),
        ("b", public(lambda points: points * 2), "66 bytes came where 1 points"),
        ("b", public(lambda points: bytes(33)), "point 1 is the identity"),
        ("a", placed(b"\xff" * 160), "40 places came, one below 40"),
        ("a", placed(bytes(9)), "9 bytes are no places"),
    ],
)
def test_an_owner_that_does_not_keep_to_the_protocol_is_named(tmp_path, evil, change, what):
    with pytest.raises(PeerMisbehaved, match=f"{evil} is lost: .*({what})"):
        run(tables(tmp_path, KEYS), change={evil: change})


def ask(owner, kind, *parts):
    return owner.handle(unpack(pack(Message(kind, parts=parts))))


def test_an_owner_refuses_what_the_server_must_not_ask(tmp_path):
    config = tables(tmp_path, KEYS)
    part = {"order": "ab" * 32, "samples": 40, "start": 0}
    with ThreadPoolExecutor(1) as pool:
        _a, b, _c = owners(config, pool)
        for kind, control, payload, what in (
            (Kind.LIST, {"list": 1, "start": 0, "stop": 4}, None, "list 1 is asked for, b has 1"),
            (Kind.LIST, {"list": 0, "start": -1, "stop": 4}, None, "ListRange: 'start'"),
            (
                Kind.LIST,
                {"list": 0, "start": 0, "stop": 41},
                None,
                "0 to 41 of 40 is asked for, at most 1048576 at once",
            ),
            (Kind.LIST, {"list": 0, "start": 9, "stop": 4}, None, "9 to 4 of 40 is asked for"),
            (Kind.RAISE, {"list": 1}, (PartKind.POINTS, bytes(33)), "list 1 is asked for, b has 1"),
            (Kind.RAISE, {}, (PartKind.POINTS, bytes(33)), "point 1 is the identity"),
            (Kind.PROVE, {"list": 1}, (PartKind.POINTS, bytes(33)), "list 1 is asked for, b has 1"),
            (Kind.PROVE, {}, (PartKind.POINTS, GENERATOR * 2), "a proof of 2 sums came where 1 are due"),
            (Kind.PROVE, {}, (PartKind.POINTS, bytes(33)), "point 1 is the identity"),
            (
                Kind.RAISE,
                {},
                (PartKind.POINTS, GENERATOR * 2010),
                "2,012 points came to be multiplied, network.consent",
            ),
            (Kind.MATCHED, part | {"samples": 1001}, (PartKind.PLACES, bytes(4)), "1,001 samples are matched, network"),
            (Kind.MATCHED, part, (PartKind.PLACES, b""), "a part of the result came without a place"),
            (Kind.PLACES, {"list": 0, "start": 0, "stop": 4}, None, "b cannot answer PLACES"),
            (Kind.START_ROUND, {}, None, "b cannot answer START_ROUND"),
            (Kind.MATCHED, part, np.full(41, 1, "<i4").tobytes(), "41 places from 0 on came where 40 are due"),
            (Kind.MATCHED, part, np.full(3, 40, "<i4").tobytes(), "a place outside the 40 entries of the list"),
            (Kind.MATCHED, part, np.full(3, -2, "<i4").tobytes(), "a place outside the 40 entries of the list"),
            (Kind.MATCHED, part | {"start": 2}, bytes(8), "2 places from 2 on came"),
            (Kind.MATCHED, part | {"order": "x"}, bytes(8), "Matched: 'order'"),
            (Kind.MATCHED, part | {"tested": 41}, bytes(8), "tested: above samples"),
            (Kind.MATCHED, part, bytes(3), "3 bytes are no places"),
            (Kind.MATCHED, part, None, "0 PLACES parts instead of 1"),
        ):
            parts = [Part(PartKind.CONTROL, json.dumps(control).encode())]
            kind_of_part, content = payload if isinstance(payload, tuple) else (PartKind.PLACES, payload)
            parts += [] if content is None else [Part(kind_of_part, content)]
            with pytest.raises(MessageError, match=what):
                ask(b, kind, *parts)
        assert not path_of(config, "b").exists()


def test_an_owner_that_lists_a_key_twice_is_named(tmp_path):
    config = tables(tmp_path, KEYS)
    with ThreadPoolExecutor(2) as pool:
        a, b, c = owners(config, pool)
        twice = pa.concat_arrays([b.keys.lists[0], b.keys.lists[0].slice(3, 1)])
        b.keys = replace(b.keys, lists=(twice,))
        b.__post_init__()
        links: list[Any] = [Wire(owner) for owner in (a, b, c)]
        with pytest.raises(PeerMisbehaved, match="b is lost: a point comes twice in its list"):
            match(config, links)


@pytest.mark.parametrize("workers", [1, 3])
def test_progress_counts_every_point_once_and_ends_at_the_total(tmp_path, workers):
    told = []
    config = tables(tmp_path, KEYS)
    with ThreadPoolExecutor(2) as pool:
        links: list[Any] = [Wire(owner) for owner in owners(config, pool, workers)]
        match(config, links, progress=lambda *at: told.append(at), chunk=9)
    assert told[-1] == (1, 120)
    assert len(told) == 45
    assert [share for share, _keys in told] == sorted(share for share, _keys in told)
