"""All messages of matches of two to five owners: everybody learns from them what docs/internals/matching.md says."""

import json
import random
from collections import Counter
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_matches import Wire, match, owners, plain, tables

from vfl.messages.messages import Kind, PartKind
from vfl.parties.matching import server
from vfl.parties.matching.group import raise_keys, raise_points, split_points

ONE = bytes(31) + b"\1"
SPACE = [f"{number}" for number in range(14)]
HERE = SimpleNamespace(map=map)
"""Multiplies in this thread."""


class Played:
    """A match with all that went to and from each owner, and which list each one raised."""

    def __init__(self, folder, count, join, monkeypatch):
        draw = random.Random(count)
        names = [*"abcde"[:count]]
        self.keys: Any = {name: [(key,) for key in draw.sample(SPACE, 8)] for name in names}
        self.foreign: Any = {"b": [(draw.choice(SPACE),) for _ in range(8)]} if count > 3 else {}
        config = tables(folder, self.keys, self.foreign, join)
        self.raised: list[tuple[server.At, str, bytes, bytes]] = []
        """Holder of the list, who raised it, points before and after."""
        plainly = server.Passing._pass

        def passing(list_, at, points):
            after = plainly(list_, at, points)
            self.raised.append((list_.keys.holder, at.owner, points, after))
            return after

        monkeypatch.setattr(server.Passing, "_pass", passing)
        self.links: Any = {owner.name: Wire(owner) for owner in owners(config, HERE)}
        match(config, [*self.links.values()], chunk=1000)
        self.joined = plain(self.keys, self.foreign, join)
        self.names = names

    def key_of(self, name):
        """By what a and an owner know samples."""
        return self.foreign.get(name, self.keys["a"])

    def said(self, name, kind):
        return [exchange for exchange in self.links[name].exchanges if exchange[0].kind is kind]


@pytest.fixture(params=[(2, "inner"), (3, "left"), (4, "inner"), (5, "left")], ids=str)
def played(request, tmp_path, monkeypatch):
    count, join = request.param
    return Played(tmp_path, count, join, monkeypatch)


def times_all(scalars, points):
    """All points times the products of any of some scalars."""
    reached = {points}
    for scalar in scalars:
        reached |= {raise_points(scalar, each) for each in reached}
    return {point for each in reached for point in split_points(each)}


def test_no_two_lists_that_owners_see_can_be_compared_even_together(played):
    """Whoever shares scalars finds no point of a list in another one, nor among the points of keys that it guesses."""
    for count in range(1, len(played.names)):
        for together in combinations(played.names, count):
            scalars = [scalar for name in together for scalar in played.links[name].owner._scalars]
            seen = {"guessed keys": times_all(scalars, raise_keys(ONE, SPACE))}
            for holder, by, points, _after in played.raised:
                if by in together and holder.owner not in together:
                    seen.setdefault(str(holder), set()).update(times_all(scalars, points))
            assert len(seen) > 1
            for one, other in combinations(seen, 2):
                assert not seen[one] & seen[other], (together, one, other)


def test_an_owner_sees_no_point_twice_but_its_own_answers(played):
    for name in played.names:
        asked = [request for request, _reply in played.said(name, Kind.RAISE)]
        answered = [reply for kind in (Kind.LIST, Kind.RAISE) for _request, reply in played.said(name, kind)]
        points = [point for each in (*asked, *answered) for point in split_points(bytes(each.only(PartKind.POINTS)))]
        assert len(set(points)) == len(points)


def test_an_owner_learns_what_the_page_says(played):
    joined = sorted(played.joined)
    for place, name in enumerate(played.names):
        exchanges = played.links[name].exchanges
        said = [json.loads(bytes(text)) for request, _ in exchanges for text in request.payloads(PartKind.CONTROL)]
        assert {key for each in said for key in each} <= {"list", "start", "stop", "order", "samples", "tested"}
        # The sizes of the lists that pass it.
        sizes = Counter(len(request.only(PartKind.POINTS)) // 33 for request, _ in played.said(name, Kind.RAISE))
        group = [each for each in played.names[1:] if (each in played.foreign) == (name in played.foreign)]
        others = [each for each in group if each != name]
        lists = [8] * len(others) + [len(set(played.key_of(name)))]
        assert sizes == Counter([8] * (len(played.names) - 1) if name == "a" else lists)
        # The number of samples, and how many of them each of its rows belongs to; no order but a random one.
        results = played.said(name, Kind.MATCHED)
        assert {each["samples"] for each in said if "samples" in each} == {len(joined)}
        places = np.concatenate([np.frombuffer(request.only(PartKind.PLACES), "<i4") for request, _ in results])
        order = played.links[name].owner._samples if name == "a" else played.links[name].owner._orders[0]
        rows = Counter(np.append(played.links[name].owner.keys.rows[order], -1)[places].tolist())
        assert rows == Counter(each[place] for each in joined)
        # The label owner: which samples each other one has a row for.
        masks = [request.payloads(PartKind.PRESENCE) for request, _ in results]
        assert [len(each) for each in masks] == [(len(played.names) - 1) * (name == "a")] * len(results)
        has = [sum(sum(bytes(part[at])) for part in masks) for at in range(len(masks[0]))]
        assert has == [sum(each[at + 1] >= 0 for each in joined) for at in range(len(has))]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_server_learns_what_the_page_says(tmp_path, monkeypatch, count):
    """Without its own factors, which are all that it can take off."""
    monkeypatch.setattr(server, "new_scalar", lambda: ONE)
    played = Played(tmp_path, count, "inner", monkeypatch)
    seen: dict[server.At, list[set[bytes]]] = {}
    for holder, _by, before, after in played.raised:
        seen.setdefault(holder, [{*split_points(before)}]).append({*split_points(after)})
    groups = [[each for each in played.names[1:] if (each in played.foreign) == known] for known in (False, True)]
    lists = {server.At(name): (name in played.foreign, {*played.keys[name]}) for name in played.names[1:]}
    own = {holder.place: holder for holder in seen if holder.owner == "a"}
    lists |= {
        own[place]: (bool(group[0] in played.foreign), {*played.key_of(group[0])})
        for place, group in zip(_places(played, groups), filter(None, groups), strict=True)
    }
    assert seen.keys() == lists.keys()
    for one, other in combinations(lists, 2):
        (kind, keys), (other_kind, other_keys) = lists[one], lists[other]
        # Equal points under the same scalars, that of lists of the same kind of key: always the same number.
        found = {len(early & late) for early in seen[one] for late in seen[other]} - {0}
        assert found == ({len(keys & other_keys)} - {0} if kind == other_kind else set())
    # Which samples share a foreign key, from the places: how often each repeats.
    places = [np.frombuffer(reply.only(PartKind.PLACES), "<i4") for _request, reply in played.said("a", Kind.PLACES)]
    repeats = [sorted(Counter(each.tolist()).values()) for each in places]
    assert sorted(repeats) == sorted(sorted(Counter(played.key_of(group[0])).values()) for group in groups if group)


def _places(played, groups):
    """The label owner's list for each group."""
    known_as = played.links["a"].owner.keys.known_as
    return [known_as[group[0]] for group in groups if group]
