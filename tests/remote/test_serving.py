"""Scores by key from processes: those of a prediction in one process to the bit, whoever is away."""

import http.client
import json
import logging
import os
import random
import resource
import select
import shutil
import signal
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console
from two_tables import ROWS, sections_of, sections_of_branches, write_branches, write_tables

from vfl.parties.launch.doctor import examine
from vfl.parties.network.tls.certificates import SERVER
from vfl.predict.predict import WhenAbsent, predict_in_process
from vfl.runs.run import run_experiment
from vfl.runs.run_folder import read_run_id, write_run_id
from vfl.runs.service_manager import tell_manager

from .relay import Relay

SCRIPTS = Path(__file__).parents[2] / "scripts"
NEW = range(1000, 1150)


class Reply(NamedTuple):
    status: int
    body: Any


class Service:
    """``lvfl serve`` and its parties as processes."""

    def __init__(self, federation, tables: dict[str, Path], whole: Path) -> None:
        self.federation, self.tables, self.whole = federation, tables, whole
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, *names: str, server: tuple[str, ...] = (), party: tuple[str, ...] = ()) -> None:
        for name in names:
            if name == SERVER:
                argv = [
                    str(SCRIPTS / "serve.py"),
                    str(self.federation.run_dir),
                    f"serving.listen=127.0.0.1:{self.port}",
                ]
                self.federation.launch(SERVER, [*argv, *server])
            else:
                table = f"data.tables.{name}.serve={self.tables[name]}"
                self.federation.start(name, extra=("--serve", table, *party))

    def get(self, path: str) -> Reply:
        return self._open(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}"))

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | headers
        return self._open(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers))

    def score(self, *keys: Any) -> list[dict[str, Any]]:
        reply = self.post("/v1/predict", {"keys": list(keys)})
        assert reply.status == 200, reply
        return reply.body["scores"]

    def predicted(self, absent=(), when_absent: WhenAbsent = "refuse") -> dict[str, dict[str, float]]:
        """The probabilities by key and class that one process with all tables predicts, as in its table."""
        tables = {owner: path for owner, path in self.tables.items() if owner not in absent}
        heading, *rows = predict_in_process(self.whole, None, absent, when_absent, tables).rows()
        classes = [name.removeprefix("p_") for name in heading[3:-1]]
        return {row[0]: dict(zip(classes, map(float, row[3:-1]), strict=True)) for row in rows}

    def until(self, holds: Callable[[], bool]) -> None:
        until_s = time.monotonic() + 60
        while True:
            try:
                if holds():
                    return
            except OSError:
                pass
            assert time.monotonic() < until_s, self.federation.logs()
            time.sleep(0.05)

    def until_ready(self, *names: str) -> None:
        self.until(lambda: [name for name, there in self.get("/readyz").body["parties"].items() if there] == [*names])

    def _open(self, request: urllib.request.Request) -> Reply:
        try:
            answer: Any = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as refused:
            answer = refused
        with answer:
            text = answer.read()
            plain = answer.headers["content-type"].startswith("text/")
            return Reply(answer.status, text.decode() if plain else json.loads(text))


@pytest.fixture(scope="module")
def train(trained_with, tmp_path_factory: pytest.TempPathFactory):
    """Make the run of the processes of two owners, with tables of rows to be scored, and the run of one process."""

    def make(write, sections):
        folder = tmp_path_factory.mktemp("tables")
        for name in ("old", "new"):
            (folder / name).mkdir()
        old, new = write(folder / "old", range(ROWS), labelled=True), write(folder / "new", NEW, labelled=False)
        federation = trained_with(**sections(old) | {"serving": {"timeout_ms": 5000, "gather_ms": 5}})
        run_experiment(federation.config, folder / "whole", resume=False, console=Console(quiet=True))
        return federation, new, folder / "whole"

    return make


@pytest.fixture(scope="module")
def trained(train):
    return train(write_tables, sections_of)


@pytest.fixture
def service(trained, tmp_path: Path) -> Iterator[Service]:
    federation, tables, whole = trained
    copies = {owner: tmp_path / f"{owner}.csv" for owner in tables}
    for owner, path in copies.items():
        path.write_bytes(tables[owner].read_bytes())
    yield Service(federation, copies, whole)
    federation.close()


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
    found = {name: json.loads((federation.folder / name / "drift.json").read_text()) for name in ("bank", "shop")}
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


class Clients:
    """Clients that ask for random keys without pause, and check every answer."""

    def __init__(self, service: Service, expected: dict[str, dict[str, float]]) -> None:
        self.service, self.expected = service, expected
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[Any] = []
        self.longest_s = 0.0
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(4)]

    def __enter__(self) -> "Clients":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(60)

    def _ask(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self.stopped.is_set():
            keys = draw.sample(NEW, draw.randint(1, 40))
            since_s = time.monotonic()
            try:
                reply = self.service.post("/v1/predict", {"keys": keys})
            except (OSError, http.client.HTTPException):  # the server is being started again
                self.outcomes["nobody there"] += 1
                time.sleep(0.1)
                continue
            self.longest_s = max(self.longest_s, time.monotonic() - since_s)
            self.outcomes[f"status {reply.status}"] += 1
            scores: list[Any] = reply.body["scores"] if reply.status == 200 else []
            for key, score in zip(keys, scores, strict=False):
                complete = {*score["parties"].values()} == {"row"}
                self.outcomes["score" if complete else "no score"] += 1
                if score["key"] != str(key) or score["probabilities"] != (
                    self.expected[str(key)] if complete else None
                ):
                    self.wrong.append(score)


def held_by(process: int) -> tuple[int, int]:
    """Return a process's resident memory in bytes and its open files."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{process}/fd").iterdir()))


class Faults:
    """What befalls a service whose owners are at work."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service, self.folder, self.draw = service, folder, random.Random(0)
        self.processes = service.federation.running
        service.federation.life_s = 1200
        self.kinds = (self.killed, self.frozen, self.broken_table, self.bad_requests, self.reload)

    def start(self, *names: str) -> None:
        many = ("network.consent.scored_keys=1000000000",)
        self.service.start(*names, server=("serving.timeout_ms=500",), party=many)
        self.service.until_ready("bank", "shop")

    def killed(self, name: str = "") -> None:
        name = name or self._owner()
        self.service.federation.signal(name, signal.SIGKILL)
        self.service.federation.wait(name)
        self.start(name)

    def frozen(self) -> None:
        process = self.processes[self._owner()]
        os.kill(process, signal.SIGSTOP)
        time.sleep(2)
        os.kill(process, signal.SIGCONT)

    def broken_table(self) -> None:
        name = self._owner()
        whole, broken = self.service.tables[name].read_text(), self.folder / "broken.csv"
        for text in ("k,spent\n1005,no number\n", whole):
            broken.write_text(text)
            broken.replace(self.service.tables[name])
            time.sleep(2.5)

    def bad_requests(self) -> None:
        for body in (b"no json", b"{" * 100_000, b" " * (1 << 21), {"keys": [None]}, {"keys": ["x" * 10_000]}):
            assert self.service.post("/v1/predict", body).status in (400, 413, 422)
        for _ in range(50):  # clients that leave in the middle
            with socket.create_connection(("127.0.0.1", self.service.port)) as client:
                client.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")

    def reload(self) -> None:
        assert self.service.post("/v1/reload", {}).status == 202
        self.service.federation.signal(SERVER, signal.SIGHUP)

    def held(self) -> tuple[int, int]:
        """Return the server's resident memory in bytes and its open files."""
        process = Path(f"/proc/{self.processes[SERVER]}")
        pages = int((process / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(list((process / "fd").iterdir()))

    def _owner(self) -> str:
        return self.draw.choice(("bank", "shop"))


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_a_soak_with_a_fault_every_few_seconds_gives_no_wrong_score_and_keeps_nothing(service, tmp_path: Path):
    """For SOAK_S seconds, 90 by default. The server is killed twice, first; then what it holds must stay."""
    seconds = float(os.environ.get("SOAK_S", "90"))
    faults, since_s, count = Faults(service, tmp_path), time.monotonic(), 0
    faults.start(*service.federation.names)
    with Clients(service, service.predicted()) as clients:
        for _ in range(2):
            faults.killed(SERVER)
            for kind in faults.kinds:
                kind()
        before = faults.held()
        while time.monotonic() - since_s < seconds:
            faults.draw.choice(faults.kinds)()
            count += 1
            time.sleep(min(10, seconds / 20))
        service.until_ready("bank", "shop")
        scored = clients.outcomes["score"]
        service.until(lambda: clients.outcomes["score"] > scored)  # they go on
        after = faults.held()
    said = f"{count + 12} faults, {dict(clients.outcomes)}, longest {clients.longest_s:.1f} s, {before} then {after}"
    logging.getLogger(__name__).info(said)
    assert not clients.wrong, clients.wrong[:3]
    assert not any(thread.is_alive() for thread in clients.threads), "a request hangs"
    assert clients.outcomes.keys() <= {"nobody there", "status 200", "score", "no score"}, said
    assert clients.longest_s < 10, said
    assert clients.outcomes["score"] > clients.outcomes["no score"] / 2, said
    assert after[0] < before[0] + (32 << 20), said
    assert after[1] <= before[1] + 8, said


@pytest.fixture
def guarded(service, tmp_path: Path) -> Service:
    """The server alone, with a token; nobody answers for it."""
    token = tmp_path / "token"
    token.write_text("the token of the clients")
    token.chmod(0o600)
    service.start(SERVER, server=(f"serving.token={token}", "serving.batch=4", "serving.queue=4"))
    service.until(lambda: service.get("/healthz").status == 200)
    return service


def test_whoever_has_no_token_and_whatever_is_no_request_is_refused(guarded):
    allowed = {"Authorization": "Bearer the token of the clients"}
    assert guarded.post("/v1/predict", {"keys": [1]}).status == 401
    assert guarded.post("/v1/predict", {"keys": [1]}, Authorization="Bearer another").status == 401
    assert guarded.post("/v1/reload", {}).status == 401
    assert guarded.get("/metrics").status == 401
    for body, status, said in (
        (b"no json", 422, "JSON"),
        ({}, 422, "keys"),
        ({"keys": []}, 422, "keys"),
        ({"keys": [1.5]}, 422, "keys"),
        ({"keys": [["a", "b"]]}, 400, "a key has 1 cells: k"),
        ({"keys": ["x" * 1000]}, 400, "at most 512"),
        ({"keys": ["\ud800"]}, 400, "no text"),
        ({"keys": [1, 2, 3, 4, 5]}, 413, "serving.batch = 4"),
        (b" " * (1 << 21), 413, "1048576 bytes"),
    ):
        reply = guarded.post("/v1/predict", body, **allowed)
        assert reply.status == status, reply
        assert said in reply.body["detail"], reply
        assert reply.body["status"] == status
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = guarded.post("/v1/predict", {"keys": [1]}, **allowed, **form)
    assert reply.status == 422
    assert reply.body["detail"] == "Content-Type is application/x-www-form-urlencoded; send application/json"
    odd = ["\x00\x1b[31m", "=cmd()", "a\nb"]
    reply = guarded.post("/v1/predict", {"keys": odd}, **allowed)
    assert reply.status == 200
    assert {*reply.body["scores"][0]["parties"].values()} == {"away"}


@pytest.mark.release
def test_beside_900_clients_that_never_end_their_request_others_are_answered(guarded):
    begun = (
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    token = {"Authorization": "Bearer the token of the clients"}
    with ExitStack() as held:
        slow = [held.enter_context(socket.create_connection(("127.0.0.1", guarded.port))) for _ in range(900)]
        for place, client in enumerate(slow):
            client.sendall((begun, begun[:9], b"")[place % 3])
        for _ in range(20):
            assert guarded.post("/v1/predict", {"keys": [1000]}, **token).status == 200
        for place, client in enumerate(slow):
            client.settimeout(30)
            answer = client.recv(100)
            assert answer == b"" if place % 3 else answer.startswith(b"HTTP/1.1 408")


@pytest.mark.release
def test_10000_connections_leave_descriptors_to_the_parties_and_end_when_nothing_comes(guarded):
    limits, server = resource.getrlimit(resource.RLIMIT_NOFILE), guarded.federation.running[SERVER]
    many = min(10_000, limits[1] - 500)
    assert many > 1024, "the limit of open files is too low for this test"
    for process in (0, server):
        resource.prlimit(process, resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    before = held_by(server)[0]
    with ExitStack() as held:
        idle = [held.enter_context(socket.create_connection(("127.0.0.1", guarded.port))) for _ in range(many)]
        descriptors = Path(f"/proc/{server}/fd")
        guarded.until(lambda: len([*descriptors.iterdir()]) > 1024)
        time.sleep(1)
        assert len([*descriptors.iterdir()]) < 1024 + 200
        for client in idle:
            client.settimeout(60)
            assert client.recv(1) == b""
        assert guarded.get("/healthz").status == 200
    assert held_by(server)[0] < before + (128 << 20)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


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
