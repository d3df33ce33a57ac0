"""Matches in one process: tables of few keys, links that keep all bytes, and owners that answer otherwise."""

import csv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vfl.base.errors import PeerMisbehaved
from vfl.config import parse_config
from vfl.core.link import done
from vfl.data.tables.matching_input import own_keys
from vfl.data.tables.matching_result import read_match
from vfl.messages.matching import Brought
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind, check_reply
from vfl.parties.matching.owner import MatchingOwner
from vfl.parties.matching.server import match_keys
from vfl.parties.network.wire.frame import pack, unpack

MOST_KEYS = 1000


def honest(request, reply):
    return reply


class Wire:
    """A link that keeps all bytes; an answer that cannot be taken is its party's doing, as on a network."""

    def __init__(self, owner, change=honest):
        self.owner, self.name, self.change = owner, owner.name, change
        self.bytes = []
        self.exchanges = []

    def points(self):
        """All answered points of keys."""
        asked = [reply for request, reply in self.exchanges if request.kind in (Kind.LIST, Kind.RAISE)]
        return b"".join(bytes(reply.only(PartKind.POINTS)) for reply in asked)

    def send(self, request):
        sent = pack(request)
        reply = self.change(request, self.owner.handle(unpack(sent)))
        came = reply if isinstance(reply, bytes) else pack(reply)
        self.bytes += [sent, came]
        try:
            answer = unpack(came)
            self.exchanges.append((unpack(sent), answer))
            check_reply(request, answer)
            return done(answer)
        except MessageError as error:
            self.reject_reply(error)

    def reject_reply(self, error):
        raise PeerMisbehaved(self.name, str(error)) from error


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def tables(folder, keys, foreign=(), join="inner", duplicates="refuse", **data):
    """``keys``: by owner the keys of its rows, tuples of cells; the first one has the label and the foreign keys.

    ``foreign``: by other owner, the key by which the first knows each of its rows.
    """
    leader = next(iter(keys))
    sections = {}
    for owner, own in keys.items():
        names = [f"k{number}" for number in range(len(own[0]))]
        rows = [list(key) for key in own]
        sections[owner] = {"file": str(folder / f"{owner}.csv"), "key": names, "duplicates": duplicates}
        sections[owner]["match"] = str(folder / f"{owner}.match")
        if owner == leader:
            sections[owner] |= {"label": "label", "keys": {}}
            for other in foreign:
                columns = [f"{other}{number}" for number in range(len(foreign[other][0]))]
                sections[owner]["keys"][other] = columns
                names = [*names, *columns]
                rows = [[*row, *key] for row, key in zip(rows, foreign[other], strict=True)]
            names, rows = [*names, "label"], [[*row, "yes"] for row in rows]
        write(folder / f"{owner}.csv", [names, *rows])
    values = {"name": "m", "data": {"dataset": {"kind": "tables"}, "tables": sections, "join": join, **data}}
    return parse_config(values)


def owners(config, pool, workers=1, most_keys=MOST_KEYS):
    data, others = config.data, len(config.owners) - 1
    return [
        MatchingOwner(name, own_keys(data, name), data.join, path_of(config, name), pool, workers, most_keys, others)
        for name in config.owners
    ]


def match(config, links, **options):
    """Match over links, as ``match_keys``."""
    leader = next(name for name in config.owners if config.data.tables[name].label)
    return match_keys(links, leader, config.data.join, options.pop("most_keys", MOST_KEYS), **options)


def run(config, chunk=7, change=None, workers=1):
    with ThreadPoolExecutor(2) as pool:
        links: list[Any] = [
            Wire(owner, (change or {}).get(owner.name, honest)) for owner in owners(config, pool, workers)
        ]
        return match(config, links, chunk=chunk), links


def path_of(config, name) -> Path:
    path = config.data.tables[name].match
    assert path is not None
    return path


def result(config, name):
    return read_match(path_of(config, name), name)


def rows_of(config):
    return {name: result(config, name).rows for name in config.owners}


def plain(keys, foreign, join):
    """The join by dictionaries: a set of tuples with each owner's row."""
    leader, *others = keys
    where = {}
    for owner, own in keys.items():
        where[owner] = {}
        for row, key in enumerate(own):
            where[owner].setdefault(key, row)
    joined = set()
    for key, row in where[leader].items():
        theirs = [where[other].get(foreign[other][row] if other in foreign else key, -1) for other in others]
        if join == "left" or -1 not in theirs:
            joined.add((row, *theirs))
    return joined


def answers(kind, make):
    return lambda request, reply: make(request, reply) if request.kind is kind else reply


def with_points(reply, points):
    return Message(reply.kind, parts=(Part(PartKind.POINTS, points),))


def brought(**change):
    return answers(
        Kind.MATCH,
        lambda request, reply: Message(
            Kind.BROUGHT,
            parts=(Brought.from_json(reply.only(PartKind.CONTROL)).model_copy(update=change).part(), reply.parts[1]),
        ),
    )


def changed(kind, change):
    """Answers of a kind with other points."""
    return answers(kind, lambda request, reply: with_points(reply, change(bytes(reply.only(PartKind.POINTS)))))
