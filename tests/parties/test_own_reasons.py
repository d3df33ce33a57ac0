"""What an owner keeps of its reasons, complete, private and of bounded size, and what it explains while it serves."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vfl.messages.control import Explained
from vfl.messages.keys import Found, keys_part
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.parties.network.party import party_monitor
from vfl.parties.network.party.party_monitor import OwnReasons
from vfl.parties.serving.serving_party import ExplainedKeys, OwnedReasons


def append(file: OwnReasons, *samples: object) -> None:
    rows = len(samples)
    file.append(samples, torch.ones(rows, 2, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64))


def read(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return [*csv.reader(file)]


def test_a_full_file_is_set_aside_once_and_each_has_its_heading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(party_monitor, "MOST_BYTES", 40)
    file = OwnReasons(tmp_path / "reasons.csv", ("age", "=job"))
    for number in range(30):
        append(file, number)
    assert [*tmp_path.iterdir()] == [file.path, file.before] or [*tmp_path.iterdir()] == [file.before, file.path]
    for path in (file.path, file.before):
        heading, *rows = read(path)
        assert heading == ["id", "age", "'=job", "error"]
        assert 0 < len(rows) < 10
        assert path.stat().st_mode & 0o077 == 0
    assert [row[0] for row in read(file.before)[1:] + read(file.path)[1:]][-1] == "29"


def test_a_key_is_no_formula_and_a_full_disk_spoils_no_answer(tmp_path: Path):
    file, said, noted = OwnReasons(tmp_path / "gone" / "reasons.csv", ("a", "b"), "key"), list[str](), list[str]()
    kept = ExplainedKeys(file, noted.append, said.append)
    amounts, errors = torch.ones(1, 2), torch.zeros(1)
    for _ in range(3):
        kept.keep(["=1+1"], amounts, errors)
    assert len(said) == 1
    assert not noted
    file.path.parent.mkdir()
    kept.keep(["=1+1"], amounts, errors)
    assert noted == ["4 keys"]
    assert read(file.path)[1][0] == "'=1+1"
    kept.keep(["2"], amounts, errors)
    assert noted == ["4 keys"]  # a line a minute, and what is left as it ends
    kept.flush()
    assert noted == ["4 keys", "1 keys"]


def owned(tells: str = "amounts", most: int = 100) -> OwnedReasons:
    left = [most]

    def take(keys: int) -> Found | None:
        left[0] -= keys
        return Found(outcome="too_many") if left[0] < 0 else None

    def embed_paths(samples: object, rows_n: torch.Tensor, steps: int) -> Part:
        return Part(PartKind.EMBEDDING, bytes(rows_n.tolist()))

    def attribute(samples: object, rows_n: torch.Tensor, wanted: Explained, frame: bytes, keys: object) -> tuple[Part]:
        return (Part(PartKind.REASONS, bytes(rows_n.tolist())),)

    offer: Any = lambda: SimpleNamespace(tells=tells, part=lambda: Part(PartKind.CONTROL, b"offer"))  # noqa: E731
    party: Any = SimpleNamespace(offer=offer, embed_paths=embed_paths, attribute=attribute)
    return OwnedReasons(party, take, hashed=False)


def explain(*keys: bytes, **other: int) -> Message:
    named: dict[str, Any] = {"start": 0, "stop": len(keys), "steps": 16} | other
    return Message(Kind.EXPLAIN, parts=(Explained(**named).part(), keys_part(keys)))


SLOPES = Message(Kind.ATTRIBUTE, parts=(Explained(start=0, stop=1, steps=16).part(), Part(PartKind.GRADIENT, b"")))
SAMPLES: Any = object()
PLACES = {b'["a"]': 3, b'["b"]': 5}


def test_slopes_belong_to_the_last_paths_that_were_given():
    own = owned()
    assert own.answer(explain(b'["b"]', b'["a"]'), SAMPLES, PLACES)[0].payload == bytes([5, 3])
    assert own.answer(SLOPES, SAMPLES, {})[0].payload == bytes([5, 3]), "of the rows that were scored"
    with pytest.raises(MessageError, match="without an EXPLAIN"):
        own.answer(SLOPES, SAMPLES, PLACES)
    assert own.answer(explain(b'["gone"]'), SAMPLES, PLACES)[0].payload == b""
    assert own.answer(explain(b'["a"]'), None, {})[0].payload == b""
    with pytest.raises(MessageError, match="without an EXPLAIN"):
        own.answer(SLOPES, SAMPLES, PLACES)


def test_an_owner_explains_what_it_agreed_to():
    own = owned(most=40)
    for given in (True, True, False):
        assert bool(own.answer(explain(b'["a"]'), SAMPLES, PLACES)[0].payload) == given
    with pytest.raises(MessageError, match="keys"):
        owned().answer(explain(b'["a"]', stop=2), SAMPLES, PLACES)
    refusing = owned(tells="nothing")
    assert refusing.answer(Message(Kind.OFFER), None, {})[0].payload == b"offer"
    for order in (explain(b'["a"]'), SLOPES):
        with pytest.raises(MessageError, match="consent"):
            refusing.answer(order, SAMPLES, PLACES)
