"""The command line of ``scripts/certs.py``; what it does is tested with ``parties.remote.tls``."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "certs.py"


@pytest.fixture
def certs(monkeypatch, capsys, tmp_path):
    """Run the script in an empty folder and return (exit code, stdout, stderr)."""
    main = runpy.run_path(str(SCRIPT))["main"]
    monkeypatch.setattr("vfl.cli.signal.signal", lambda *_: None)
    monkeypatch.setattr("warnings.showwarning", lambda *_: None)
    monkeypatch.setattr("threading.excepthook", lambda *_: None)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["certs.py", *arguments])
        try:
            code = main()
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


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


BAD = [
    (("issue", "nowhere", "party_1"), "error: KEYS: nowhere/ca.pem cannot be read (No such file or directory)\n"),
    (("issue", "keys", "party_1", "--days", "9000"), "error: --days: 9000 is past the end of the authority's own"),
    (("issue", "keys", "party_1", "--days", "soon"), "error: argument --days: invalid int value: 'soon'; see certs.py"),
    (("issue", "keys", "party_1", "--host", "a"), "error: --host: only the server is dialled, party_1 is a party"),
    (("ca", "keys"), "error: keys/ca-key.pem is there already; add --overwrite to replace it\n"),
    (("sign", "keys", "keys/ca.pem", "party_1"), "error: REQUEST: keys/ca.pem holds no certificate request in PEM\n"),
    (("show", "keys/ca-key.pem"), "error: PATH: keys/ca-key.pem holds no certificate in PEM\n"),
    (("show", "."), "error: PATH: certificate.pem cannot be read (No such file or directory)\n"),
    ((), "error: the following arguments are required: {ca,issue,request,sign,show}; see certs.py --help\n"),
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
