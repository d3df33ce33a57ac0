"""``lvfl status`` of a federation: while it trains, when a party is lost, and when all have ended."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusals import refuses

from vfl.parties.network.status import _party, lines_of, status_of
from vfl.parties.network.tls.certificates import SERVER

WITHOUT_PYTORCH = """
import json, sys
from pathlib import Path
from vfl.parties.network.status import status_of
status = status_of(Path(sys.argv[1]))
print(json.dumps([status["state"], "torch" in sys.modules]))
"""


@pytest.mark.release
def test_both_sides_tell_how_the_run_stands(federate):
    federation = federate(training={"rounds": 3})
    own = federation.folder / "party_1"
    federation.start(SERVER)
    federation.start("party_1")
    federation.wait_for_line(SERVER, "party_1 joined")
    status = status_of(federation.run_dir)
    assert (status["state"], status["exit_code"], status["rounds_done"], status["rounds"]) == ("running", None, 0, 3)
    assert status["parties"]["party_1"]["state"] == "connected"
    federation.signal("party_1", signal.SIGKILL)
    federation.wait("party_1")
    federation.wait_for_line(SERVER, "party_1 is lost")
    end_s = time.monotonic() + 60
    while status_of(federation.run_dir)["parties"]["party_1"]["state"] != "awaited":
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert status_of(own)["state"] == "stopped"
    federation.start("party_1")
    federation.start("party_2")
    federation.finish()

    status, summary = status_of(federation.run_dir), federation.outcome()["summary"]
    assert (status["state"], status["exit_code"], status["rounds_done"]) == ("ended", 0, 3)
    assert status["test"]["accuracy/test"] == summary["test_accuracy"]
    assert status["uplink_bytes"] == summary["uplink_bytes"]
    for name, party in summary["parties"].items():
        assert status["parties"][name]["state"] == "gone"
        assert status["parties"][name]["downlink_bytes"] == party["downlink_bytes"]
    theirs = status_of(own)
    assert (theirs["state"], theirs["exit_code"]) == ("ended", 0)
    assert theirs["reason"].startswith("the server ended after 3 rounds")
    assert theirs["parties"]["party_1"]["uplink_bytes"] == summary["parties"]["party_1"]["uplink_bytes"]
    assert "3 of 3 rounds" in lines_of(theirs)[1]
    command = [sys.executable, "-c", WITHOUT_PYTORCH, str(federation.run_dir)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["ended", False]


def test_an_interrupted_party_and_its_folder(federate):
    federation = federate(training={"rounds": 2})
    federation.start("party_1")
    federation.wait_for_line("party_1", "dialling again")
    assert status_of(federation.folder / "party_1")["state"] == "running"
    federation.signal("party_1", signal.SIGTERM)
    assert federation.wait("party_1") == 130
    assert status_of(federation.folder / "party_1")["exit_code"] == 130


CONFIG = "name: pilot\ntraining: {rounds: 3}\n"
EVENT = {"time": "2026-01-01", "event": "joined", "peer": "bank", "serial": "", "detail": ""}
ODD = {
    "a name with escapes": ('name: "a\\e[2J\\nb"\ntraining: {rounds: 3}\n', [], []),
    "bytes that are no number": (CONFIG, [], [{"round": 0, "uplink_bytes/bank": float("nan")}]),
    "peers and reasons with escapes": (CONFIG, [EVENT | {"peer": "\x1b[31mx", "time": "\x1b]0;x\x07"}], []),
    "an end with escapes": (CONFIG, [EVENT | {"event": "ended", "code": 3, "detail": "\x1b[2J\nx"}], []),
    "tags with escapes": (CONFIG, [], [{"round": 0, "\x1b[2J/test": 1.0, "uplink_bytes/\x1b[2J": 5}]),
    "an end without a code": (CONFIG, [EVENT | {"event": "ended"}], []),
    "an end with a text for a code": (CONFIG, [EVENT | {"event": "ended", "code": "\x1b[2J"}], []),
    "a peer that is a list": (CONFIG, [EVENT | {"peer": ["x"]}], []),
    "rows of text": (CONFIG, [], [{"round": 0, "accuracy/test": "\x1b[2J", "uplink_bytes/bank": "x"}]),
}


@pytest.mark.parametrize(
    ("events", "state"),
    [
        (["awaited"], "awaited"),
        (["awaited", "joined"], "connected"),
        (["joined", "saved"], "connected"),
        (["joined", "lost"], "lost"),
        (["joined", "lost", "awaited"], "awaited"),
        (["joined", "awaited", "lost"], "awaited"),  # two threads write these, in either order
        (["joined", "lost", "awaited", "joined"], "connected"),
    ],
)
def test_a_party_is_connected_lost_or_awaited_by_what_happened_last(events: list[str], state: str):
    noted = [EVENT | {"event": each} for each in events]
    assert _party("bank", [], noted, running=True)["state"] == state


@pytest.mark.parametrize("odd", ODD)
def test_what_lies_in_a_folder_is_shown_as_plain_lines(odd: str, tmp_path: Path):
    config, events, rows = ODD[odd]
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "audit.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    lines = lines_of(status_of(tmp_path))
    assert len(lines) >= 2
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("config", ["training: {rounds: 3}\n", "name: x\n", "name: x\ntraining: 3\n", "name: [x]\n"])
def test_a_configuration_that_is_none_of_a_run_is_one_line(config: str, tmp_path: Path):
    (tmp_path / "config.yaml").write_text(config)
    refuses("RUN", lambda: status_of(tmp_path), "config.yaml")


def test_who_is_awaited_is_told(federate):
    federation = federate(training={"rounds": 2})
    federation.start(SERVER)
    federation.wait_for_line(SERVER, "waiting for party_1, party_2")
    states = {name: party["state"] for name, party in status_of(federation.run_dir)["parties"].items()}
    assert states == {"party_1": "awaited", "party_2": "awaited"}
    federation.start("party_1")
    federation.wait_for_line(SERVER, "waiting for party_2")
    status = status_of(federation.run_dir)
    assert {name: party["state"] for name, party in status["parties"].items()} == {
        "party_1": "connected",
        "party_2": "awaited",
    }
    assert status["parties"]["party_2"]["last_seen"] is None
    assert any("party_2: awaited" in line for line in lines_of(status))


def test_a_folder_of_no_run(tmp_path: Path):
    refuses("RUN", lambda: status_of(tmp_path), tmp_path)
