"""A server's file is checked without a start: what would keep it from starting is named, and nothing changes."""

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refuses
from remote.conftest import EXPERIMENT
from tiny_training import Ended

from vfl.config import load_config, parse_config
from vfl.parties.launch.doctor import Check, examine_server
from vfl.parties.launch.local_launch import prepare, process_configs
from vfl.parties.launch.supervisor import free_port
from vfl.parties.network.tls.certificates import SERVER, CertificateSubject
from vfl.parties.network.tls.folders import issue, make_authority

SCRIPT = Path(__file__).parents[2] / "scripts" / "status.py"
Say = Callable[..., tuple[int, dict[str, str], str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The server's file of a federation that has not begun."""
    config = parse_config(EXPERIMENT)
    prepare(config, tmp_path / "files", process_configs(config, tmp_path / "files"))
    return tmp_path / "files" / f"{SERVER}.yaml"


@pytest.fixture
def say(call: Callable[..., Ended], file: Path) -> Say:
    """Call the command on the file; return its code, the state of each check, and all lines."""

    def status(*overrides: str) -> tuple[int, dict[str, str], str]:
        listen = f"network.listen=127.0.0.1:{free_port()}"
        code, out, err = call("status", file, listen, *overrides, "--run-dir", file.parent / "own")
        assert err == ""
        return code, {line.split()[0]: line.split()[1] for line in out.splitlines()}, out

    return status


def test_a_server_that_could_start_is_told_so_and_nothing_is_written(say: Say, file: Path):
    before = sorted(file.parent.rglob("*"))
    code, states, said = say()
    assert code == 0
    assert list(states) == ["config", "data", "keys", "folder", "disk", "port", "clock"]
    assert set(states.values()) == {"ok"}
    assert "48 training and 40 test samples" in said
    assert "days left" in said
    assert sorted(file.parent.rglob("*")) == before


def test_every_fault_is_told_by_its_check_and_keeps_no_other_from_being_made(say: Say, file: Path, tmp_path: Path):
    code, states, said = say("data.file=nowhere.safetensors")
    assert (code, [name for name, state in states.items() if state != "ok"]) == (2, ["data"])
    assert "data.file: nowhere.safetensors" in said
    make_authority(tmp_path / "other", "other", 100)
    (other,) = issue(tmp_path / "other", [CertificateSubject(SERVER)], 90)
    code, states, said = say(f"network.tls.certificate={other / 'certificate.pem'}")
    assert (code, [name for name, state in states.items() if state != "ok"]) == (2, ["keys"])
    code, states, said = say(f"network.tls.deny={tmp_path / 'nowhere'}")
    assert (code, states["keys"]) == (2, "WRONG")
    assert "network.tls.deny" in said


def test_a_port_in_use_may_be_free_later(say: Say):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, states, said = say(f"network.listen={address}")
    assert (code, [name for name, state in states.items() if state != "ok"]) == (75, ["port"])
    assert address in said
    assert say()[0] == 0


def checks_of(file: Path, run_dir: Path) -> dict[str, Check]:
    config = load_config(file, [f"network.listen=127.0.0.1:{free_port()}"])
    return {check.name: check for check in examine_server(config, file, run_dir, insecure=False)}


def test_a_full_disk_and_a_clock_that_is_behind_are_told(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=5_000_000))
    found = checks_of(file, tmp_path / "run")
    assert [name for name, check in found.items() if not check.good] == ["disk"]
    assert found["disk"].may_pass
    monkeypatch.undo()
    later = time.time() + 86_400
    os.utime(file, (later, later))
    found = checks_of(file, tmp_path / "run")
    assert [name for name, check in found.items() if not check.good] == ["clock"]
    assert not found["clock"].may_pass


def test_a_folder_of_another_run_is_told(file: Path, tmp_path: Path):
    (tmp_path / "run").mkdir()
    shutil.copy(file, tmp_path / "run" / "config.yaml")
    assert checks_of(file, tmp_path / "run")["folder"].good
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text.replace("seed: 3", "seed: 4"))
    assert text != (tmp_path / "run" / "config.yaml").read_text()
    found = checks_of(file, tmp_path / "run")["folder"]
    assert not found.good
    assert "seed (4 -> 3)" in found.text


def test_a_file_of_an_experiment_without_owners_of_features_is_refused(file: Path):
    file.write_text("name: clients\nmode: horizontal\n")
    refuses("mode", lambda: load_config(file), "mode=vertical")
