"""What an evil server sends: every field of every message of a server, wrong in every way that it can be."""

import json
from typing import Any, NamedTuple

from attacks.wire import GOODBYE, HELLO, REFUSAL, RESTORE, SAVE, Frame
from attacks.wire_server import (
    EMBED,
    END_ROUND,
    PART_CONTROL,
    PART_GRADIENT,
    PART_HEAD,
    PART_PRESENCE,
    RUN,
    TERMS,
    Lie,
    Sent,
    dense_frame,
)


class Case(NamedTuple):
    """A lie in the place of one step's message, and what the owner is told."""

    at: str
    lie: Lie
    told: str
    """A regular expression."""
    release: bool = False
    """Whether it is for a release alone."""


def welcome(**changes: Any) -> Lie:
    return lambda orders: orders.welcome(**changes)


def terms(**changes: Any) -> Lie:
    """Offer other terms; None takes one away."""
    offered = {name: value for name, value in (TERMS | changes).items() if value is not None}
    return lambda orders: orders.welcome(terms=json.dumps(offered))


def control(kind: int, header: dict[str, Any] | None = None, **fields: Any) -> Lie:
    return lambda orders: orders.control(kind, header, **fields)


def start_round(text: str) -> Lie:
    return lambda orders: orders.start_round(text)


def evaluate(text: str) -> Lie:
    return lambda orders: orders.evaluate(text)


def update(payload: bytes) -> Lie:
    return lambda orders: orders.end_round(payload)


def header(**changes: Any) -> Lie:
    """Ask for the embedding with another header."""
    return lambda orders: orders.frame(EMBED, **changes)


def raw(*data: bytes) -> Lie:
    return lambda orders: list(data)


def flood(orders: Any) -> Sent:
    """Order again and again without waiting for an answer, half a megabyte each time."""
    sent: Sent = []
    for _ in range(50):
        sent += orders.frame(EMBED, (PART_HEAD, bytes(500_000)))
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
    "welcome: heartbeats of NaN": Case("welcome", welcome(heartbeat_s=float("nan")), "Welcome: .heartbeat_s"),
    "welcome: no heartbeats": Case("welcome", welcome(heartbeat_s=0.0), "no server may be set to"),
    "welcome: negative heartbeats": Case("welcome", welcome(heartbeat_s=-1.0), "no server may be set to"),
    "welcome: heartbeats as fast as can be": Case("welcome", welcome(heartbeat_s=1e-9), "no server may be set to"),
    "welcome: silence for ever": Case("welcome", welcome(silence_s=float("inf")), "Welcome: .silence_s"),
    "welcome: silence for a year": Case("welcome", welcome(silence_s=3e7), "no server may be set to"),
    "welcome: silence at once": Case("welcome", welcome(silence_s=0.001), "no server may be set to"),
    "welcome: no run": Case("welcome", welcome(run="00" * 8), r"welcome to run \(none\) came"),
    "welcome: without content": Case("welcome", lambda orders: orders.frame(41), "0 CONTROL parts instead of 1"),
    "welcome: an extra key": Case("welcome", welcome(x=1), "Welcome: 'x': Extra inputs"),
    "welcome: terms of another type": Case("welcome", welcome(terms=["a\x1b[2J"]), "Welcome: 'terms'"),
    "welcome: no terms": Case("welcome", welcome(terms=""), NOT_READ),
    "welcome: terms of 1 MB": Case("welcome", welcome(terms="[" * 10**6), NOT_READ),
    "welcome: a list for terms": Case("welcome", welcome(terms="[]"), NOT_READ),
    "welcome: an extra term": Case("welcome", terms(price=1), NOT_READ),
    "welcome: more rounds": Case("welcome", terms(rounds=3), r"rounds 3 \(here 2\)"),
    "welcome: stronger pruning": Case("welcome", terms(alpha=0.9), r"alpha .*0.9.* \(here .*0.2"),
    "welcome: everything sent": Case("welcome", terms(beta={"0": 0.5, "1": 0.0}), r"beta .*1: 0.0"),
    "welcome: smaller images": Case("welcome", terms(resolution={"0": 0.5, "1": 1}), r"resolution .*0: 0.5.*None"),
    "welcome: more rows": Case("welcome", terms(evaluation_rows=41), r"evaluation_rows 41 \(here 40\)"),
    "welcome: no welcome": Case("welcome", control(GOODBYE), "GOODBYE came where WELCOME is due"),
    "welcome: twice": Case("restore", welcome(), "WELCOME came again"),
    # restore and save
    "restore: of another run": Case("restore", control(RESTORE, {"run": "fedcba9876543210"}), "RESTORE of run fed"),
    "restore: of session 0": Case("restore", control(RESTORE, {"session": 0}), "came before RESTORE"),
    "restore: a round that is not there": Case("restore", control(RESTORE, round=7, digest="a" * 64), "round.*7"),
    "restore: the last round of all": Case("restore", control(RESTORE, round=2**32 - 1, digest="a" * 64), "4294967295"),
    "restore: a path for a digest": Case(
        "restore", control(RESTORE, round=1, digest="../x"), "Restore: 'digest': .* pattern"
    ),
    "restore: none, a request instead": Case("restore", lambda orders: orders.frame(EMBED), "session|RESTORE"),
    "save: of a round to come": Case("save", control(SAVE, round=2), "SAVE after round 2 came"),
    "save: of the last round of all": Case("save", control(SAVE, round=2**32 - 1), "SAVE after round 4294967295 came"),
    # orders' headers
    "request: of another run": Case("EMBED", header(run="fedcba9876543210"), "EMBED of run fed"),
    "request: of another session": Case("EMBED", header(session=9), "of session 9 came"),
    "request: again": Case("EMBED", header(sequence=1), "came again: a duplicate or a replay"),
    "request: too early": Case("EMBED", header(sequence=77), "came out of order"),
    "request: of no run": Case("EMBED", header(run="00" * 8), r"EMBED of run \(none\) came"),
    "request: version 3": Case("EMBED", header(version=3), "protocol version 3 came"),
    "request: version 5": Case("EMBED", header(version=5), "protocol version 5 came"),
    "request: a round to come": Case(
        "EMBED", lambda orders: orders.frame(EMBED, round=5), "is not at EMBED of round 6"
    ),
    "request: a kind that is an answer": Case(
        "EMBED", lambda orders: orders.frame(3), "EMBEDDING came, which is no order"
    ),
    "request: a kind that is none": Case("EMBED", lambda orders: orders.frame(99), "99 is no Kind"),
    "request: another's kind": Case("EMBED", lambda orders: orders.frame(21), "BROUGHT came, which is no order"),
    "request: of a match": Case("EMBED", lambda orders: orders.frame(20), "cannot answer MATCH"),
    "request: 2**16 parts": Case("EMBED", header(count=65_535), "65535 parts, at most"),
    "request: of 4 GB": Case("EMBED", header(length=2**32 - 1, body=bytes(1000)), "network.max_message_mb allows"),
    "request: cut short": Case("EMBED", header(length=9), "32 bytes of a EMBED came where 41 are due"),
    "restore: of 2 MB": Case("restore", lambda orders: orders.frame(RESTORE, length=2**21), "at most 1048576"),
    "orders without end": Case("EMBED", flood, "more than can be under way|before the round's first embedding"),
    "no frame": Case("EMBED", raw(b"\xff" * 40), "protocol version 255 came"),
    "a frame of protobuf": Case("EMBED", raw(b"\x08\x02" + bytes(40)), "protocol version 8 came"),
    "nothing": Case("EMBED", raw(b""), "0 bytes are no frame"),
    "half a header": Case("EMBED", raw(Frame(EMBED).packed()[:20]), "20 bytes are no frame"),
    "a reply": Case("EMBED", raw(Frame(10, run=RUN).packed()), "DONE came, which is no order"),
    "a hello": Case("EMBED", control(HELLO), "HELLO came, which is no order"),
    # START_ROUND
    "START_ROUND: no settings": Case("START_ROUND", lambda orders: orders.frame(1), "0 CONTROL parts instead of 1"),
    "START_ROUND: no JSON": Case("START_ROUND", start_round("{"), "RoundStart"),
    "START_ROUND: a missing key": Case("START_ROUND", start_round('{"alpha":0.2}'), "beta"),
    "START_ROUND: an extra key": Case("START_ROUND", start_round('{"alpha":0.2,"beta":0.5,"x":1}'), "'x'"),
    "START_ROUND: a digest that is none": Case(
        "START_ROUND", start_round('{"alpha":0.2,"beta":0.5,"head_digest":"x"}'), "head_digest"
    ),
    "START_ROUND: alpha beyond": Case("START_ROUND", start_round('{"alpha":0.3,"beta":0.5}'), "at most 0.2 is agreed"),
    "START_ROUND: smaller images": Case(
        "START_ROUND", start_round('{"alpha":0.2,"beta":0.5,"resolution":0.5}'), "at least 1 is agreed"
    ),
    "START_ROUND: beta beyond": Case("START_ROUND", start_round('{"alpha":0.2,"beta":0.4}'), "at least 0.5 is agreed"),
    "START_ROUND: a round beyond": Case(
        "START_ROUND", lambda orders: orders.start_round(round=2), "2 rounds are agreed"
    ),
    "START_ROUND: rows left out": Case(
        "START_ROUND",
        lambda orders: orders.frame(1, (PART_CONTROL, b'{"alpha":0.2,"beta":0.5}'), (PART_PRESENCE, b"\xff\xef")),
        "1 rows of party_1 are left out, to which training.party_dropout does not agree",
    ),
    "START_ROUND: the second first": Case("START_ROUND", lambda orders: orders.start_round(round=1), "round 2 came"),
    # an update, which EMBED and END_ROUND bring
    "UPDATE: before the first embedding": Case(
        "EMBED",
        lambda orders: orders.frame(EMBED, (PART_GRADIENT, dense_frame())),
        "an update came to party_1 before the round's first embedding",
    ),
    "UPDATE: NaN": Case("END_ROUND", update(dense_frame(value=float("nan"))), "finite|NaN|nan"),
    "UPDATE: infinite": Case("END_ROUND", update(dense_frame(value=float("inf"))), "finite|inf"),
    "UPDATE: another shape": Case("END_ROUND", update(dense_frame(rows=8, width=16)), "8|shape"),
    "UPDATE: a shape beyond memory": Case("END_ROUND", update(dense_frame(rows=65_000, width=65_000, values=1)), "."),
    "UPDATE: cut off": Case("END_ROUND", update(dense_frame()[:-3]), "."),
    "UPDATE: no frame": Case("END_ROUND", update(b""), "."),
    "UPDATE: none": Case("END_ROUND", lambda orders: orders.frame(END_ROUND), "0 gradients|0 GRADIENT"),
    "UPDATE: two": Case(
        "END_ROUND",
        lambda orders: orders.frame(END_ROUND, (PART_GRADIENT, dense_frame()), (PART_GRADIENT, dense_frame())),
        "2 gradients|2 GRADIENT",
    ),
    "UPDATE: settings instead": Case("END_ROUND", lambda orders: orders.frame(END_ROUND, (PART_CONTROL, b"{}")), "."),
    # EVALUATE
    "EVALUATE: rows that are not there": Case("EVALUATE", evaluate('{"start":30,"stop":70}'), "30 to 70"),
    "EVALUATE: backwards": Case("EVALUATE", evaluate('{"start":40,"stop":0}'), "40 to 0"),
    "EVALUATE: more than agreed": Case(
        "DESCRIBE", evaluate('{"start":0,"stop":200}'), "240 rows in a round is ordered, 120 are agreed"
    ),
    # the last words
    "goodbye: with an unknown code": Case("EMBED", control(GOODBYE, exit_code=77), "Goodbye: .exit_code"),
    "goodbye: without content": Case("EMBED", lambda orders: orders.frame(GOODBYE), "0 CONTROL parts instead of 1"),
    "refusal: with escapes": Case("EMBED", control(REFUSAL, reason="a\x1b[31m\nb"), r"a.x1b\[31m b"),
    "refusal: of 1 MB": Case("EMBED", control(REFUSAL, reason="x" * 10**6), r"x{200,}\.\.\."),
}


def lies() -> dict[str, Case]:
    """Every number that a server sends with a lie in its place: five of them each, all in turn; two at every run."""
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
                at,
                make(text.replace("HERE", NUMBERS[lie])),
                "RoundStart|SampleRange|agreed|rows|terms|samples",
                step > 1,
            )
    return cases


CASES |= lies()
