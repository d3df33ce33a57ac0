"""Scores by key from processes: those of a prediction in one process to the bit, whoever is away."""

import json
import os
import random
import select
import shutil
import signal
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from two_tables import ROWS, sections_of_branches, write_branches, write_tables

from vfl.parties.launch.doctor import examine
from vfl.parties.network.tls.certificates import SERVER
from vfl.runs.run_folder import read_run_id, write_run_id
from vfl.runs.signals import tell_manager

from .relay import Relay
from .service import NEW, Reply, Service


@pytest.mark.filterwarnings("ignore:data.tables.*shop:UserWarning")
@pytest.mark.release
def test_an_owner_that_knows_rows_by_a_key_of_its_own_is_asked_by_it(train, tmp_path: Path):
    federation, tables, whole = train(write_branches, sections_of_branches)
    service = Service(federation, tables, whole)
    try:
        service.start(SERVER, server=("serving.when_absent=placeholder", "serving.cache_s=600"))
        service.start("bank", "shop")
        service.until_ready("bank", "shop")
        expected = service.predicted(when_absent="placeholder")
        missing = [place % 7 == 6 for place in range(len(NEW))]
        for _ in range(2):  # the second time all rows are cached
            scores = service.score(*NEW)
            assert [score["probabilities"] for score in scores] == [expected[str(key)] for key in NEW]
            assert [score["parties"]["shop"] == "none" for score in scores] == missing
        (score,) = service.score("nobody")
        assert score["parties"] == {"bank": "none", "shop": "none"}
    finally:
        federation.close()


def test_scores_are_those_of_a_prediction_whoever_is_asked_for_beside(service):
    service.start(*service.federation.names)
    service.until_ready("bank", "shop")
    expected = service.predicted()
    for keys in ([1000], [*NEW], [1100, 1003], [str(key) for key in reversed(NEW)], [1007] * 3):
        scores = service.score(*keys)
        assert [score["key"] for score in scores] == [str(key) for key in keys]
        assert [score["probabilities"] for score in scores] == [expected[str(key)] for key in keys]
        assert {owner for score in scores for owner in score["parties"].values()} == {"row"}
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda key: service.score(key, 1000), NEW))
    assert [one["probabilities"] for one, _ in answers] == [expected[str(key)] for key in NEW]
    reply = service.post("/v1/predict", {"keys": ["nobody", 1000]})
    assert reply.body["unknown"] == ["nobody"]
    assert [score["probabilities"] for score in reply.body["scores"]] == [None, expected["1000"]]
    assert service.get("/docs").status == 200
    assert 'lvfl_keys_total{outcome="row",party="shop"}' in service.get("/metrics").body


def test_a_party_that_is_killed_is_away_until_it_is_back_and_so_is_the_server(service):
    federation = service.federation
    service.start(*federation.names)
    service.until_ready("bank", "shop")
    expected = service.predicted()
    federation.signal("shop", signal.SIGKILL)
    federation.wait("shop")
    service.until(lambda: service.score(1001)[0]["parties"] == {"bank": "row", "shop": "away"})
    assert service.score(1001)[0]["probabilities"] is None
    assert service.post("/v1/predict", {"keys": ["nobody"]}).body["unknown"] == [], "the killed party may know it"
    assert service.get("/readyz").status == 503
    service.start("shop")
    service.until_ready("bank", "shop")
    assert service.score(1001)[0]["probabilities"] == expected["1001"]
    federation.signal(SERVER, signal.SIGKILL)
    federation.wait(SERVER)
    service.start(SERVER)
    service.until_ready("bank", "shop")  # by themselves
    assert service.score(1001)[0]["probabilities"] == expected["1001"]


@pytest.mark.release
def test_a_frozen_party_holds_up_nobody_and_what_is_absent_is_replaced_as_in_a_prediction(service):
    service.start(SERVER, server=("serving.timeout_ms=3000", "serving.when_absent=zeros"))
    service.start("bank", "shop")
    service.until_ready("bank", "shop")
    without = service.predicted(absent=("shop",), when_absent="zeros")
    os.kill(service.federation.running["shop"], signal.SIGSTOP)
    assert service.score(1002)[0]["parties"] == {"bank": "row", "shop": "away"}
    since_s = time.monotonic()
    for key in (1003, 1004):  # the first answer is still out: it is not asked again
        (score,) = service.score(key)
        assert score["probabilities"] == without[str(key)]
    assert time.monotonic() - since_s < 60
    os.kill(service.federation.running["shop"], signal.SIGCONT)
    service.until(lambda: service.score(1002)[0]["parties"]["shop"] == "row")


@pytest.mark.release
def test_the_service_manager_hears_from_a_process_that_answers_and_not_from_one_that_is_frozen(service, tmp_path: Path):
    managers: dict[str, socket.socket] = {}
    service.start("bank")
    try:
        for name in (SERVER, "shop"):
            managers[name] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            managers[name].bind(str(tmp_path / name))
            managers[name].settimeout(30)
            service.federation.environment = {"NOTIFY_SOCKET": str(tmp_path / name)}
            service.start(name)
        service.until_ready("bank", "shop")
        for name, manager in managers.items():
            assert [manager.recv(100) for _ in range(5)] == 5 * [b"READY=1\nWATCHDOG=1"]
            service.federation.signal(name, signal.SIGSTOP)
            service.federation.wait_until_stopped(name)
            while select.select([manager], [], [], 0)[0]:
                manager.recv(100)
            manager.settimeout(3)
            with pytest.raises(TimeoutError):
                manager.recv(100)
            service.federation.signal(name, signal.SIGCONT)
            assert manager.recv(100)
    finally:
        for manager in managers.values():
            manager.close()


def test_a_service_manager_that_reads_nothing_holds_nobody_up(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "manager"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "manager"))
        telling = threading.Thread(target=lambda: [tell_manager() for _ in range(10_000)], daemon=True)
        telling.start()
        telling.join(30)
        assert not telling.is_alive()
        assert manager.recv(100)


@pytest.mark.release
def test_a_table_is_replaced_while_it_is_served_and_a_broken_one_is_not_taken(service, tmp_path: Path):
    service.start(*service.federation.names)
    service.until_ready("bank", "shop")
    before = service.score(1005)[0]["probabilities"]
    text = service.tables["shop"].read_text()
    broken = tmp_path / "broken.csv"
    broken.write_text("k,spent\n1005,no number\n")
    broken.replace(service.tables["shop"])
    service.federation.wait_for_line("shop", "rows of before stay")
    assert service.score(1005)[0]["probabilities"] == before
    broken.write_text(text + "\n2000,0.5,0.5")
    broken.replace(service.tables["shop"])
    service.federation.wait_for_line("shop", "read again")
    assert service.score(2000)[0]["parties"] == {"bank": "none", "shop": "row"}
    assert service.score(1005)[0]["probabilities"] == before


def test_an_owner_answers_for_no_more_keys_than_it_has_agreed_to(service):
    service.start(SERVER, "bank")
    service.start("shop", party=("network.consent.scored_keys=3",))
    service.until_ready("bank", "shop")
    assert {score["parties"]["shop"] for score in service.score(1000, 1001)} == {"row"}
    assert {score["parties"]["shop"] for score in service.score(1002, 1003)} == {"declined"}
    audit = (service.federation.folder / "shop" / "audit.jsonl").read_text()
    assert "too_many: 2 keys were asked for" in audit


@pytest.mark.release
def test_a_shifted_column_is_told_at_its_owner_alone_and_nothing_of_it_leaves(service, tmp_path: Path):
    rows = range(ROWS)
    tables = write_tables(tmp_path, rows, labelled=False)
    heading, *lines = tables["shop"].read_text().splitlines()
    cells = [line.split(",") for line in lines]
    moved = [(key, spent, f"{float(visits or 0) + 777.625}") for key, spent, visits in cells]
    tables["shop"].write_text("\n".join([heading, *map(",".join, moved)]))
    service.tables = tables
    federation = service.federation
    relay = Relay(int(federation.configs[SERVER].network.listen.rpartition(":")[2]))
    service.start(SERVER, server=("--insecure",))
    service.start("bank", party=("--insecure",))
    service.start("shop", party=("--insecure", f"network.server={relay.address}"))
    service.until_ready("bank", "shop")
    for _ in range(3):
        service.score(*rows)
    federation.wait_for_line("shop", "shifted since the training, by the last 240 rows scored: visits (")

    def drift() -> dict[str, Any]:
        files = {name: federation.folder / name / "drift.json" for name in ("bank", "shop")}
        return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}

    service.until(lambda: [each["rows"] for each in drift().values()] == [240, 240])
    found = drift()
    assert {name: each["shifted"] for name, each in found.items()} == {"bank": [], "shop": ["visits"]}
    assert {name: set(each["stability_index"]) for name, each in found.items()} == {
        "bank": {"age", "job"},
        "shop": {"spent", "visits"},
    }
    metrics = service.get("/metrics").body
    assert "lvfl_drift_rows 240.0" in metrics
    assert "lvfl_score_stability_index" in metrics
    for word in ("visits", "spent", "stability"):
        assert f'"{word}' not in metrics
        assert word.encode() not in relay.passed
    assert len(relay.passed) > 240 * 8 * 4  # its embeddings, at least
    for _, _, visits in moved:
        assert struct.pack("<d", float(visits)) not in relay.passed
        assert visits.encode() not in relay.passed
    examined = examine(federation.configs["shop"], "shop", federation.folder / "shop", insecure=True)
    assert next(check.text for check in examined if check.name == "drift").startswith("visits ")
    relay.listener.close()


def test_keys_may_travel_hashed_and_a_cached_row_stands_in_for_its_party(service, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("a secret of all owners")
    secret.chmod(0o600)
    hashed = (f"serving.key_secret={secret}",)
    service.start(SERVER, server=(*hashed, "serving.cache_s=600"))
    service.start("bank", "shop", party=hashed)
    service.until_ready("bank", "shop")
    expected = service.predicted()
    assert service.score(1006)[0]["probabilities"] == expected["1006"]
    service.federation.signal("shop", signal.SIGKILL)
    (score,) = service.score(1006)
    assert score["probabilities"] == expected["1006"]
    assert score["parties"] == {"bank": "cached", "shop": "cached"}


def last_round(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("round_*"))


def refuse_another_run(service: Service) -> None:
    """Put another run's folder in the place of the served one for a while, as far as its id goes."""
    ours = read_run_id(service.federation.run_dir)
    write_run_id(service.federation.run_dir, "0123456789abcdef")
    assert service.post("/v1/reload", {}).status == 202
    service.federation.wait_for_line(SERVER, "is of run 0123456789abcdef now, the parties serve")
    write_run_id(service.federation.run_dir, ours)


@pytest.mark.release
def test_a_new_version_comes_under_load_without_a_lost_request_and_a_broken_one_not_at_all(service, tmp_path: Path):
    expected = {last_round(service.whole).name: service.predicted()}
    newest = {folder: last_round(folder) for folder in (service.federation.run_dir, service.whole)}
    held = {path: path.rename(tmp_path / f"{folder.name}-{path.name}") for folder, path in newest.items()}
    try:
        expected[last_round(service.whole).name] = service.predicted()
        new, old = expected.values()
        service.start(SERVER)
        service.start("bank", "shop", party=("network.consent.scored_keys=1000000000",))
        service.until_ready("bank", "shop")
        stopped, replies = threading.Event(), list[Reply]()

        def ask(seed: int) -> None:
            draw = random.Random(seed)
            while not stopped.is_set():
                replies.append(service.post("/v1/predict", {"keys": draw.sample(NEW, 20)}))

        def answered() -> bool:
            at = len(replies)
            service.until(lambda: len(replies) > at + 20)
            return True

        with ThreadPoolExecutor(4) as clients:
            asking = [clients.submit(ask, seed) for seed in range(4)]
            try:
                assert answered()
                broken = newest[service.federation.run_dir]
                broken.mkdir()
                (broken / "manifest.json").write_text("{")
                assert service.post("/v1/reload", {}).status == 202
                assert answered()
                shutil.rmtree(broken)
                for path, at in held.items():
                    at.rename(path)
                refuse_another_run(service)
                assert answered()
                service.federation.signal(SERVER, signal.SIGHUP)
                service.until(lambda: "serving version" in service.federation.log(SERVER))
                assert answered()
            finally:
                stopped.set()
        assert [each.result() for each in asking] == [None] * 4
    finally:
        for path, at in held.items():
            if at.exists():
                shutil.rmtree(path, ignore_errors=True)
                at.rename(path)
    assert {reply.status for reply in replies} == {200}
    versions = list(dict.fromkeys(reply.body["model"] for reply in replies))
    assert len(versions) == 2
    for reply in replies:
        probabilities = (old, new)[versions.index(reply.body["model"])]
        scores = {score["key"]: score["probabilities"] for score in reply.body["scores"]}
        assert scores == {key: probabilities[key] for key in scores}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("serving.listen=0.0.0.0:8080",), "set serving.token or serving.client_ca"),
        (("serving.token=/none/token",), "/none/token: No such file or directory"),
        (("serving.when_absent=mean",), "no mean embedding of bank, shop"),
    ],
)
def test_what_cannot_be_served_is_one_line(service, options: tuple[str, ...], said: str):
    service.federation.codes[SERVER].clear()
    before = len(service.federation.log(SERVER))
    service.start(SERVER, server=options)
    assert service.federation.wait(SERVER) == 2
    log = service.federation.log(SERVER)[before:]
    last = log.splitlines()[-1]
    assert last.startswith("error: ")
    assert said in last
    assert "scores at" not in log


def test_a_port_of_scores_that_is_taken_is_one_line(service):
    before = len(service.federation.log(SERVER))
    with socket.create_server(("127.0.0.1", service.port)):
        service.start(SERVER)
        assert service.federation.wait(SERVER) == 75
    address = f"127.0.0.1:{service.port}"
    log = service.federation.log(SERVER)[before:]
    assert log.splitlines()[-1] == (f"error: serving.listen: {address} cannot be bound; another process listens there")
    assert "scores at" not in log


@pytest.mark.release
def test_outcomes_told_later_tell_how_good_the_scores_were_through_a_restart(service, tmp_path: Path):
    file = tmp_path / "outcomes.sqlite"
    service.start(SERVER, server=(f"serving.outcomes={file}",))
    service.start("bank", "shop")
    service.until_ready("bank", "shop")
    keys = [*NEW]
    service.score(*keys[:100])
    scores = {int(score["key"]): score["probabilities"]["1"] for score in service.score(*keys[50:])}
    scores |= {int(score["key"]): score["probabilities"]["1"] for score in service.score(*keys[:50])}
    assert service.get("/v1/outcomes").body == []
    service.federation.signal(SERVER, signal.SIGKILL)
    service.federation.wait(SERVER)
    service.start(SERVER, server=(f"serving.outcomes={file}",))
    service.until(lambda: service.get("/healthz").status == 200)
    draw = random.Random(1)
    became = {key: draw.randrange(2) for key in keys}
    reply = service.post("/v1/outcomes", {"outcomes": [{"key": key, "outcome": "0"} for key in [*keys[:9], "nobody"]]})
    assert reply.body == {"noted": 9, "unknown": ["nobody"]}
    assert service.get("/v1/outcomes").body[0]["metrics"].keys() == {"accuracy"}  # one class alone
    told = [{"key": str(key), "outcome": became[key]} for key in keys]  # corrects those told before
    assert service.post("/v1/outcomes", {"outcomes": told}).body == {"noted": 150, "unknown": []}
    (period,) = service.get("/v1/outcomes").body
    right = [
        (scores[a] > scores[b]) + (scores[a] == scores[b]) / 2 for a in keys for b in keys if became[a] > became[b]
    ]
    assert period["rows"] == 150
    assert period["metrics"]["auc"] == pytest.approx(sum(right) / len(right))
    assert f'lvfl_outcome_metric{{metric="auc"}} {period["metrics"]["auc"]}' in service.get("/metrics").body
    assert file.stat().st_mode & 0o077 == 0
    for body, said in (
        ({"key": 1000, "outcome": "late"}, "outcomes[0].outcome: 'late' is no class; they are 0, 1"),
        ({"key": [1000, 1], "outcome": 1}, "outcomes[0].key: a key has 1 cells: k"),
    ):
        reply = service.post("/v1/outcomes", {"outcomes": [body]})
        assert (reply.status, reply.body["detail"]) == (400, said)


def test_without_a_file_for_outcomes_none_are_taken(service):
    service.start(SERVER)
    service.until(lambda: service.get("/healthz").status == 200)
    reply = service.post("/v1/outcomes", {"outcomes": [{"key": 1000, "outcome": 1}]})
    assert reply.status == 404
    assert "serving.outcomes names a file" in reply.body["detail"]
