"""A process that is killed at any point and started again changes nothing: weights, metrics and bytes stay the same."""

import signal
from typing import Any

import pytest
from remote import places
from shorthand import release

import vfl.runs.tensor_file
from vfl.parties.network.tls.certificates import SERVER

EXCHANGES = 2
"""In a round."""
PARTY = {
    "before it dials": ("dials", 1),
    "before it joins": ("says hello", 1),
    "during its forward pass": ("embeds", EXCHANGES + 1),
    "between its embedding and the update": ("gets its update", 2 * EXCHANGES + 1),
    "between its embedding and its reply": ("has sent its embedding", 1),
    "during its local iterations": ("iterates", 2 * EXCHANGES + 2),
    "while it writes its first checkpoint": ("writes a checkpoint", 1),
    "while it writes its last checkpoint": ("writes a checkpoint", 3),
    "when it has saved what does not count yet": ("has saved, unanswered", 2),
}
HEAD = {
    "before it listens": ("listens", 1),
    "before the forward pass": ("asks for embeddings", EXCHANGES + 1),
    "between embeddings and updates": ("has the embeddings", 2 * EXCHANGES + 1),
    "during its local iterations": ("trains the head", 2 * EXCHANGES + 2),
    "while it writes its first checkpoint": ("writes a checkpoint", 2),
    "when all have saved, before the round counts": ("commits", 2),
    "before its summary": ("writes its summary", 1),
}
AT_EVERY_RUN = {"when all have saved, before the round counts"}
"""The others are for a release."""


def tiers(points: dict[str, tuple[str, int]]) -> list[Any]:
    """The points as parameters, each with its tier."""
    return [pytest.param(each, marks=() if each in AT_EVERY_RUN else pytest.mark.release) for each in points]


AHEAD = {
    "training": {"staleness": 1, "party_dropout": 0.4},
    "wire": {"bits": 4, "gradients": {"bits": 4}, "coding": "entropy"},
}
"""Two exchanges are under way at once, values are coded, parties are left out of samples."""


@pytest.mark.parametrize("place", places.PLACES)
def test_a_place_where_a_process_can_be_struck_exists(monkeypatch, place: str):
    found = []
    monkeypatch.setattr(places, "around", lambda owner, name, strike, **_: found.append(getattr(owner, name)))
    monkeypatch.setattr(vfl.runs.tensor_file, "write_tensors", vfl.runs.tensor_file.write_tensors)
    places.PLACES[place](places.Strike(1, "SIGKILL"))
    assert callable(found[0]) if found else place == "writes a checkpoint"


def check(federation, killed: dict[str, int], in_process, **sections) -> None:
    """Everybody ended well, those in ``killed`` after so many deaths; nothing else differs from one process."""
    died = {name: codes[:-1] for name, codes in federation.codes.items()}
    assert died == {name: [-signal.SIGKILL] * killed.get(name, 0) for name in federation.names}, federation.logs()
    assert {codes[-1] for codes in federation.codes.values()} == {0}, federation.logs()
    assert federation.outcome() == in_process(**sections), federation.logs()
    saved = {name: federation.saved_rounds(name) for name in federation.names}
    assert saved == {name: [2, 3] if name == SERVER else [1, 2, 3] for name in federation.names}


@pytest.mark.parametrize("point", tiers(PARTY))
def test_a_party_killed(federate, in_process, point: str):
    federation = federate()
    federation.run({"party_2": [(*PARTY[point], "SIGKILL")]})
    check(federation, {"party_2": 1}, in_process)


@pytest.mark.release
@pytest.mark.parametrize("batch", [2, release(EXCHANGES + 1)])
def test_a_party_killed_while_it_trains_alone(federate, in_process, batch: int):
    """In the first round, or in the second after a checkpoint."""
    sections: dict[str, Any] = {"training": {"local_rounds": 2}, "lightweighting": {"error_feedback": False}}
    federation = federate(**sections)
    federation.run({"party_2": [("trains alone", batch, "SIGKILL")]})
    check(federation, {"party_2": 1}, in_process, **sections)


@pytest.mark.parametrize("point", tiers(HEAD))
def test_the_server_killed(federate, in_process, point: str):
    federation = federate()
    federation.run({SERVER: [(*HEAD[point], "SIGKILL")]})
    check(federation, {SERVER: 1}, in_process)


@pytest.mark.release
def test_two_parties_killed_at_once(federate, in_process):
    federation = federate(**AHEAD)
    blow = ("gets its update", EXCHANGES + 1, "SIGKILL")
    federation.run({"party_1": [blow], "party_2": [blow]})
    check(federation, {"party_1": 1, "party_2": 1}, in_process, **AHEAD)


@pytest.mark.release
@pytest.mark.parametrize("labels", ["shared", "server"])
def test_all_killed_one_after_another(federate, in_process, labels: str):
    sections = AHEAD | {"training": AHEAD["training"] | {"labels": labels}}
    federation = federate(**sections)
    federation.run(
        {
            "party_1": [("embeds", 2, "SIGKILL")],
            "party_2": [("writes a checkpoint", 1, "SIGKILL")],
            SERVER: [("asks for embeddings", 2 * EXCHANGES + 2, "SIGKILL")],
        }
    )
    check(federation, {"party_1": 1, "party_2": 1, SERVER: 1}, in_process, **sections)
