"""What an evil server sends: every field of every message of a server, wrong in every way that it can be."""

import json
from typing import Any, NamedTuple

from attacks.wire_server import (
    EMBED,
    END_ROUND,
    PART_CONTROL,
    PART_GRADIENT,
    PART_HEAD,
    RUN,
    TERMS,
    Envelope,
    Lie,
    Sent,
    dense_frame,
    message,
    request,
)


class Case(NamedTuple):
    """A lie in the place of one step's message, and what the owner is told."""

    at: str
    lie: Lie
    told: str
    """A regular expression."""


def welcome(**changes: Any) -> Lie:
    return lambda orders: orders.welcome(**changes)


def terms(**changes: Any) -> Lie:
    """Offer other terms; None takes one away."""
    offered = {name: value for name, value in (TERMS | changes).items() if value is not None}
    return lambda orders: orders.welcome(terms=json.dumps(offered))


def control(kind: str, header: dict[str, Any] | None = None, **fields: Any) -> Lie:
    return lambda orders: orders.control(kind, header, **fields)


def start_round(text: str) -> Lie:
    return lambda orders: orders.start_round(text)


def evaluate(text: str) -> Lie:
    return lambda orders: orders.evaluate(text)


def update(payload: bytes) -> Lie:
    return lambda orders: orders.end_round(payload)


def header(**changes: Any) -> Lie:
    """Ask for the embedding with another header."""
    return lambda orders: orders.request(EMBED, **changes)


def raw(*data: bytes) -> Lie:
    return lambda orders: list(data)


def flood(orders: Any) -> Sent:
    """Order again and again without waiting for an answer, half a megabyte each time."""
    sent: Sent = []
    for _ in range(50):
        sent += orders.request(EMBED, (PART_HEAD, bytes(500_000)))
        orders.sequence += 1
    return sent


NOT_READ = "the server's terms cannot be read"
NUMBERS = {
    "text": '"x"',
    "list": "[1]",
    "nested": "[" * 600 + "]" * 600,
    "negative": "-1",
    "huge": "1" + "0" * 400,
    "NaN": "NaN",
    "infinite": "1e999",
    "null": "null",
    "true": "true",
}
"""In the place of a number."""
PAIRS = {"alpha": '{"alpha":HERE,"beta":0.5}', "beta": '{"alpha":0.2,"beta":HERE}'}
RANGES = {"start": '{"start":HERE,"stop":40}', "stop": '{"start":0,"stop":HERE}'}

CASES: dict[str, Case] = {
    # welcome
    "welcome: heartbeats of NaN": Case("welcome", welcome(heartbeat_s=float("nan")), "no server may be set to"),
    "welcome: no heartbeats": Case("welcome", welcome(heartbeat_s=0.0), "no server may be set to"),
    "welcome: negative heartbeats": Case("welcome", welcome(heartbeat_s=-1.0), "no server may be set to"),
    "welcome: heartbeats as fast as can be": Case("welcome", welcome(heartbeat_s=1e-9), "no server may be set to"),
    "welcome: silence for ever": Case("welcome", welcome(silence_s=float("inf")), "no server may be set to"),
    "welcome: silence for a year": Case("welcome", welcome(silence_s=3e7), "no server may be set to"),
    "welcome: silence at once": Case("welcome", welcome(silence_s=0.001), "no server may be set to"),
    "welcome: no run": Case("welcome", welcome(run=""), r"welcome to run \(none\) came"),
    "welcome: a path for a run": Case("welcome", welcome(run="../../etc"), "run '../../etc' came"),
    "welcome: a run with an escape": Case("welcome", welcome(run="a\x1b[2J"), r"run 'a.x1b"),
    "welcome: a run without end": Case("welcome", welcome(run="a" * 10**6), "run 'aaa"),
    "welcome: no terms": Case("welcome", welcome(terms=""), NOT_READ),
    "welcome: terms of 1 MB": Case("welcome", welcome(terms="[" * 10**6), NOT_READ),
    "welcome: a list for terms": Case("welcome", welcome(terms="[]"), NOT_READ),
    "welcome: an extra term": Case("welcome", terms(price=1), NOT_READ),
    "welcome: more rounds": Case("welcome", terms(rounds=3), r"rounds 3 \(here 2\)"),
    "welcome: stronger pruning": Case("welcome", terms(alpha=0.9), r"alpha .*0.9.* \(here .*0.2"),
    "welcome: everything sent": Case("welcome", terms(beta={"0": 0.5, "1": 0.0}), r"beta .*1: 0.0"),
    "welcome: more rows": Case("welcome", terms(evaluation_rows=41), r"evaluation_rows 41 \(here 40\)"),
    "welcome: rows left out": Case("welcome", terms(sample_pruning=0.5), r"sample_pruning 0.5 \(here 0.0\)"),
    "welcome: no welcome": Case("welcome", control("goodbye"), "goodbye came where welcome is due"),
    "welcome: twice": Case("restore", welcome(), "welcome came again"),
    # restore and save
    "restore: of another run": Case("restore", control("restore", {"run": "fedcba9876543210"}), "restore of run fed"),
    "restore: of session 0": Case("restore", control("restore", {"session": 0}), "came before restore"),
    "restore: a round that is not there": Case("restore", control("restore", round=7, digest="a" * 64), "round.*7"),
    "restore: the last round of all": Case(
        "restore", control("restore", round=2**32 - 1, digest="a" * 64), "4294967295"
    ),
    "restore: a path for a digest": Case("restore", control("restore", round=1, digest="../x"), "digest '../x' came"),
    "restore: none, a request instead": Case("restore", lambda orders: orders.request(EMBED), "session|restore"),
    "save: of a round to come": Case("save", control("save", round=2), "save of round 2 came"),
    "save: of the last round of all": Case("save", control("save", round=2**32 - 1), "save of round 4294967295 came"),
    # orders' headers
    "request: of another run": Case("EMBED", header(run="x"), "request of run x came"),
    "request: of another session": Case("EMBED", header(session=9), "of session 9 came"),
    "request: again": Case("EMBED", header(sequence=1), "came again: a duplicate or a replay"),
    "request: too early": Case("EMBED", header(sequence=77), "came out of order"),
    "request: its envelope of another round": Case(
        "EMBED",
        lambda orders: [request(message(EMBED, 0, 0), **orders.header(round=1))],
        "the envelope is of round 1",
    ),
    "request: version 3": Case("EMBED", header(version=3), "protocol version 3 came"),
    "request: a round to come": Case(
        "EMBED", lambda orders: orders.request(EMBED, round=5), "is not at EMBED of round 5"
    ),
    "request: a kind that is an answer": Case("EMBED", lambda orders: orders.request(3), "cannot answer EMBEDDING"),
    "request: a kind that is none": Case("EMBED", lambda orders: orders.request(99), "99 is no Kind"),
    "request: empty": Case("EMBED", lambda orders: [request(b"", **orders.header())], "0 bytes are no message"),
    "request: 2**32 parts": Case(
        "EMBED",
        lambda orders: [request(b"\x01\x02" + bytes(8) + b"\xff\xff", **orders.header())],
        "65535 parts, at most",
    ),
    "request: of 4 GB": Case(
        "EMBED",
        lambda orders: [request(bytes(1 << 20), announced=2**32 - 1, **orders.header())],
        "network.max_message_mb allows",
    ),
    "request: without an end": Case("EMBED", raw(bytes([14 << 3 | 2]) + b"\xff" * 12), "a length that does not end"),
    "orders without end": Case("EMBED", flood, "more than can be under way|before the round's first embedding"),
    "no envelope": Case("EMBED", raw(b"\xff" * 40), "40 bytes are no envelope"),
    "nothing inside": Case("EMBED", raw(Envelope(version=2).SerializeToString()), "an envelope without content"),
    "a reply": Case("EMBED", raw(b"\x7a\x00" + Envelope(version=2, run=RUN).SerializeToString()), "reply came"),
    "a hello": Case("EMBED", control("hello"), "hello came, which is no order"),
    # START_ROUND
    "START_ROUND: no settings": Case("START_ROUND", lambda orders: orders.request(1), "0 CONTROL parts instead of 1"),
    "START_ROUND: no JSON": Case("START_ROUND", start_round("{"), "RoundStart"),
    "START_ROUND: a missing key": Case("START_ROUND", start_round('{"alpha":0.2}'), "beta"),
    "START_ROUND: an extra key": Case("START_ROUND", start_round('{"alpha":0.2,"beta":0.5,"x":1}'), "'x'"),
    "START_ROUND: a digest that is none": Case(
        "START_ROUND", start_round('{"alpha":0.2,"beta":0.5,"head_digest":"x"}'), "head_digest"
    ),
    "START_ROUND: alpha beyond": Case("START_ROUND", start_round('{"alpha":0.3,"beta":0.5}'), "at most 0.2 is agreed"),
    "START_ROUND: beta beyond": Case("START_ROUND", start_round('{"alpha":0.2,"beta":0.4}'), "at least 0.5 is agreed"),
    "START_ROUND: a round beyond": Case(
        "START_ROUND", lambda orders: orders.start_round(round=2), "2 rounds are agreed"
    ),
    "START_ROUND: the second first": Case("START_ROUND", lambda orders: orders.start_round(round=1), "round 1 came"),
    # an update, which EMBED and END_ROUND bring
    "UPDATE: before the first embedding": Case(
        "EMBED",
        lambda orders: orders.request(EMBED, (PART_GRADIENT, dense_frame())),
        "an update came to party_1 before the round's first embedding",
    ),
    "UPDATE: NaN": Case("END_ROUND", update(dense_frame(value=float("nan"))), "finite|NaN|nan"),
    "UPDATE: infinite": Case("END_ROUND", update(dense_frame(value=float("inf"))), "finite|inf"),
    "UPDATE: another shape": Case("END_ROUND", update(dense_frame(rows=8, width=16)), "8|shape"),
    "UPDATE: a shape beyond memory": Case("END_ROUND", update(dense_frame(rows=65_000, width=65_000, values=1)), "."),
    "UPDATE: cut off": Case("END_ROUND", update(dense_frame()[:-3]), "."),
    "UPDATE: no frame": Case("END_ROUND", update(b""), "."),
    "UPDATE: none": Case("END_ROUND", lambda orders: orders.request(END_ROUND), "0 gradients|0 GRADIENT"),
    "UPDATE: two": Case(
        "END_ROUND",
        lambda orders: orders.request(END_ROUND, (PART_GRADIENT, dense_frame()), (PART_GRADIENT, dense_frame())),
        "2 gradients|2 GRADIENT",
    ),
    "UPDATE: settings instead": Case("END_ROUND", lambda orders: orders.request(END_ROUND, (PART_CONTROL, b"{}")), "."),
    # EVALUATE
    "EVALUATE: rows that are not there": Case("EVALUATE", evaluate('{"start":30,"stop":70}'), "30 to 70"),
    "EVALUATE: backwards": Case("EVALUATE", evaluate('{"start":40,"stop":0}'), "40 to 0"),
    "EVALUATE: more than agreed": Case(
        "DESCRIBE", evaluate('{"start":0,"stop":200}'), "240 rows in a round is ordered, 160 are agreed"
    ),
    # the last words
    "goodbye: with an unknown code": Case("EMBED", control("goodbye", exit_code=77), "goodbye with exit code 77"),
    "refusal: with escapes": Case("EMBED", control("refusal", reason="a\x1b[31m\nb"), r"a.x1b\[31m b"),
    "refusal: of 1 MB": Case("EMBED", control("refusal", reason="x" * 10**6), r"x{200,}\.\.\."),
}


def lies() -> dict[str, Case]:
    """Every number that a server sends with a lie in its place: five of them each, all in turn."""
    places = [("START_ROUND", name, text) for name, text in PAIRS.items()]
    places += [("EVALUATE", name, text) for name, text in RANGES.items()]
    places += [("welcome", name, json.dumps(TERMS | {name: "HERE"}).replace('"HERE"', "HERE")) for name in TERMS]
    names = list(NUMBERS)
    cases: dict[str, Case] = {}
    for number, (at, field, text) in enumerate(places):
        for step in range(5):
            lie = names[(5 * number + step) % len(names)]
            make = {"START_ROUND": start_round, "EVALUATE": evaluate, "welcome": lambda sent: welcome(terms=sent)}[at]
            cases[f"{at}: {field} {lie}"] = Case(
                at, make(text.replace("HERE", NUMBERS[lie])), "RoundStart|SampleRange|agreed|rows|terms|samples"
            )
    return cases


CASES |= lies()
