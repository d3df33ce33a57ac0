"""What an evil party sends: every field of every message of a party, wrong in every way that it can be."""

import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

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
    Envelope,
    frame,
    message,
)


class Case(NamedTuple):
    """An attack at the first order of a kind, and what the attacker is told."""

    at: str
    attack: Attack
    told: str
    """A regular expression."""


def changed(**fields: Any) -> Attack:
    """Change the envelope of the answer; a function is given the honest value."""

    def attack(order: Envelope, honest: Envelope) -> list[Answer]:
        for name, value in fields.items():
            setattr(honest, name, value(getattr(honest, name)) if callable(value) else value)
        return [honest]

    return attack


def instead(make: Callable[[Envelope], bytes]) -> Attack:
    """Send another packed message."""
    return changed_by(lambda order: {"reply": make(order)})


def changed_by(make: Callable[[Envelope], dict[str, Any]]) -> Attack:
    return lambda order, honest: changed(**make(order))(order, honest)


def of(kind: int, *parts: tuple[int, bytes]) -> Attack:
    """Send a message of the order's round and exchange, whatever is in it."""
    return instead(lambda order: message(kind, order.round, order.exchange, *parts))


def embedding(payload: bytes) -> Attack:
    return of(EMBEDDING, (PART_EMBEDDING, payload))


def control(kind: int, field: str, text: str | None) -> Attack:
    """Put JSON text in the place of a field's value; None takes the field away."""

    def make(order: Envelope, honest: Envelope) -> list[Answer]:
        values = json.loads(honest.reply[17:])
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


def twice(order: Envelope, honest: Envelope) -> list[Answer]:
    return [honest, honest]


def last_two_bytes_gone(order: Envelope, honest: Envelope) -> list[Answer]:
    honest.reply = honest.reply[:-2]
    return [honest]


def refuse(order: Envelope, honest: Envelope) -> list[Answer]:
    refusal = Envelope(version=2)
    refusal.refusal.reason = "No space left on device"
    return [refusal]


def kind_instead(**kind: Any) -> Attack:
    def attack(order: Envelope, honest: Envelope) -> list[Answer]:
        honest.ClearField("reply")
        for name, value in kind.items():
            getattr(honest, name).SetInParent()
            for field, content in value.items():
                setattr(getattr(honest, name), field, content)
        return [honest]

    return attack


SHAPE = 16, 8
VAST = bytes([1, 2, 0, 2, 0]) + struct.pack("<III", 0, 65_000, 65_000)
"""A header of 65,000 x 65,000 zeros, in the form of gaps: 17 bytes, and correct."""
NAN, INFINITE = float("nan"), float("inf")

ENVELOPES = {
    "another run": Case("EMBED", changed(run="fedcba9876543210"), "reply of run fedcba9876543210 came"),
    "no run": Case("EMBED", changed(run=""), r"reply of run \(none\) came"),
    "another version": Case("EMBED", changed(version=3), "protocol version 3 came"),
    "session 0": Case("EMBED", changed(session=0), "reply of session 0 came, this is session"),
    "the last session": Case("EMBED", changed(session=lambda number: number - 1), "reply of session"),
    "a session to come": Case("EMBED", changed(session=2**32 - 1), "reply of session 4294967295 came"),
    "sequence 0": Case("EMBED", changed(sequence=0), "came again: a duplicate or a replay"),
    "sequence to come": Case("EMBED", changed(sequence=2**32 - 1), "came out of order"),
    "another round": Case("EMBED", changed(round=1), "reply of round 1, exchange 0 came where round 0"),
    "another exchange": Case("EMBED", changed(exchange=1), "reply of round 0, exchange 1 came where"),
    "twice": Case("EMBED", twice, "came again: a duplicate|came out of order"),
    "saved for a reply": Case("EMBED", kind_instead(saved={"digest": "0" * 64}), "saved came where reply is due"),
    "restored for a reply": Case("EMBED", kind_instead(restored={}), "restored came where reply is due"),
    "reply for restored": Case("restore", changed(reply=b""), "reply came where restored is due"),
    "a request": Case("EMBED", changed(request=b""), "a request whose content is not its first field"),
    "a hello": Case("EMBED", kind_instead(hello={"party": "party_1"}), "hello came"),
    "a goodbye": Case("EMBED", kind_instead(goodbye={"exit_code": 0}), "goodbye came"),
    "a welcome": Case("EMBED", kind_instead(welcome={"silence_s": 1e9}), "welcome came"),
    "refuses": Case("EMBED", refuse, "^$|it refused"),
    "no envelope": Case("EMBED", lambda order, honest: [b"\xff" * 40], "40 bytes are no envelope"),
    "nothing": Case("EMBED", lambda order, honest: [b""], "protocol version 0 came"),
    "an unknown field": Case(
        "EMBED", lambda order, honest: [honest.SerializeToString() + b"\xa2\x06\x01x"], "does not have|first field"
    ),
    "a length of 1 GiB": Case("EMBED", lambda order, honest: [b"\x7a\x80\x80\x80\x80\x04"], "1073741824 bytes came"),
    "a length without end": Case("EMBED", lambda order, honest: [b"\x7a" + b"\xff" * 40], "a length that does not end"),
    "a digest that is none": Case(
        "save", kind_instead(saved={"digest": "../../etc/passwd"}), "digest .* came: up to 64"
    ),
    "no digest": Case("save", kind_instead(saved={"digest": ""}), "saved without a sha256"),
    "a digest of 1 MB": Case("save", kind_instead(saved={"digest": "0" * 1_000_000}), "digest .* came: up to 64"),
}
MESSAGES = {
    "no message": Case("EMBED", instead(lambda order: b"abc"), "3 bytes are no message"),
    "an empty message": Case("EMBED", instead(lambda order: b""), "0 bytes are no message"),
    "message version 2": Case("EMBED", instead(lambda order: message(EMBEDDING, 0, 0, version=2)), "version 2"),
    "an unknown kind": Case("EMBED", of(99), "99 is no Kind"),
    "a kind not due": Case("EMBED", of(DONE), "DONE of round 0, exchange 0 came where EMBEDDING"),
    "an inner round": Case("EMBED", instead(lambda order: message(EMBEDDING, 7, 0)), "EMBEDDING of round 7"),
    "an inner exchange": Case("EMBED", instead(lambda order: message(EMBEDDING, 0, 7)), "exchange 7 came where"),
    "no embedding": Case("EMBED", of(EMBEDDING), "EMBEDDING with 0 parts instead of 1"),
    "two embeddings": Case("EMBED", of(EMBEDDING, *[(1, frame(SHAPE))] * 2), "EMBEDDING with 2 parts instead of 1"),
    "an unknown part": Case("EMBED", of(EMBEDDING, (9, b"")), "9 is no PartKind"),
    "control in an embedding": Case("EMBED", of(EMBEDDING, (4, b"{}")), "EMBEDDING message with a CONTROL part"),
    "65,535 parts": Case(
        "EMBED", instead(lambda order: message(EMBEDDING, 0, 0)[:10] + b"\xff\xff"), "65535 parts, at most 4096"
    ),
    "cut short": Case("EMBED", last_two_bytes_gone, "truncated in a part's payload"),
    "bytes at the end": Case("EMBED", changed(reply=lambda reply: reply + b"x"), "1 bytes after the last part"),
    "bytes booked as saved": Case("START_ROUND", of(DONE, (1, VAST)), "DONE message with a EMBEDDING part"),
    "a head in DONE": Case("START_ROUND", of(DONE, (3, frame((2,)))), "DONE message with a HEAD part"),
    "a message not cut": Case("END_ROUND", of(REPORT, (4, b" " * 1_100_000)), "came where 1048572 are due"),
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
    "fewer MACs than alpha leaves": Case("END_ROUND", control(REPORT, "macs_per_sample", "999"), "macs_per_sample 999"),
    "MACs that do not add up": Case("END_ROUND", control(REPORT, "train_macs", "1"), "train_macs 1 for 1000 a sample"),
    "no dense MACs": Case("END_ROUND", control(REPORT, "unpruned_train_macs", "0"), "macs_per_sample 1000 of 0"),
    "a million seconds": Case("END_ROUND", control(REPORT, "train_time_s", '"1.000000e+06"'), "train_time_s 1.0"),
    "seconds of another form": Case("END_ROUND", control(REPORT, "train_time_s", '"1_0"'), "train_time_s"),
    "no drift where the head is replayed": Case("END_ROUND", control(REPORT, "head_drift", None), "head_drift"),
    "an unknown key": Case("END_ROUND", control(REPORT, "x" * 5000, "1"), "Extra inputs are not permitted"),
    "20,000 layers": Case(
        "DESCRIBE", control(DESCRIPTION, "widths", json.dumps({f"l{n}": 1 for n in range(20_000)})), "at most 256"
    ),
    "a layer of no width": Case("DESCRIBE", control(DESCRIPTION, "widths", '{"layer.0": 0}'), "greater than or equal"),
    "a layer wider than built": Case("DESCRIBE", control(DESCRIPTION, "widths", '{"layer.0": 5}'), "above original"),
    "other layers": Case("DESCRIBE", control(DESCRIPTION, "widths", '{"layer.1": 3}'), "of other layers"),
    "a formula for a name": Case("DESCRIBE", control(DESCRIPTION, "widths", '{"$\\\\frac{": 3}'), "match pattern"),
    "a digest in capitals": Case("DESCRIBE", control(DESCRIPTION, "weights_digest", f'"{"A" * 64}"'), "match pattern"),
}
CASES = ENVELOPES | MESSAGES | FRAMES | REPORTS | lies()
ORDER = ("restore", "START_ROUND", "EMBED", "END_ROUND", "EVALUATE", "save", "DESCRIBE")
"""In which a session comes to them: an attack ends it, so the early ones are played first."""
HELLOS: dict[str, tuple[dict[str, Any], str]] = {
    "another's name": ({"party": "party_1"}, "the certificate is of 'party_2', the hello says 'party_1'"),
    "a name of nobody": ({"party": "../x"}, "party .* came: up to 64 letters"),
    "another width": ({"embedding_width": 2**32 - 1}, "embedding_size"),
    "no agreement": ({"agreement": ""}, "settings are not JSON"),
    "an agreement that is a list": ({"agreement": "[]"}, "not a JSON object"),
    "a nested agreement": ({"agreement": "[" * 100_000}, "settings are not JSON"),
    "a huge seed": ({"agreement": '{"seed": 1' + "0" * 4000 + "}"}, "differ in"),
    "a setting too many": ({"agreement": '{"x": 1}'}, "differ in"),
    "other training ids": ({"train_ids": "0" * 64}, "ids of the training samples"),
    "other test ids": ({"test_ids": ""}, "ids of the test samples"),
    "other labels": ({"labels": "x" * 64}, "training labels"),
    "100 kB of labels": ({"labels": "x" * 100_000}, "labels .* came: up to 64"),
    "a million rounds": ({"rounds": [1] * 1_000_000}, "a hello with 1000000 rounds"),
    "3 MB of rounds": ({"rounds": [2**20] * 1_000_000}, "RESOURCE_EXHAUSTED"),
}
