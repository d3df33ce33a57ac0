"""The service of scores whatever befalls it: processes that die, tables that break, clients that mean harm."""

import http.client
import logging
import os
import random
import resource
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from vfl.parties.network.tls.certificates import SERVER

from .service import NEW, Service


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
        return held_by(self.processes[SERVER])

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
    service.start(SERVER, server=(f"serving.token={token}",))
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
        ({"keys": [*range(257)]}, 413, "at most 256"),
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
