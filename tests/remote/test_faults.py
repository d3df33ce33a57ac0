"""Frozen, slow, gone, sent away: told apart, and none of them changes what is trained."""

import json
import re
import resource
import shutil
import signal
import socket
import time
from itertools import count
from pathlib import Path

import pytest

from vfl.parties.network.tls.certificates import SERVER

from .conftest import TIME

EXCHANGES = 2
"""In a round."""
IN_ROUND_2 = EXCHANGES + 2


@pytest.mark.release
@pytest.mark.parametrize("frozen", ["party_2", SERVER])
def test_three_heartbeats_of_silence_are_forgiven(federate, in_process, frozen: str):
    federation = federate()
    place = "embeds" if frozen != SERVER else "has the embeddings"
    for name in federation.names:
        federation.start(name, *([(place, IN_ROUND_2, "SIGSTOP")] if name == frozen else []))
    federation.wait_until_stopped(frozen)
    time.sleep(3 * federation.config.network.heartbeat_s)
    federation.signal(frozen, signal.SIGCONT)
    federation.finish()
    federation.check_ended()
    assert "lost" not in federation.log(SERVER)
    assert federation.log(SERVER).count("joined") == 2
    assert federation.outcome() == in_process()


@pytest.mark.release
def test_a_frozen_party_is_lost_and_comes_back(federate, in_process):
    federation = federate(network={"heartbeat_s": 0.3, "silence_s": 6})
    federation.start(SERVER, extra=("--log", "json"))
    federation.start("party_1")
    federation.start("party_2", ("embeds", IN_ROUND_2, "SIGSTOP"))
    federation.wait_until_stopped("party_2")
    federation.wait_for_line(SERVER, "party_2 is lost: silent for 6 s: frozen, or the network is cut; waiting up to")
    federation.signal("party_2", signal.SIGCONT)
    federation.finish()
    federation.check_ended()
    assert federation.outcome() == in_process()
    records = [json.loads(line) for line in federation.log(SERVER).splitlines()]
    assert {tuple(record) for record in records} == {("time", "level", "message")}
    lost = next(record for record in records if "is lost" in record["message"])
    assert lost["level"] == "warning"
    assert lost["message"].startswith("party_2 is lost: silent for 6 s")
    assert [record["time"] for record in records] == sorted(record["time"] for record in records)
    lines = (federation.folder / "party_1.log").read_text().splitlines()
    assert [line for line in lines if not re.match(f"{TIME} (info|warning|error): ", line)] == []


def test_a_dead_party_is_noticed_at_once(federate):
    federation = federate(network={"silence_s": 60, "on_party_loss": "abort"})
    for name in federation.names:
        federation.start(name, *([("embeds", IN_ROUND_2, "SIGKILL")] if name == "party_2" else []))
    federation.finish()
    assert federation.codes == {SERVER: [3], "party_1": [3], "party_2": [-signal.SIGKILL]}, federation.logs()
    error = federation.log(SERVER).splitlines()[-1]
    assert error.startswith("error: party_2 is lost: ")
    assert error.endswith("network.on_party_loss is abort")
    assert "silent" not in error
    assert federation.saved_rounds(SERVER) == [1]  # which is there to resume from


@pytest.mark.release
def test_a_busy_party_is_not_lost_however_slow(federate, in_process):
    # Pure Python: it yields the interpreter's lock only every few milliseconds of its own time; a beat needs it
    # several times. Where a machine does much else, beats of 0.3 s have come too late for a silence_s of 1.5.
    federation = federate(network={"heartbeat_s": 1, "silence_s": 6})
    federation.run({"party_2": [("embeds", IN_ROUND_2, "busy 9")]})
    federation.check_ended()
    log = federation.log(SERVER)
    assert "party_2 is slow: it lives, but its EMBEDDING of round 2, exchange 2 takes more than 6 s" in log
    assert "party_2 is lost" not in log
    assert federation.outcome() == in_process()


@pytest.mark.release
def test_a_server_without_a_descriptor_left_goes_on_when_it_has_some(federate, in_process):
    federation = federate()
    federation.start(SERVER)
    federation.start("party_1")
    federation.wait_for_line(SERVER, "party_1 joined")
    pid = federation.running[SERVER]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
    free = next(number for number in count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))  # whatever it opens from now on fails with EMFILE
    federation.start("party_2")
    time.sleep(3)
    assert "party_2 joined" not in federation.log(SERVER)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    federation.finish()
    federation.check_ended()
    assert federation.log(SERVER).count("party_1 joined") == 1  # its stream lived on
    assert federation.outcome() == in_process()


@pytest.mark.release
def test_a_full_disk_at_a_party_names_the_file_and_may_pass(federate, in_process):
    federation = federate()
    audit = federation.folder / "party_1" / "audit.jsonl"
    audit.parent.mkdir()
    audit.symlink_to("/dev/full")
    federation.start(SERVER)
    federation.start("party_1")
    federation.start("party_2")
    assert federation.wait("party_1") == 75
    assert federation.log("party_1").splitlines()[-1] == f"error: {audit}: No space left on device"
    audit.unlink()
    federation.start("party_1")
    federation.finish()
    assert federation.codes == {SERVER: [0], "party_1": [75, 0], "party_2": [0]}, federation.logs()
    assert federation.outcome() == in_process()


@pytest.mark.release
def test_a_party_that_stays_away_ends_the_server(federate):
    federation = federate(network={"wait_s": 1})
    host, port = federation.configs[SERVER].network.listen.split(":")
    with socket.create_server((host, int(port))):
        federation.start(SERVER)
        assert federation.wait(SERVER) == 75
    assert federation.log(SERVER).splitlines()[-1].endswith("cannot be bound; another process listens there")
    federation.start(SERVER, extra=("seed=9",))  # nothing has begun in its folder: the same command may be mended
    assert federation.wait(SERVER) == 3
    assert federation.log(SERVER).splitlines()[-1] == (
        "error: party_1, party_2 did not join within network.wait_s = 1 s"
    )


@pytest.mark.release
def test_a_server_that_stays_away_ends_a_party(federate):
    federation = federate(network={"wait_s": 1})
    federation.start("party_1")
    assert federation.wait("party_1") == 3
    assert "stayed away for network.wait_s = 1 s" in federation.log("party_1").splitlines()[-1]


@pytest.mark.release
def test_sigterm_at_the_server_leaves_a_checkpoint_a_free_port_and_no_process(federate, in_process):
    federation = federate()
    for name in federation.names:
        federation.start(name, *([("asks for embeddings", IN_ROUND_2, "SIGTERM")] if name == SERVER else []))
    federation.finish()
    assert federation.codes == {name: [130] for name in federation.names}, federation.logs()
    assert {name: federation.saved_rounds(name) for name in federation.names} == {
        key: [1, 2] for key in federation.names
    }
    host, port = federation.configs[SERVER].network.listen.split(":")
    with socket.create_server((host, int(port))):
        pass
    assert f"interrupted after 2 rounds; go on with --run-dir {federation.run_dir} --resume" in federation.log(SERVER)
    federation.run()
    assert federation.outcome() == in_process()
    federation.check_own_rows()
    federation.start(SERVER, extra=("network.wait_s=1",))  # as after a kill once the parties have heard their goodbye
    assert federation.wait(SERVER) == 0
    assert federation.outcome() == in_process()


@pytest.mark.release
def test_sigterm_at_a_party_lets_it_leave_and_come_back(federate, in_process):
    federation = federate()
    for name in federation.names:
        federation.start(name, *([("embeds", IN_ROUND_2, "SIGTERM")] if name == "party_2" else []))
    assert federation.wait("party_2") == 130
    assert federation.saved_rounds("party_2") == [1, 2]
    assert federation.log("party_2").splitlines()[-1] == "left after 2 rounds"
    federation.start("party_2")
    federation.finish()
    assert federation.codes == {SERVER: [0], "party_1": [0], "party_2": [130, 0]}, federation.logs()
    assert federation.outcome() == in_process()


def test_a_party_without_a_server_ends_at_sigterm(federate):
    federation = federate()
    federation.start("party_1")
    federation.wait_for_line("party_1", "dialling again")
    federation.signal("party_1", signal.SIGTERM)
    assert federation.wait("party_1") == 130


@pytest.mark.release
def test_a_party_that_cannot_go_on_comes_back_when_its_owner_has_mended_it(federate, in_process):
    federation = federate()
    federation.run()
    checkpoint = federation.folder / "party_2/checkpoints/round_000003/party.safetensors"
    good = checkpoint.read_bytes()
    checkpoint.write_bytes(b"")
    (federation.run_dir / "summary.json").unlink()
    for name in federation.names:
        federation.start(name)
    assert federation.wait("party_2") == 2
    federation.wait_for_line(SERVER, "party_2 is lost: it refuses to go on: something of its own is wrong")
    checkpoint.write_bytes(good)
    federation.start("party_2")
    federation.finish()
    assert {name: codes[-1] for name, codes in federation.codes.items()} == dict.fromkeys(federation.names, 0)
    assert federation.outcome() == in_process()
    assert f"error: {checkpoint}: 0 bytes instead of" in federation.log("party_2")
    for other in (SERVER, "party_1"):  # whose business the party's folders are not
        assert str(checkpoint.parent) not in federation.log(other)


@pytest.mark.release
def test_folders_of_another_run_are_refused(federate):
    first, second = federate(), federate()
    first.run()
    (first.folder / "party_2").rename(second.folder / "party_2")
    shutil.copy(second.folder / "party_2.yaml", second.folder / "party_2/config.yaml")  # else that would tell
    second.start(SERVER)
    second.start("party_2")
    assert second.wait("party_2") == 2
    assert "party_2's folder belongs to run" in second.log("party_2")
    second.signal(SERVER, signal.SIGTERM)
    assert second.wait(SERVER) == 130
