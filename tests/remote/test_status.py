"""``lvfl status`` of a federation: while it trains, when a party is lost, and when all have ended."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parties.remote.status import lines_of, status_of
from parties.remote.tls.certificates import SERVER
from vfl.config import ConfigError

WITHOUT_PYTORCH = """
import json, sys
from pathlib import Path
from parties.remote.status import status_of
status = status_of(Path(sys.argv[1]))
print(json.dumps([status["state"], "torch" in sys.modules]))
"""


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
    assert status_of(federation.run_dir)["parties"]["party_1"]["state"] == "lost"
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
    assert "round 3 of 3" in lines_of(theirs)[1]
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


def test_a_folder_of_no_run(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"^RUN: .* holds no run"):
        status_of(tmp_path)
