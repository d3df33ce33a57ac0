"""The scripts that start processes: bad input is one line and exit code 2, before anything is written."""

import runpy
import sys
from pathlib import Path

import pytest
import yaml
from tiny_training import CLIENTS

ROOT = Path(__file__).parents[2]
SMALL = {
    "name": "small",
    "data": {"train_samples": 48, "test_samples": 40, "partition": {"rows": 1, "columns": 2}},
    "training": {"batch_size": 16},
}

REFUSED = {
    "a party that does not exist": (
        "party.py --party party_3 --insecure",
        "--party: data.partition knows party_1, party_2, not 'party_3'",
    ),
    "plaintext to another machine": (
        "party.py --party party_1 --insecure network.server=example.org:50051",
        "--insecure: network.server example.org:50051 is not on this machine; use 127.0.0.1, or certificates",
    ),
    "plaintext for all to hear": (
        "server.py --insecure network.listen=0.0.0.0:50051",
        "--insecure: network.listen 0.0.0.0:50051 is not on this machine; use 127.0.0.1, or certificates",
    ),
    "lists that nothing can be checked against": (
        "party.py --party party_1 --insecure network.tls.deny=deny.txt",
        "--insecure: without certificates no list can be checked; leave tls.deny and allow out",
    ),
    "no certificates": (
        "server.py",
        "network.tls.ca: is missing; make keys with lvfl certs (--insecure: plaintext on loopback)",
    ),
    "a server without labels": (
        "server.py --insecure",
        "data.file: is missing; name the server's labels, as lvfl split-data writes them",
    ),
    "a party without data": (
        "party.py --party party_1 --insecure",
        "data.file: is missing; name the party's file, as lvfl split-data writes it",
    ),
    "clients in processes": (
        "train.py --processes",
        "mode: horizontal trains in one process, by lvfl train alone; parties need mode=vertical",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    command, message = REFUSED[case]
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(CLIENTS if case == "clients in processes" else SMALL))
    script, *arguments = command.split()
    run_dir = tmp_path / "run"
    monkeypatch.setattr(sys, "argv", [script, str(config), *arguments, "--run-dir", str(run_dir)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "scripts" / script), run_name="__main__")
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not run_dir.exists()
