"""The command line of ``scripts/certs.py``; what it does is tested with ``vfl.parties.network.tls``."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from vfl.config.network import TlsConfig
from vfl.parties.network.tls.certificates import Peer, serial
from vfl.parties.network.tls.files import load_certificate
from vfl.parties.network.tls.lists import Lists


@pytest.fixture
def certs(call, monkeypatch, tmp_path):
    """Run the script in an empty folder and return (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    return partial(call, "certs")


def fingerprint(text: str) -> str:
    return next(line for line in text.splitlines() if "fingerprint" in line)


def test_both_ways_to_a_certificate(certs):
    assert certs("ca", "keys", "--name", "Hospitals")[0] == 0
    code, said, _ = certs("issue", "keys", "server", "--host", "vfl.example.org", "--host", "10.0.0.7")
    assert code == 0
    assert "certificate of 'server' at 10.0.0.7, vfl.example.org, signed by 'Hospitals'" in said
    assert certs("issue", "keys", "party_1", "party_2")[0] == 0

    code, asked, _ = certs("request", "mine", "party_3")
    assert code == 0
    code, signed, _ = certs("sign", "keys", "mine/request.pem", "party_3")
    assert code == 0
    assert fingerprint(asked) == fingerprint(signed)
    for name in ("ca.pem", "certificate.pem"):
        shutil.copy(f"keys/party_3/{name}", "mine")
    code, shown, _ = certs("show", "mine", "keys", "keys/party_1", "mine/request.pem")
    assert code == 0
    assert shown.count("belong together") == 2
    assert fingerprint(asked) in shown
    assert "authority 'Hospitals'" in shown


def test_the_authority_shows_what_it_signed_and_an_owner_what_it_asked_for(certs):
    certs("ca", "keys")
    certs("request", "mine", "party_1")
    certs("sign", "keys", "mine/request.pem", "party_1")
    code, shown, error = certs("show", "keys/party_1", "mine")
    assert (code, error) == (0, "")
    assert "serial " in shown
    assert "certificate and authority belong together; there is no key here" in shown
    assert "request of 'party_1'" in shown
    certs("ca", "keys", "--overwrite")
    shutil.copy("keys/ca.pem", "keys/party_1")
    assert "is not signed by the authority in keys/party_1/ca.pem" in certs("show", "keys/party_1")[2]


def test_every_certificate_that_an_owner_ever_had_is_revoked(certs):
    certs("ca", "keys")
    for name, *options in (["party_1"], ["party_2"], ["party_1", "--overwrite"]):
        certs("issue", "keys", name, *options)
    own = load_certificate("", Path("keys/party_1/certificate.pem"))
    assert certs("issue", "keys", "party_1")[0] == 2  # there already: nothing was signed
    code, said, _ = certs("revoke", "party_1")
    assert code == 0
    assert said.count("of party_1: added to keys/deny.txt") == 2
    assert "hangs up on party_1" in said
    told: list[str] = []
    lists = Lists(TlsConfig(deny=Path("keys/deny.txt")), told.append)
    assert told == ["network.tls.deny: keys/deny.txt holds 2 serial numbers"]
    assert lists.objection(Peer("party_1", serial(own))) is not None
    other = load_certificate("", Path("keys/party_2/certificate.pem"))
    assert lists.objection(Peer("party_2", serial(other))) is None

    before = Path("keys/deny.txt").read_text()
    assert certs("revoke", "keys", "party_1")[1].count("is already on keys/deny.txt") == 2
    assert Path("keys/deny.txt").read_text() == before
    Path("mine.txt").write_text("# ours\n")
    assert certs("revoke", "keys", "party_2", "--deny", "mine.txt")[0] == 0
    assert Path("mine.txt").read_text().startswith("# ours\n")
    Path("mine.txt").write_text("not a serial")
    assert (
        "error: --deny: mine.txt, line 1: 'notaserial' is malformed"
        in certs("revoke", "party_2", "--deny", "mine.txt")[2]
    )
    assert Path("mine.txt").read_text() == "not a serial"


@pytest.mark.parametrize(("line", "fine"), [("\n", True), ("  \n", True), ("ab\n", False), ("ab party_1\n", False)])
def test_a_list_of_the_issued_may_have_blank_lines_and_no_broken_ones(certs, line: str, fine: bool):
    certs("ca", "keys")
    certs("issue", "keys", "party_1")
    issued = Path("keys/issued.txt")
    issued.write_text(line + issued.read_text() + line)
    code, said, error = certs("revoke", "party_1")
    assert code == (0 if fine else 2)
    if fine:
        assert "of party_1: added to keys/deny.txt" in said
    else:
        assert error.startswith("error: KEYS: keys/issued.txt, line 1: ")
        assert not Path("keys/deny.txt").exists()


BAD = [
    (("issue", "nowhere", "party_1"), "error: KEYS: nowhere/ca.pem cannot be read (No such file or directory)\n"),
    (("issue", "keys", "party_1", "--days", "9000"), "error: --days: 9000 is past the end of the authority's own"),
    (("issue", "keys", "party_1", "--days", "soon"), "error: argument --days: invalid int value: 'soon'; see certs.py"),
    (("issue", "keys", "party_1", "--host", "a"), "error: --host: only the server is dialled, party_1 is a party"),
    (("ca", "keys"), "error: keys/ca-key.pem is there already; add --overwrite to replace it\n"),
    (("sign", "keys", "keys/ca.pem", "party_1"), "error: REQUEST: keys/ca.pem holds no certificate request in PEM\n"),
    (("show", "keys/ca-key.pem"), "error: PATH: keys/ca-key.pem holds no certificate in PEM\n"),
    (("show", "."), "error: PATH: certificate.pem cannot be read (No such file or directory)\n"),
    ((), "error: the following arguments are required: {ca,issue,request,sign,show,revoke}; see certs.py --help\n"),
    (("revoke", "party_1"), "error: NAME: keys holds no certificate of 'party_1', but of nobody; give the authority's"),
    (("revoke", "keys", "../keys"), "error: NAME: '../keys' cannot name an owner"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=lambda value: " ".join(value) if value else None)
def test_bad_input_is_one_line_and_writes_nothing(arguments, line, certs, tmp_path):
    certs("ca", "keys")
    before = sorted(path for path in tmp_path.rglob("*"))
    code, _, error = certs(*arguments)
    assert code == 2
    assert error.startswith(line)
    assert error.count("\n") == 1
    assert sorted(path for path in tmp_path.rglob("*")) == before
