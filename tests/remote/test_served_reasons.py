"""Reasons of scores by key: those of a prediction, within each owner's consent, and never in the way of a score."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from two_tables import sections_of_branches, write_branches

from vfl.parties.network.tls.certificates import SERVER

from .service import NEW, Service, check_reasons

AMOUNTS = ("network.consent.reasons=amounts",)
KEYS = [*NEW][:64]


def test_reasons_are_those_of_a_prediction_also_while_others_ask_for_none(service: Service):
    service.start(SERVER)
    service.start("bank", party=AMOUNTS)
    service.start("shop", party=("network.consent.reasons=ranks",))
    service.until_ready("bank", "shop")
    places, expected = service.predicted_reasons()
    plain = service.score(*KEYS)
    scores = service.explained(KEYS)
    assert [{**score, "reasons": None} for score in scores] == [{**score, "reasons": None} for score in plain]
    assert all("reasons" not in score for score in plain)
    check_reasons(scores, places, expected)
    for score in scores:
        assert score["reasons"]["disclosed"] == {"bank": "amounts", "shop": "ranks"}
        own = expected.columns["shop"]
        amounts = own.moved_NC[places[score["key"]]].tolist()
        signs = {name: (moved > 0) - (moved < 0) for name, moved in zip(own.names, amounts, strict=True)}
        assert {name: (place > 0) - (place < 0) for name, place in score["reasons"]["ranks"]["shop"].items()} == signs
    (first,) = service.explained(KEYS[:1], 2)
    assert first["reasons"].keys() == {"of", "score", "without_owners", "owners", "disclosed", "lowered"}
    assert len(first["reasons"]["lowered"]) <= 2
    (other,) = service.explained(KEYS[:1], reasons_of="0")
    assert other["reasons"]["score"] == pytest.approx(-scores[0]["reasons"]["score"], abs=1e-6)
    (unknown,) = service.explained(["nobody"])
    assert unknown["reasons"] is None
    metrics = service.get("/metrics").body
    assert 'lvfl_reasons_total{disclosed="amounts",party="bank"} 66.0' in metrics
    assert 'lvfl_reasons_total{disclosed="ranks",party="shop"} 66.0' in metrics

    folder = service.federation.folder / "bank"
    with (folder / "served_reasons.csv").open(newline="") as file:
        heading, *rows = csv.reader(file)
    assert heading == ["key", *expected.columns["bank"].names, "error"]
    assert [json.loads(row[0]) for row in rows] == [[str(key)] for key in [*KEYS, KEYS[0], KEYS[0]]]
    logged = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert any(line["event"] == "explained" and "keys" in line["detail"] for line in logged)


@pytest.mark.release
def test_who_refuses_is_away_or_slow_leaves_a_score_without_its_columns(service: Service):
    service.start(SERVER, server=("serving.timeout_ms=3000", "serving.when_absent=zeros"))
    service.start("bank", party=AMOUNTS)
    service.start("shop")
    service.until_ready("bank", "shop")
    places, expected = service.predicted_reasons("zeros")
    (score,) = scores = service.explained(KEYS[:1])
    check_reasons(scores, places, expected)
    assert score["reasons"]["disclosed"] == {"bank": "amounts", "shop": "nothing"}
    assert {*score["reasons"]["columns"]} == {"bank"}
    service.federation.signal("shop", signal.SIGKILL)
    service.federation.wait("shop")
    service.until(lambda: service.explained(KEYS[:1])[0]["parties"]["shop"] == "away")
    (score,) = service.explained(KEYS[:1])
    assert score["reasons"]["owners"]["shop"] == pytest.approx(0, abs=1e-6)
    assert score["reasons"]["disclosed"] == {"bank": "amounts", "shop": "away"}
    os.kill(service.federation.running["bank"], signal.SIGSTOP)
    service.start("shop", party=AMOUNTS)
    service.until(lambda: service.score(KEYS[0])[0]["parties"] == {"bank": "away", "shop": "row"})
    (score,) = service.explained(KEYS[:1])
    assert score["reasons"]["disclosed"] == {"bank": "away", "shop": "amounts"}
    assert score["probabilities"] is not None
    os.kill(service.federation.running["bank"], signal.SIGCONT)
    service.until(
        lambda: service.explained(KEYS[:1])[0]["reasons"]["disclosed"] == {"bank": "amounts", "shop": "amounts"}
    )


def test_points_of_paths_count_as_keys_and_beyond_them_an_owner_declines(service: Service):
    service.start(SERVER)
    service.start("bank", "shop", party=(*AMOUNTS, "network.consent.scored_keys=40"))
    service.until_ready("bank", "shop")
    told = [service.explained(KEYS[:1])[0] for _ in range(3)]
    assert [score["reasons"]["disclosed"]["shop"] for score in told] == ["amounts", "amounts", "declined"]
    assert all(score["probabilities"] is not None for score in told)


@pytest.mark.filterwarnings("ignore:data.tables.*shop:UserWarning")
@pytest.mark.release
def test_cached_rows_and_keys_of_an_owners_own_are_explained_as_they_are_now(train, tmp_path: Path):
    federation, tables, whole = train(write_branches, sections_of_branches)
    service = Service(federation, tables, whole)
    try:
        service.start(SERVER, server=("serving.when_absent=placeholder", "serving.cache_s=600"))
        service.start("bank", "shop", party=AMOUNTS)
        service.until_ready("bank", "shop")
        places, expected = service.predicted_reasons("placeholder")
        for _ in range(2):
            service.score(*KEYS)
            scores = service.explained(KEYS)
            check_reasons(scores, places, expected)
            there = ["none" if place % 7 == 6 else "amounts" for place in range(len(KEYS))]
            assert [score["reasons"]["disclosed"]["shop"] for score in scores] == there
    finally:
        federation.close()


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"reasons": 0}, 422, "reasons"),
        ({"reasons": -1}, 422, "reasons"),
        ({"reasons": 10**300}, 422, "reasons"),
        ({"reasons": 1.5}, 422, "reasons"),
        ({"reasons": "true"}, 422, "reasons"),
        ({"reasons": [True]}, 422, "reasons"),
        ({"reasons": {"most": 4}}, 422, "reasons"),
        ({"reasons": None}, 422, "reasons"),
        ({"reasons": True, "reasons_of": "late"}, 400, "reasons_of"),
        ({"reasons": True, "reasons_of": 1}, 422, "reasons_of"),
        ({"reasons": True, "reasons_of": "x" * 100_000}, 422, "reasons_of"),
        ({"reasons_of": "1"}, 400, "reasons_of"),
        ({"reasons": True, "keys": [*range(65)]}, 413, "keys"),
    ],
)
def test_a_hostile_request_gets_one_line(asked: dict[str, Any], status: int, said: str, hostile: Service):
    reply = hostile.post("/v1/predict", {"keys": [1000], **asked})
    assert reply.status == status
    assert said in reply.body["detail"]
    assert "\n" not in reply.body["detail"]
    assert len(reply.body["detail"]) <= 300
    digits = b'{"keys": [1000], "reasons": ' + b"9" * 5000 + b"}"
    assert 400 <= hostile.post("/v1/predict", digits).status < 500


@pytest.fixture(scope="module")
def hostile(trained):
    """A service without owners."""
    federation, tables, whole = trained
    service = Service(federation, tables, whole)
    service.start(SERVER)
    service.until(lambda: service.get("/healthz").status == 200)
    yield service
    federation.signal(SERVER, signal.SIGKILL)
    federation.wait(SERVER)
