"""What an evil party sends: every field of every message of a party, wrong in every way that it can be."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from attacks.wire import GOODBYE, HELLO, REFUSAL, RESTORED, SAVED, WELCOME, Frame, said
from attacks.wire_party import (
    DESCRIBED,
    DESCRIPTION,
    DONE,
    EMBEDDING,
    EVALUATION,
    PART_CONTROL,
    PART_EMBEDDING,
    REPORT,
    Answer,
    Attack,
    frame,
)


class Case(NamedTuple):
    """An attack at the first order of a kind, and what the attacker is told."""

    at: str
    attack: Attack
    told: str
    """A regular expression."""


def changed(**fields: Any) -> Attack:
    """Change the header of the answer; a function is given the honest value."""

    def attack(order: Frame, honest: Frame) -> list[Answer]:
        for name, value in fields.items():
            setattr(honest, name, value(getattr(honest, name)) if callable(value) else value)
        return [honest]

    return attack


def of(kind: int, *parts: tuple[int, bytes]) -> Attack:
    """Send a message of the order's round and exchange, whatever is in it."""
    return changed(kind=kind, parts=[*parts])


def saying(kind: int, **values: Any) -> Attack:
    return of(kind, *said(values))


def embedding(payload: bytes) -> Attack:
    return of(EMBEDDING, (PART_EMBEDDING, payload))


def control(kind: int, field: str, text: str | None) -> Attack:
    """Put JSON text in the place of a field's value; None takes the field away."""

    def make(order: Frame, honest: Frame) -> list[Answer]:
        values = honest.control
        values.pop(field, None)
        items = [f"{json.dumps(key)}:{json.dumps(value)}" for key, value in values.items()]
        items += [] if text is None else [f"{json.dumps(field)}:{text}"]
        payload = ("{" + ",".join(items) + "}").encode()
        return of(kind, (PART_CONTROL, payload))(order, honest)

    return make


NESTED = "[" * 600 + "]" * 600
LIES = {
    "missing": None,
    "null": "null",
    "text": '"x"',
    "list": "[1]",
    "nested": NESTED,
    "negative": "-1",
    "huge": "1" + "0" * 400,
    "not a number": "NaN",
    "infinite": "1e999",
    "true": "true",
    "object": "{}",
}
"""In the place of any value; no field takes one of them."""
REPORT_FIELDS = (
    "alpha",
    "beta",
    "macs_per_sample",
    "parameters",
    "train_macs",
    "unpruned_train_macs",
    "train_time_s",
    "omega",
    "psi",
    "head_drift",
)


def lies() -> dict[str, Case]:
    """Every field of the report and the description with a lie in it: three of them each, all in turn."""
    cases: dict[str, Case] = {}
    names = list(LIES)
    fields = [("END_ROUND", REPORT, name) for name in REPORT_FIELDS]
    fields += [("DESCRIBE", DESCRIPTION, name) for name in DESCRIBED]
    for number, (at, kind, field) in enumerate(fields):
        for step in range(3):
            lie = names[(3 * number + step) % len(names)]
            cases[f"{field} {lie}"] = Case(at, control(kind, field, LIES[lie]), "Report: |Description: ")
    return cases


def twice(order: Frame, honest: Frame) -> list[Answer]:
    return [honest, honest]


def raw(change: Callable[[bytes], bytes]) -> Attack:
    """Send other bytes than the honest frame's."""
    return lambda order, honest: [change(honest.packed())]


def refuse(order: Frame, honest: Frame) -> list[Answer]:
    return [Frame(REFUSAL, parts=said({"reason": "No space left on device"}))]


def body(change: Callable[[bytes], bytes]) -> Attack:
    """Change the bytes behind the header, whose length is true."""

    def attack(order: Frame, honest: Frame) -> list[Answer]:
        honest.body = change(honest.packed()[32:])
        return [honest]

    return attack


def in_pieces(order: Frame, payload: bytes) -> list[bytes]:
    """Return a report of any length as it is cut."""
    data = replace(order, kind=REPORT, parts=[(PART_CONTROL, payload)]).packed()
    return [data[start : start + 2**20] for start in range(0, len(data), 2**20)]


SHAPE = 16, 8
VAST = bytes([1, 2, 0, 2, 0]) + struct.pack("<III", 0, 65_000, 65_000)
"""A header of 65,000 x 65,000 zeros, in the form of gaps: 17 bytes, and correct."""
NAN, INFINITE = float("nan"), float("inf")

HEADERS = {
    "another run": Case("EMBED", changed(run="fedcba9876543210"), "EMBEDDING of run fedcba9876543210 came"),
    "no run": Case("EMBED", changed(run="00" * 8), r"EMBEDDING of run \(none\) came"),
    "another version": Case("EMBED", changed(version=5), "protocol version 5 came"),
    "the version before": Case("EMBED", changed(version=3), "protocol version 3 came"),
    "session 0": Case("EMBED", changed(session=0), "EMBEDDING of session 0 came, this is session"),
    "the last session": Case("EMBED", changed(session=lambda number: number - 1), "EMBEDDING of session"),
    "a session to come": Case("EMBED", changed(session=2**32 - 1), "EMBEDDING of session 4294967295 came"),
    "sequence 0": Case("EMBED", changed(sequence=0), "came again: a duplicate or a replay"),
    "sequence to come": Case("EMBED", changed(sequence=2**32 - 1), "came out of order"),
    "another round": Case("EMBED", changed(round=1), "EMBEDDING of round 2, exchange 1 came where .* round 1"),
    "another exchange": Case("EMBED", changed(exchange=1), "EMBEDDING of round 1, exchange 2 came where"),
    "a far round": Case("EMBED", changed(round=7), "EMBEDDING of round 8"),
    "a far exchange": Case("EMBED", changed(exchange=7), "exchange 8 came where"),
    "twice": Case("EMBED", twice, "came again: a duplicate|came out of order"),
    "saved for an embedding": Case("EMBED", saying(SAVED, digest="0" * 64), "SAVED .* came where EMBEDDING"),
    "restored for an embedding": Case("EMBED", of(RESTORED), "RESTORED .* came where EMBEDDING"),
    "done for restored": Case("restore", of(DONE), "DONE .* came where RESTORED"),
    "an order": Case("EMBED", of(2), "EMBED came, which only a server sends"),
    "a hello": Case("EMBED", saying(HELLO, party="party_1"), "HELLO came"),
    "a goodbye": Case("EMBED", saying(GOODBYE, exit_code=0), "GOODBYE came"),
    "a welcome": Case("EMBED", saying(WELCOME, silence_s=1e9), "WELCOME came"),
    "refuses": Case("EMBED", refuse, "^$|it refused"),
    "refuses without a reason": Case("EMBED", of(REFUSAL), "REFUSAL message with 0 CONTROL parts"),
    "no frame": Case("EMBED", raw(lambda honest: b"\xff" * 40), "protocol version 255 came"),
    "a frame of protobuf": Case("EMBED", raw(lambda honest: b"\x08\x02" + bytes(40)), "protocol version 8 came"),
    "nothing": Case("EMBED", raw(lambda honest: b""), "0 bytes are no frame"),
    "half a header": Case("EMBED", raw(lambda honest: honest[:20]), "20 bytes are no frame"),
    "a length of 1 GiB": Case("EMBED", changed(length=1 << 30), "EMBEDDING of 1073741856 bytes came, network.max"),
    "a length of 4 GiB": Case("EMBED", changed(length=2**32 - 1), "EMBEDDING of 4294967327 bytes came"),
    "a length above": Case("EMBED", changed(length=lambda _: 10_000), "bytes of a EMBEDDING came where 10032 are due"),
    "a length below": Case("EMBED", changed(length=lambda _: 0), "bytes of a EMBEDDING came where 32 are due"),
    "a digest that is none": Case("save", saying(SAVED, digest="../../etc/passwd"), "Saved: 'digest': .* pattern"),
    "no digest": Case("save", saying(SAVED), "Saved: 'digest': Field required"),
    "an empty digest": Case("save", saying(SAVED, digest=""), "Saved: 'digest': .* pattern"),
    "a digest of 1 MB": Case("save", saying(SAVED, digest="0" * 1_000_000), "Saved: 'digest': .* pattern"),
    "an unknown field": Case("save", saying(SAVED, digest="0" * 64, x=1), "Saved: 'x': Extra inputs"),
}
MESSAGES = {
    "an unknown kind": Case("EMBED", of(99), "99 is no Kind"),
    "a kind not due": Case("EMBED", of(DONE), "DONE of round 1, exchange 1 came where EMBEDDING"),
    "no embedding": Case("EMBED", of(EMBEDDING), "EMBEDDING with 0 parts instead of 1"),
    "two embeddings": Case("EMBED", of(EMBEDDING, *[(1, frame(SHAPE))] * 2), "EMBEDDING with 2 parts instead of 1"),
    "an unknown part": Case("EMBED", of(EMBEDDING, (99, b"")), "99 is no PartKind"),
    "control in an embedding": Case("EMBED", of(EMBEDDING, (4, b"{}")), "EMBEDDING message with a CONTROL part"),
    "65,535 parts": Case("EMBED", changed(count=65_535), "65535 parts, at most 4096"),
    "a part more": Case("EMBED", changed(count=2), "truncated in a part's header"),
    "no parts but bytes": Case("EMBED", changed(count=0), "bytes after the last part"),
    "cut short": Case("EMBED", body(lambda honest: honest[:-2]), "truncated in a part's payload"),
    "bytes at the end": Case("EMBED", body(lambda honest: honest + b"x"), "1 bytes after the last part"),
    "bytes behind the frame": Case("EMBED", raw(lambda honest: honest + b"x"), "bytes of a EMBEDDING came where"),
    "bytes booked as saved": Case("START_ROUND", of(DONE, (1, VAST)), "DONE message with a EMBEDDING part"),
    "a head in DONE": Case("START_ROUND", of(DONE, (3, frame((2,)))), "DONE message with a HEAD part"),
    "a control part above 1 MiB": Case(
        "END_ROUND", lambda order, honest: [*in_pieces(order, b" " * 1_100_000)], "control part of 1100000 bytes"
    ),
    "a message not cut": Case("END_ROUND", of(REPORT, (4, b" " * 1_100_000)), "larger than max"),
    "a piece cut short": Case(
        "END_ROUND",
        lambda order, honest: [in_pieces(order, b" " * 1_100_000)[0][:-1]],
        "came where 1048576 are due",
    ),
    "a report that is a list": Case("END_ROUND", of(REPORT, (4, b"[]")), "Report: Input should be an object"),
    "a report that is no JSON": Case("END_ROUND", of(REPORT, (4, b"{")), "Report: Invalid JSON"),
    "a report of other bytes": Case("END_ROUND", of(REPORT, (4, b"\xff\xfe")), "Report: Invalid JSON"),
    "a nested report": Case("END_ROUND", of(REPORT, (4, NESTED.encode())), "Report: Invalid JSON"),
    "deep objects": Case("END_ROUND", of(REPORT, (4, b'{"a":' * 600 + b"1" + b"}" * 600)), "Report: Invalid JSON"),
}
FRAMES = {
    "65,000 x 65,000": Case("EMBED", embedding(VAST), r"shape \(65000, 65000\), expected \(16, 8\)"),
    "evaluation of 65,000 x 65,000": Case("EVALUATE", of(EVALUATION, (1, VAST)), r"shape \(65000, 65000\), expected"),
    "a row too few": Case("EMBED", embedding(frame((15, 8))), r"shape \(15, 8\), expected \(16, 8\)"),
    "one dimension": Case("EMBED", embedding(frame((128,))), r"shape \(128,\), expected"),
    "no bytes": Case("EMBED", embedding(b""), "a frame of 0 bytes came for 16 samples"),
    "frame version 2": Case("EMBED", embedding(frame(SHAPE, version=2)), "frame is of version 2"),
    "format 9": Case("EMBED", embedding(frame(SHAPE, format=9)), "unknown format 9"),
    "value type 9": Case("EMBED", embedding(frame(SHAPE, values=9)), "value type 9"),
    "another value type": Case("EMBED", embedding(frame(SHAPE, values=1)), "its values are float16, float32 was"),
    "nine dimensions": Case("EMBED", embedding(frame(SHAPE, dimensions=9)), "declares 9 dimensions"),
    "too many values": Case("EMBED", embedding(frame(SHAPE, nonzeros=2**32 - 1)), "declares 4294967295 non-zero"),
    "fewer values": Case("EMBED", embedding(frame(SHAPE, nonzeros=5)), "does not hold the 5 non-zero values"),
    "a Rice parameter": Case("EMBED", embedding(frame(SHAPE, k=7)), "Rice parameter 7"),
    "gaps of nothing": Case("EMBED", embedding(frame(SHAPE, format=2, k=31)), "gaps frame of shape"),
    "a bitmap of nothing": Case("EMBED", embedding(frame(SHAPE, format=1)), "bitmap frame of shape"),
    "a short body": Case("EMBED", embedding(frame(SHAPE)[:-4]), "dense frame of shape"),
    "NaN": Case("EMBED", embedding(frame(SHAPE, NAN)), "values that are not finite"),
    "infinity": Case("EMBED", embedding(frame(SHAPE, INFINITE)), "values that are not finite"),
    "3e38 at the test": Case("EVALUATE", of(EVALUATION, (1, frame((40, 8), 3e38))), r"test has values beyond 1e\+06"),
    "NaN at the test": Case("EVALUATE", of(EVALUATION, (1, frame((40, 8), NAN))), "values that are not finite"),
}
REPORTS = {
    "an alpha not assigned": Case("END_ROUND", control(REPORT, "alpha", "0.5"), "alpha 0.5 where 0 was assigned"),
    "a beta not assigned": Case("END_ROUND", control(REPORT, "beta", "0.0"), "beta 0 where 0.3 was assigned"),
    "images not assigned": Case(
        "END_ROUND", control(REPORT, "resolution", "0.5"), "resolution 0.5 where 1 was assigned"
    ),
    "fewer MACs than unpruned": Case("END_ROUND", control(REPORT, "macs_per_sample", "999"), "macs_per_sample 999"),
    "MACs that do not add up": Case("END_ROUND", control(REPORT, "train_macs", "1"), "train_macs 1 for 1000 a sample"),
    "no dense MACs": Case("END_ROUND", control(REPORT, "unpruned_train_macs", "0"), "macs_per_sample 1000 of 0"),
    "a million seconds": Case("END_ROUND", control(REPORT, "train_time_s", '"1.000000e+06"'), "train_time_s 1.0"),
    "seconds of another form": Case("END_ROUND", control(REPORT, "train_time_s", '"1_0"'), "train_time_s"),
    "no drift where the head is replayed": Case("END_ROUND", control(REPORT, "head_drift", None), "head_drift"),
    "an unknown key": Case("END_ROUND", control(REPORT, "x" * 5000, "1"), "Extra inputs are not permitted"),
    "20,000 layers": Case(
        "DESCRIBE", control(DESCRIPTION, "widths", json.dumps({f"l{n}": 1 for n in range(20_000)})), "at most 1024"
    ),
    "a layer of no width": Case("DESCRIBE", control(DESCRIPTION, "widths", '{"layer.0": 0}'), "greater than or equal"),
    "a layer wider than built": Case("DESCRIBE", control(DESCRIPTION, "widths", '{"layer.0": 5}'), "above original"),
    "other layers": Case("DESCRIBE", control(DESCRIPTION, "widths", '{"layer.1": 3}'), "of other layers"),
    "a formula for a name": Case("DESCRIBE", control(DESCRIPTION, "widths", '{"$\\\\frac{": 3}'), "match pattern"),
    "a digest in capitals": Case("DESCRIBE", control(DESCRIPTION, "weights_digest", f'"{"A" * 64}"'), "match pattern"),
}
CASES = HEADERS | MESSAGES | FRAMES | REPORTS | lies()
ORDER = ("restore", "START_ROUND", "EMBED", "END_ROUND", "EVALUATE", "save", "DESCRIBE")
"""In which a session comes to them: an attack ends it, so the early ones are played first."""
HELLOS: dict[str, tuple[dict[str, Any], str]] = {
    "another's name": ({"party": "party_1"}, "the certificate is of 'party_2', the hello says 'party_1'"),
    "a name of nobody": ({"party": "../x"}, "Hello: 'party': .* pattern"),
    "another width": ({"embedding_width": 2**32 - 1}, "embedding_size"),
    "no agreement": ({"agreement": ""}, "settings are not JSON"),
    "an agreement that is a list": ({"agreement": "[]"}, "not a JSON object"),
    "a nested agreement": ({"agreement": "[" * 100_000}, "settings are not JSON"),
    "a huge seed": ({"agreement": '{"seed": 1' + "0" * 4000 + "}"}, "differ in"),
    "a setting too many": ({"agreement": '{"x": 1}'}, "differ in"),
    "other training ids": ({"train_ids": "0" * 64}, "ids of the training samples"),
    "other test ids": ({"test_ids": ""}, "ids of the test samples"),
    "other labels": ({"labels": "x" * 64}, "training labels"),
    "100 kB of labels": ({"labels": "x" * 100_000}, "Hello: 'labels': .* pattern"),
    "20,000 rounds": ({"rounds": [1] * 20_000}, "Hello: 'rounds': .*at most 10000"),
    "a million rounds": ({"rounds": [1] * 1_000_000}, "RESOURCE_EXHAUSTED|larger than max"),
    "3 MB of rounds": ({"rounds": [2**20] * 1_000_000}, "RESOURCE_EXHAUSTED"),
}
