"""``network.metrics``: what the processes of a training tell of it over HTTP, and that nobody who asks disturbs it."""

import http.client
import json
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from refusals import refuses
from shorthand import at_every_run

from vfl.config import ConfigError, parse_config
from vfl.parties.launch.supervisor import free_port, networked
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.training_page import MOST_CONNECTIONS, TrainingPage

from .conftest import PATIENCE_S

Values = dict[tuple[str, ...], float]


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def measured(port: int) -> Values:
    """Return the metrics by name and labels' values, of which the direction comes before the party."""
    families = text_string_to_metric_families(ask(port, "/metrics")[1])
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def wait_until(port: int, name: str, least: float) -> Values:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            values = measured(port)
        except OSError:  # it does not listen yet
            values = {}
        if max([-1.0, *(value for key, value in values.items() if key[0] == name)]) >= least:
            return values
        time.sleep(0.05)
    raise AssertionError(f"{name} does not reach {least}")


def rows_of(folder: Path, rounds: float) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines][: int(rounds)]


NONSENSE = [b"", b"GET /metr", b"GET / HTTP/1.1\r\nA: " + b"a" * 100_000, b"\x00\xff" * 500]


def test_server_and_party_tell_rounds_loss_bytes_and_whom_they_await(federate):
    federation = federate(training={"rounds": 500}, evaluation={"tell_parties": True})
    ports = {SERVER: free_port(), "party_1": free_port()}
    federation.start(SERVER, extra=(f"network.metrics={ports[SERVER]}",))
    awaited = wait_until(ports[SERVER], "lvfl_awaited_seconds_total", 0.01)
    assert {peer for name, peer in (key for key in awaited if len(key) == 2) if name == "lvfl_connected"} == {
        *federation.config.parties
    }
    assert awaited["lvfl_connected", "party_1"] == awaited["lvfl_rounds_done",] == 0
    federation.start("party_1", extra=(f"network.metrics=127.0.0.1:{ports['party_1']}",))
    federation.start("party_2")
    theirs = wait_until(ports["party_1"], "lvfl_rounds_done", 1)
    values = wait_until(ports[SERVER], "lvfl_rounds_done", 2)
    for port in ports.values():
        assert ask(port, "/healthz") == (200, '{"status":"ok"}')
    federation.signal(SERVER, signal.SIGTERM)
    federation.finish()

    assert values["lvfl_rounds",] == theirs["lvfl_rounds",] == 500
    assert values["lvfl_connected", "party_1"] == values["lvfl_connected", "party_2"] == 1
    assert theirs["lvfl_connected", SERVER] == 1
    for told, folder in ((values, federation.run_dir), (theirs, federation.folder / "party_1")):
        rows = rows_of(folder, told["lvfl_rounds_done",])
        for direction in ("up", "down"):
            sent = sum(row[f"{direction}link_bytes/party_1"] for row in rows)
            assert told["lvfl_bytes_total", direction, "party_1"] == sent
        assert told["lvfl_test", "accuracy"] == pytest.approx(rows[-1]["accuracy/test"])
        assert told["lvfl_round_end_time_seconds",] <= time.time()
    assert values["lvfl_loss", "train"] == pytest.approx(
        rows_of(federation.run_dir, values["lvfl_rounds_done",])[-1]["loss/train"]
    )
    assert values["lvfl_exchange_seconds", "party_2"] > 0


@pytest.mark.parametrize("sent", at_every_run(NONSENSE, NONSENSE[-1]))
def test_clients_that_say_nothing_or_nonsense_change_nothing(federate, in_process, sent: bytes):
    federation, port = federate(), free_port()
    federation.start(SERVER, extra=(f"network.metrics={port}",))
    wait_until(port, "lvfl_rounds_done", 0)
    with ExitStack() as opened:
        for _ in range(3 * MOST_CONNECTIONS):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            with suppress(OSError):  # it is hung up on already
                client.sendall(sent)
        for name in federation.names[1:]:
            federation.start(name)
        federation.finish()
        federation.check_ended()
    assert federation.outcome() == in_process()


def test_a_taken_port_ends_the_server_before_anything_is_trained(federate):
    federation = federate()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        federation.start(SERVER, extra=(f"network.metrics={taken.getsockname()[1]}",))
        assert federation.wait(SERVER) == 75
    assert "error: network.metrics" in federation.log(SERVER)


@pytest.fixture
def page():
    """A page of a training of nobody, its port, and what it has logged."""
    shown, port, log = TrainingPage(("bank",)), free_port(), list[str]()
    with shown.served(f"127.0.0.1:{port}", log.append):
        yield shown, port, log


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/metrics?name=x", 200),
        ("GET", "/", 404),
        ("GET", "/../config.yaml", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/healthz", 405),
    ],
)
def test_it_can_only_be_read(page, method: str, path: str, status: int):
    assert ask(page[1], path, method)[0] == status


def test_a_client_that_is_slow_is_hung_up_on_and_others_are_answered(page, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vfl.parties.network.training_page.REQUEST_LIMIT_S", 0.2)
    with socket.create_connection(("127.0.0.1", page[1]), timeout=PATIENCE_S) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert ask(page[1], "/healthz")[0] == 200
        assert slow.recv(100) == b""


def test_a_page_that_fails_is_told_and_ends_no_training(page):
    shown, _port, log = page

    def fail() -> list[str]:
        raise RuntimeError("odd\x1b[2J")

    shown.present = fail
    until_s = time.monotonic() + PATIENCE_S
    while len(log) < 2 and time.monotonic() < until_s:
        time.sleep(0.02)
    assert log[1].startswith("warning: network.metrics")
    assert "\x1b" not in log[1]
    watched = cast(Any, SimpleNamespace(next_round=0, rounds=3, last_metrics={"loss/train": 1.0}))
    shown.on_start(watched)
    shown.on_round(watched, 0, {"loss/train": 1.0})
    assert shown.progress.done == 1


def test_it_grows_with_no_number_of_rounds_nor_of_names_that_a_peer_sends(page):
    shown, port, _log = page
    for number in range(100):
        last = {f"name{number}/test": 1.0}
        shown.on_round(cast(Any, SimpleNamespace(rounds=100, last_metrics=last)), number, {"uplink_bytes/bank": 2.0})
    values = measured(port)
    assert values["lvfl_bytes_total", "up", "bank"] == 200
    assert [key for key in values if key[0] == "lvfl_test"] == [("lvfl_test", "name99")]
    assert threading.active_count() < 20


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with (
        pytest.raises(ConfigError, match=r"network\.metrics.*lvfl\[serve\]"),
        TrainingPage(()).served("[::1]:0", print),
    ):
        pass


@pytest.mark.parametrize(
    ("named", "address"), [(9464, "127.0.0.1:9464"), ("9464", "127.0.0.1:9464"), ("0.0.0.0:9464", "0.0.0.0:9464")]
)
def test_a_port_without_a_host_is_of_this_machine(named: object, address: str):
    assert parse_config({"name": "x", "network": {"metrics": named}}).network.metrics == address


def test_of_processes_started_together_only_the_server_has_the_port(tmp_path: Path):
    config = parse_config({"name": "x", "network": {"metrics": 9464}})
    named = {name: own.network.metrics for name, own in networked(config, tmp_path).items()}
    assert named == {SERVER: "127.0.0.1:9464"} | dict.fromkeys(config.parties)


@pytest.mark.parametrize("named", [True, "host", 99999, "-1"])
def test_what_is_no_port_is_refused(named: object):
    refuses("network.metrics", lambda: parse_config({"name": "x", "network": {"metrics": named}}))
