"""Owners that attack a match: what once succeeded, and wrong products in every way, found and named."""

import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_matches import Wire, answers, brought, honest, match, owners, path_of, run, tables, with_points

from vfl.base.errors import PeerMisbehaved
from vfl.messages.matching import ListRange, OwnList
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.parties.matching import group, server
from vfl.parties.matching.group import (
    GENERATOR,
    add_points,
    new_scalar,
    public_key,
    raise_keys,
    raise_points,
    split_points,
    subtract_product,
    weighted_sums,
)

TRIES = 1000
FOUND = "its points are not those that it was given times the scalar of its public key"


def points_of(message):
    return split_points(bytes(message.only(PartKind.POINTS)))


def test_no_owner_counts_the_keys_that_two_others_have_in_common(tmp_path):
    """Of four owners, once, two read such numbers from points that came to them twice: 68, 72 and 74 of these."""
    draw = random.Random(1)
    names = ("bank", "shop", "club", "gym")
    keys = {name: [(str(key),) for key in draw.sample(range(300), 150)] for name in names}
    _outcome, links = run(tables(tmp_path, keys), chunk=75)
    for link in links:
        came = [points_of(request) for request, _reply in link.exchanges if request.kind is Kind.RAISE]
        assert sum(map(len, came)) == 3 * 150
        assert not any(set(one) & set(other) for one, other in combinations(came, 2))


def false_proof(secret, points, claimed):
    """The proof of products that are not: made as the honest one, for what is claimed."""
    nonce = new_scalar()
    committed = raise_points(nonce, GENERATOR + points)
    challenge = group._challenge(public_key(secret), points, claimed, committed)
    return challenge + subtract_product(nonce, challenge, secret)


class Searching:
    """Exchanges two points, finds the weights of any sum of them by trying all, and claims the sums of its own."""

    def __init__(self, owner):
        self.owner, self.sums, self.searched = owner, {}, 0

    def __call__(self, request, reply):
        if request.kind is Kind.RAISE and not self.sums:
            before, after = points_of(request), points_of(reply)[::-1]
            self.sums = dict(zip(self.all_sums(before), self.all_sums(after), strict=True))
            return with_points(reply, b"".join(after))
        if request.kind is Kind.PROVE and {*points_of(request)} <= self.sums.keys():
            self.searched += 1
            claimed = b"".join(self.sums[each] for each in points_of(request))
            false = false_proof(self.owner._scalars[0], bytes(request.only(PartKind.POINTS)), claimed)
            return Message(reply.kind, parts=(Part(PartKind.PROOF, false),))
        return reply

    @staticmethod
    def all_sums(points):
        one, other = (weighted_sums(each, np.arange(1, 16, dtype=np.uint8)[:, None]) for each in points)
        pairs = add_points(b"".join(one) * 15, b"".join(each * 15 for each in other))
        return [*one, *other, *pairs]


def test_who_finds_the_weights_of_a_short_list_still_cannot_move_its_rows(tmp_path, monkeypatch):
    """Once, 20 of 20 owners that searched the sums of a list of eight so joined rows of different people, unseen."""
    config = tables(tmp_path, {"a": [("1",), ("2",)], "b": [("2",), ("3",)], "c": [("1",), ("2",)]}, join="left")
    monkeypatch.setattr(server, "draw_weights", lambda count: group.draw_weights(count) & 15)  # quickly searched
    with ThreadPoolExecutor(1) as pool:
        links: list[Any] = [Wire(owner) for owner in owners(config, pool)]
        links[2].change = searching = Searching(links[2].owner)
        with pytest.raises(PeerMisbehaved, match=f"^c is lost: .*{FOUND}"):
            match(config, links)
    assert searching.searched
    assert not any(path_of(config, name).exists() for name in "abc")


@pytest.mark.parametrize("raised", [0, 1, 4, 8])
def test_a_proof_tests_no_more_guessed_keys_than_were_agreed_and_each_is_counted(tmp_path, raised):
    """Once, proofs told a server of every guessed key whether the owner has it, and the owner of no point at all."""
    config = tables(tmp_path, {"a": [("1",)], "b": [("k3",), ("k5",), ("k7",), ("k9",)]})
    with ThreadPoolExecutor(1) as pool:
        _a, b = owners(config, pool, most_keys=max(raised, 1))
        guesses = b"".join(raise_keys((1).to_bytes(32, "big"), [f"k{number}"]) for number in range(8))
        if raised:
            asked = OwnList().part(), Part(PartKind.POINTS, guesses[: 33 * raised])
            b.handle(Message(Kind.RAISE, parts=asked))
        due = min(raised, group.SUMS)
        for number in range(due):
            asked = OwnList().part(), Part(PartKind.POINTS, guesses[33 * number : 33 * number + 33])
            b.handle(Message(Kind.PROVE, parts=asked))
        assert b.raised == raised + due
        with pytest.raises(MessageError, match=r"^a proof of 1 sums came where 0 are due$"):
            b.handle(Message(Kind.PROVE, parts=(OwnList().part(), Part(PartKind.POINTS, guesses[-33:]))))


def test_proofs_count_beside_products_up_to_the_agreed_keys(tmp_path):
    """Parts of one point have a sum each: who makes them gains no more proofs than one part of all would have."""
    config = tables(tmp_path, {"a": [("1",)], "b": [("2",)]})
    with ThreadPoolExecutor(1) as pool:
        _a, b = owners(config, pool, most_keys=20)
        one = OwnList().part(), Part(PartKind.POINTS, GENERATOR)
        for kind in [Kind.RAISE] * 20 + [Kind.PROVE] * group.SUMS:
            b.handle(Message(kind, parts=one))
        with pytest.raises(MessageError, match=r"^26 points came to be multiplied, network\.consent\.keys"):
            b.handle(Message(Kind.PROVE, parts=one))


def test_an_honest_match_of_as_many_keys_as_agreed_is_not_refused(tmp_path):
    for size in (1, 4, 5, 6, 40):
        folder = tmp_path / str(size)
        folder.mkdir()
        config = tables(folder, {name: [(str(key),) for key in range(size)] for name in "abc"})
        with ThreadPoolExecutor(1) as pool:
            links: list[Any] = [Wire(owner) for owner in owners(config, pool, most_keys=size)]
            assert match(config, links, most_keys=size).samples == size
        assert {link.owner.raised for link in links} == {2 * (size + min(size, group.SUMS))}


def single(draw, points):
    wrong = draw.randrange(len(points))
    return [raise_points(new_scalar(), each) if place == wrong else each for place, each in enumerate(points)]


def swapped(draw, points):
    one, other = draw.sample(range(len(points)), 2)
    points[one], points[other] = points[other], points[one]
    return points


def subset(draw, points):
    """Some points under another scalar, the same for all of them."""
    other, some = new_scalar(), {*draw.sample(range(len(points)), draw.randrange(1, len(points) + 1))}
    return [raise_points(other, each) if place in some else each for place, each in enumerate(points)]


def doubled(draw, points):
    one, other = draw.sample(range(len(points)), 2)
    points[one] = points[other]
    return points


WAYS = (single, swapped, subset, doubled)


class Wrong:
    """Answers one RAISE wrongly; proves what it should have answered, or claims what it did."""

    def __init__(self, draw, owner):
        self.draw, self.owner, self.way, self.claims = draw, owner, draw.choice(WAYS), draw.random() < 0.5
        self.at = draw.randrange(2)
        self.answered = []

    def __call__(self, request, reply):
        if request.kind is Kind.RAISE:
            points = points_of(reply)
            self.answered += self.way(self.draw, points) if len(self.answered) // 6 == self.at else points
            return with_points(reply, b"".join(self.answered[-len(points) :]))
        if request.kind is Kind.PROVE and self.claims:
            asked = bytes(request.only(PartKind.POINTS))
            claimed = raise_points(new_scalar(), asked)  # no sums are known that fit
            return Message(
                reply.kind, parts=(Part(PartKind.PROOF, false_proof(self.owner._scalars[0], asked, claimed)),)
            )
        return reply


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three owners of twelve keys, who multiply in this thread."""
    keys = {name: [(str(key),) for key in range(12)] for name in "abc"}
    return owners(tables(tmp_path_factory.mktemp("three"), keys), SimpleNamespace(map=map))


def tried(seed, made):
    """Who is blamed for an owner's wrong answers to one of two parts of a list, and who it was."""
    draw = random.Random(seed)
    holder, *others = draw.sample(made, 3)
    evil = draw.choice(others)
    for owner in made:
        owner.__post_init__()
        owner.raised = 0
    changes = {evil.name: Wrong(draw, evil)}
    links: list[Any] = [Wire(owner, changes.get(owner.name, honest)) for owner in made]
    peers = {link.name: server.MatchingPeer(link, Event()) for link in links}
    publics = {server.At(owner.name): public_key(owner._scalars[0]) for owner in made}
    keys = server.KeyList(server.At(holder.name), 12, tuple(server.At(owner.name) for owner in others))
    try:
        server.Passing(peers, publics, keys, 6, lambda points: None).run()
    except PeerMisbehaved as error:
        return error.party, evil.name
    return "", evil.name


@pytest.mark.release
def test_a_wrong_product_is_found_in_a_thousand_tries_and_its_owner_named(three):
    blamed = [tried(seed, three) for seed in range(TRIES)]
    assert len(blamed) == TRIES
    assert all(who == evil for who, evil in blamed)
    assert {evil for _who, evil in blamed} == {*"abc"}


@pytest.mark.release
def test_a_wrong_product_escapes_as_often_as_its_weights_allow(three, monkeypatch):
    """With one sum, in which a point counts or not, a wrong one escapes half of all tries: the bound is no guess."""
    monkeypatch.setattr(server, "draw_weights", lambda count: group.draw_weights(count)[:1] & 1)
    monkeypatch.setattr(f"{__name__}.WAYS", (single,))
    monkeypatch.setattr(f"{__name__}.false_proof", lambda secret, points, claimed: group.prove(secret, points))
    escaped = sum(tried(seed, three)[0] == "" for seed in range(200))
    assert 70 < escaped < 130


@pytest.mark.parametrize(
    ("evil", "change", "what"),
    [
        ("a", {"samples": 60_000_000}, "60,000,000 samples"),
        ("a", {"lists": (1001,)}, "1,001 keys in a list"),
        ("b", {"lists": (2**31 - 1,)}, "2,147,483,647 keys in a list"),
    ],
)
def test_who_claims_more_keys_than_agreed_is_refused(tmp_path, evil, change, what):
    """Once, 12 keys that claimed 20 million samples left a file of 160 MB at an honest owner."""
    config = tables(tmp_path, {name: [(str(key),) for key in range(12)] for name in "ab"})
    told = f"^{evil} is lost: .*it brings {what}, network.consent.keys of the server allows 1,000$"
    with pytest.raises(PeerMisbehaved, match=told):
        run(config, change={evil: brought(**change)})


def test_a_claim_alone_takes_no_memory(tmp_path):
    config = tables(tmp_path, {name: [(str(key),) for key in range(12)] for name in "ab"})

    class Claiming:
        """Brings a hundred million keys, of which it has twelve."""

        def __init__(self, owner):
            self.owner, self.name = owner, owner.name

        def handle(self, request):
            if request.kind is Kind.LIST and ListRange.of(request).start:
                return Message(Kind.POINTS, parts=(Part(PartKind.POINTS, b""),))
            return brought(lists=(100_000_000,))(request, self.owner.handle(request))

    with ThreadPoolExecutor(1) as pool:
        links: list[Any] = [Wire(owner) for owner in owners(config, pool)]
        links[1].owner = Claiming(links[1].owner)
        tracemalloc.start()
        with pytest.raises(PeerMisbehaved, match=r"b is lost: .*0 bytes came where 12 points of 33 bytes are due"):
            match(config, links, chunk=12, most_keys=100_000_000)
        _now, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 10_000_000


def test_the_label_owner_alone_may_say_who_goes_by_which_key(tmp_path):
    """Once, this ended the match for all, and two honest owners were told that one of them must name the label."""
    config = tables(tmp_path, {name: [(str(key),) for key in range(12)] for name in "abc"})
    lies = answers(Kind.MATCH, brought(known_as={"a": 0, "c": 0}, samples=12))
    with pytest.raises(PeerMisbehaved, match=r"^b is lost: .*known_as: must come from a") as raised:
        run(config, change={"b": lies})
    assert raised.value.party == "b"
