"""The doctor against a real server: what it finds, and that the training does not notice it."""

import runpy
import sys
from pathlib import Path

import pytest

from vfl.config import load_config
from vfl.parties.launch.doctor import Check, examine
from vfl.parties.network.party import dialer
from vfl.parties.network.tls.certificates import SERVER, CertificateSubject
from vfl.parties.network.tls.folders import issue, make_authority
from vfl.parties.network.wire.frame import pack
from vfl.runs.run_folder import write_run_id

SCRIPT = Path(__file__).parents[2] / "scripts" / "status.py"


class Patient:
    """A party of a federation, and what the doctor says of it when its settings are changed."""

    def __init__(self, federation, name: str = "party_1") -> None:
        self.federation = federation
        self.name = name

    def examine(self, *overrides: str, run_dir: str | None = None, insecure: bool = False) -> dict[str, Check]:
        config = load_config(self.federation.folder / f"{self.name}.yaml", overrides)
        folder = self.federation.folder / (run_dir or self.name)
        return {check.name: check for check in examine(config, self.name, folder, insecure=insecure)}

    def wrong(self, *overrides: str, **how) -> dict[str, str]:
        return {name: check.text for name, check in self.examine(*overrides, **how).items() if not check.good}


def test_every_cause_is_told_apart_and_the_training_does_not_notice(federate, in_process, monkeypatch):
    federation = federate()
    patient = Patient(federation)
    before = patient.examine()
    assert [name for name, check in before.items() if not check.good] == ["connection"]
    assert before["connection"].may_pass
    assert before["connection"].text.startswith("nobody listens at 127.0.0.1:")

    federation.start(SERVER)
    federation.wait_for_line(SERVER, "waiting for party_1, party_2")
    found = patient.examine()
    assert list(found) == ["config", "data", "keys", "folder", "connection", "joining"]
    assert all(check.good for check in found.values()), found
    assert found["data"].text == "48 training and 40 test samples of images [1, 32, 16], with labels"
    assert "'party_1', signed by 'federation'" in found["keys"].text
    assert "would let party_1 in" in found["joining"].text

    text = patient.wrong("training.batch_size=8", "training.optimizer.momentum=0.5")["joining"]
    assert "training.batch_size (server 16, party 8)" in text
    assert "training.optimizer (server {" in text
    text = patient.wrong("models.feature.embedding_size=4")["joining"]
    assert "embedding_size (server 8, party 4)" in text
    write_run_id(make(federation.folder / "elsewhere"), "0123456789abcdef")
    assert "belongs to run 0123456789abcdef" in patient.wrong(run_dir="elsewhere")["joining"]
    monkeypatch.setattr(dialer, "pack", lambda message: b"\x05" + pack(message)[1:])
    assert "protocol version 5 came, this side speaks 4; install the same" in patient.wrong()["joining"]
    monkeypatch.undo()
    assert "takes no plaintext" in patient.wrong(insecure=True)["connection"]
    (federation.folder / "allowed").write_text("# none\n")
    text = patient.wrong(f"network.tls.allow={federation.folder / 'allowed'}")["joining"]
    assert text == "network.tls: the key of 'server' is not on the allow list"

    federation.start("party_1")
    federation.wait_for_line(SERVER, "party_1 joined")
    assert "party_1 is already here; stop the other process" in patient.wrong()["joining"]
    assert patient.examine()["keys"].good
    assert "party_2 joined" not in federation.log(SERVER)
    federation.start("party_2")
    federation.finish()
    assert federation.outcome() == in_process()


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_what_is_wrong_at_home_is_found_without_a_server(federate):
    federation = federate()
    patient = Patient(federation)
    folder = federation.folder
    keys = folder / "keys"
    waiting = {"connection"}

    found = patient.wrong(f"data.file={folder / 'data' / 'party_2.safetensors'}")
    assert "holds the features of 'party_2', not of 'party_1'" in found["data"]
    assert set(found) == waiting | {"data"}

    found = patient.wrong(f"network.tls.certificate={keys / 'party_2' / 'certificate.pem'}")
    assert "is not the key of" in found["keys"]
    assert set(found) == {"keys"}  # and without keys nothing is dialled

    assert "cannot be read" in patient.wrong(f"network.tls.deny={folder / 'nowhere'}")["keys"]
    (keys / "party_1" / "key.pem").chmod(0o644)
    found = patient.wrong("data.labels_file=null")
    assert "mode 0644" in found["keys"]
    assert found["data"].startswith("data.labels_file: is missing")

    (unknown,) = examine(patient.federation.config, "party_9", folder, insecure=False)
    assert unknown == Check("config", "--party: data.partition knows party_1, party_2, not 'party_9'", good=False)


@pytest.mark.release
def test_a_refused_party_ends_with_the_reason_instead_of_dialling_for_ever(federate):
    federation = federate()
    folder = federation.folder
    make_authority(folder / "other", "other", 100)
    (other,) = issue(folder / "other", [CertificateSubject("party_1")], 90)
    certificate, key = f"network.tls.certificate={other / 'certificate.pem'}", f"network.tls.key={other / 'key.pem'}"
    both = (folder / "keys" / "ca.pem").read_bytes() + (other / "ca.pem").read_bytes()
    (folder / "both.pem").write_bytes(both)  # so that the party's own check passes: the server alone refuses

    federation.start(SERVER)
    federation.wait_for_line(SERVER, "waiting for party_1, party_2")
    federation.start("party_1", extra=(certificate, key, f"network.tls.ca={folder / 'both.pem'}"))
    assert federation.wait("party_1") == 2
    assert "refuses this certificate, which 'other' signed" in federation.log("party_1").splitlines()[-1]

    federation.start("party_1", extra=(certificate, key, f"network.tls.ca={other / 'ca.pem'}"))
    assert federation.wait("party_1") == 2
    assert "is not signed by the authority in network.tls.ca" in federation.log("party_1").splitlines()[-1]


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([Check("config", "fine")], 0),
        ([Check("data", "fine"), Check("connection", "nobody", good=False, may_pass=True)], 3),
        ([Check("data", "broken", good=False), Check("connection", "nobody", good=False, may_pass=True)], 2),
    ],
)
def test_the_script_shows_every_check_and_says_by_its_code_who_must_act(checks, code, monkeypatch, capsys, tmp_path):
    (tmp_path / "party.yaml").write_text("name: small\n")
    main = runpy.run_path(str(SCRIPT))["main"]
    monkeypatch.setattr("vfl.parties.launch.doctor.examine", lambda *_args, **_how: iter(checks))
    monkeypatch.setattr(sys, "argv", ["status.py", str(tmp_path / "party.yaml"), "--party", "party_1"])
    assert main() == code
    states = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    expected = ["ok" if check.good else "waits" if check.may_pass else "WRONG" for check in checks]
    assert states == [[check.name, state] for check, state in zip(checks, expected, strict=True)]
