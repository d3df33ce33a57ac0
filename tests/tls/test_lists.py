"""Deny and allow lists: the forms that people paste, and a list that is spoilt while a process runs."""

import os
import warnings
from pathlib import Path

import pytest
from refusals import refused, refuses

from vfl.config.network import TlsConfig
from vfl.parties.network.tls.certificates import Peer
from vfl.parties.network.tls.lists import Lists, deny

SERIAL, OTHER = "9f3a01", "77bb00c4"
PRINT, STRANGE = "ab" * 32, "cd" * 32


def peer(serial: str = "", fingerprint: str = "") -> Peer:
    return Peer("party_1", serial, fingerprint)


def lists_of(**files: Path) -> Lists:
    return Lists(TlsConfig(**files), lambda _line: None)


def rewrite(path: Path, content: bytes) -> None:
    """Replace a list's content as an editor does, so that its state changes even within one tick of the clock."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.utime(new, ns=(0, path.stat().st_mtime_ns + 1))
    new.replace(path)


FORMS = {
    "byte order mark": f"\ufeff{SERIAL}".encode(),
    "UTF-16 of PowerShell": f"{SERIAL}\r\n".encode("utf-16"),
    "big-endian UTF-16": b"\xfe\xff" + SERIAL.encode("utf-16-be"),
    "colons": b"9F:3A:01\n",
    "colons and a leading zero": b"00:9f:3a:01",
    "openssl -serial": b"serial=9F3A01\n",
    "prefix": b"0x9f3a01",
    "mark of direction": "\u200e9f 3a 01".encode(),
    "CRLF": b"# revoked\r\n\r\n9f3a01  # party_1\r\n",
    "comment in Latin-1": b"9f3a01  # M\xfcller\n",
    "old Mac": b"# revoked\r9f3a01\r",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("moment", ["at the start", "later"])
def test_a_serial_number_is_read_in_the_forms_that_tools_write(form, moment, tmp_path):
    path = tmp_path / "deny.txt"
    path.write_bytes(FORMS[form] if moment == "at the start" else b"")
    lists = lists_of(deny=path)
    rewrite(path, FORMS[form])
    with warnings.catch_warnings(action="error"):
        assert lists.objection(peer(SERIAL))
        assert not lists.objection(peer(OTHER))


BAD_LINES = [b"party_1", b"0x", b"9f:3", b"g" * 10, b"a" * 41, b"\xff\xfe\xfd", b"\0", b"9f3a01 77bb00c4 x", b"1234"]


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_refused_at_the_start_and_lets_no_revoked_in_later(line, tmp_path):
    path = tmp_path / "deny.txt"
    path.write_bytes(b"# ours\n\n" + line + b"\n" + OTHER.encode())
    refuses("network.tls.deny", lambda: lists_of(deny=path), "line 3")
    path.write_text(SERIAL)
    lists = lists_of(deny=path)
    rewrite(path, b"# ours\n\n" + line + b"\n" + OTHER.encode())
    with pytest.warns(UserWarning, match="line 3") as warned:
        assert all(lists.objection(peer(serial)) for serial in (SERIAL, OTHER, SERIAL))
    assert len(warned) == 1
    assert not lists.objection(peer("5a5a"))
    rewrite(path, OTHER.encode())  # mended: only what it says counts
    assert not lists.objection(peer(SERIAL))
    assert lists.objection(peer(OTHER))


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: (path.unlink(), path.mkdir())], ids=["gone", "folder"])
def test_a_list_that_cannot_be_read_keeps_its_content_and_warns_once_each_time(spoil, tmp_path):
    path = tmp_path / "deny.txt"
    path.write_text(SERIAL)
    lists = lists_of(deny=path)
    for _ in range(2):
        spoil(path)
        with pytest.warns(UserWarning, match="previous content") as warned:
            assert all(lists.objection(peer(SERIAL)) for _ in range(3))
        assert len(warned) == 1
        if path.is_dir():
            path.rmdir()
        path.write_text(SERIAL)
        with warnings.catch_warnings(action="error"):
            assert lists.objection(peer(SERIAL))


def test_an_allow_list_with_a_bad_line_admits_only_the_lines_that_can_be_read(tmp_path):
    path = tmp_path / "allow.txt"
    path.write_text(f"{PRINT}\n{STRANGE}\n")
    lists = lists_of(allow=path)
    rewrite(path, f"\ufeff{':'.join(['AB'] * 32)}\nno fingerprint\n".encode())
    with pytest.warns(UserWarning, match="line 2"):
        assert not lists.objection(peer(fingerprint=PRINT))
    assert lists.objection(peer(fingerprint=STRANGE))


@pytest.mark.parametrize("decimal", ["10", "1234", "93827461028374650192"])
def test_a_serial_number_that_may_be_decimal_is_refused_with_both_ways_out(decimal, tmp_path):
    path = tmp_path / "deny.txt"
    path.write_text(decimal)
    with refused("network.tls.deny", "decimal") as caught:
        lists_of(deny=path)
    ways = [word.strip(",;.") for word in str(caught.value).split() if word.startswith("0x")]
    assert sorted(int(way, 16) for way in ways) == sorted([int(decimal, 16), int(decimal)])
    for way in ways:
        path.write_text(way)
        assert lists_of(deny=path).objection(peer(f"{int(way, 16):x}"))


@pytest.mark.parametrize("certain", ["7", "010", "12:34", "serial=1234", "0x1234"])
def test_a_serial_number_that_can_only_be_hexadecimal_is_read(certain, tmp_path):
    path = tmp_path / "deny.txt"
    path.write_text(certain)
    digits = certain.removeprefix("serial=").removeprefix("0x").replace(":", "")
    assert lists_of(deny=path).objection(peer(f"{int(digits, 16):x}"))


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf77:bb:00:c4\r\n", f"{OTHER}  # one\r\n".encode("utf-16")])
@pytest.mark.parametrize("serial", [SERIAL, "1234567890"])
def test_a_revocation_keeps_the_list_and_can_be_read_again(serial, before, tmp_path):
    path = tmp_path / "deny.txt"
    path.write_bytes(before)
    assert deny(path, {serial: "party_1"}) == [serial]
    assert deny(path, {serial: "party_1"}) == []
    lists = lists_of(deny=path)
    assert lists.objection(peer(serial))
    assert bool(lists.objection(peer(OTHER))) == bool(before)
