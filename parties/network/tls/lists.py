"""Deny lists (serial numbers of signed certificates) and allow lists (fingerprints of keys).

Text files, one entry a line, ``#`` begins a comment; blanks within an entry are ignored. ``lvfl certs show`` prints
both kinds; bytes may be joined by colons, as OpenSSL prints them. A changed file is read again. Its bad lines are then
warned of, and the stricter reading counts: of a deny list also what it held before, of an allow list only the lines
that can be read. Of a file that cannot be read at all the previous content counts. The content of a file is logged
whenever it is read: an empty deny list keeps nobody out.
"""

import re
import warnings
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category

from vfl.base.errors import ConfigError
from vfl.parties.network.tls.certificates import Peer
from vfl.runs.atomic import write_output

if TYPE_CHECKING:  # `lvfl certs --help` need not read all settings
    from vfl.config.network import TlsConfig


def _read_serial(text: str) -> str:
    """Return a serial number as ``Peer.serial`` has it. Raises ValueError for one that may not be hexadecimal."""
    digits = _bytes_joined(re.sub("^(serial=)?(0x)?", "", text)).lstrip("0")
    if not re.fullmatch(r"[0-9a-f]{1,40}", digits):
        raise ValueError("is malformed; see lvfl certs show")
    if digits == text and digits.isdigit() and int(digits) > 9:  # no leading 0 either
        raise ValueError(f"may be decimal; write 0x{digits}, or 0x{int(digits):x} if it is")
    return digits


def _read_fingerprint(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", digits := _bytes_joined(text)):
        raise ValueError("is malformed; see lvfl certs show")
    return digits


def _bytes_joined(text: str) -> str:
    return text.replace(":", "") if re.fullmatch(r"[0-9a-f]{2}(:[0-9a-f]{2})+", text) else text


def write_serial(serial: str) -> str:
    """Return a serial number in a form that a list takes: marked as hexadecimal if it could be decimal."""
    return f"0x{serial}" if serial.isdigit() else serial


class _Kind(NamedTuple):
    """Kind of a list's entries."""

    name: str
    read: Callable[[str], str]
    """Returns an entry in the form of `Peer`. Raises ValueError with what is wrong."""
    empty: str
    """Meaning of a file without entries."""
    keeps: bool
    """The entries of before count as well while a line cannot be read: the stricter reading."""


_SERIAL = _Kind("serial number", _read_serial, "nobody is kept out", keeps=True)
_FINGERPRINT = _Kind("fingerprint", _read_fingerprint, "everybody is kept out", keeps=False)


def _read_text(path: Path) -> str:
    """Return a file's text. A byte that is not UTF-8 spoils only its line; editors for Windows write UTF-16, too."""
    data = path.read_bytes()
    return data.decode("utf-16" if data[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8", errors="replace")


def _read_lines(text: str, kind: _Kind) -> tuple[set[str], list[str]]:
    """Return the entries, and the bad lines, each with its number and what is wrong."""
    entries, faults = set[str](), list[str]()
    for number, line in enumerate(text.lower().splitlines(), 1):
        seen = (each for each in line.partition("#")[0] if not each.isspace())
        entry = "".join(each for each in seen if category(each) != "Cf")  # byte order marks, marks of direction
        try:
            entries.update({kind.read(entry)} if entry else ())
        except ValueError as error:
            faults.append(f"line {number}: {entry[:80]!r} {error}")
    return entries, faults


class _ListFile:
    """The current entries of one file. Raises ConfigError, only at first, for a bad line or an unreadable file."""

    def __init__(self, field: str, path: Path, kind: _Kind, log: Callable[[str], None]) -> None:
        self.field, self.path, self.kind, self.log = field, path, kind, log
        self._state: tuple[int, int, int] | None = self._stat()
        self._fault = ""
        self._entries, faults = self._read()
        if faults:
            raise ConfigError(f"{field}: {path}, {faults[0]}")

    def __contains__(self, wanted: str) -> bool:
        try:
            if (state := self._stat()) != self._state:
                (entries, faults), self._state = self._read(), state
                self._replace(entries, faults)
        except ConfigError as error:
            self._state = None  # to be read as soon as it is there again
            self._warn(f"{error}; its previous content stays valid")
        return wanted in self._entries

    def _replace(self, entries: set[str], faults: list[str]) -> None:
        before = self._entries if self.kind.keeps and faults else set[str]()
        self._entries = entries | before
        kept = len(before - entries)
        line = f"{self.field}: {self.path}, {'; '.join(faults[:3])}; the other lines count"
        self._warn(line + f", and {kept} that the list held before" * (kept > 0) if faults else "")

    def _warn(self, fault: str) -> None:
        if fault and fault != self._fault:
            warnings.warn(fault, stacklevel=3)
        self._fault = fault

    def _stat(self) -> tuple[int, int, int]:
        try:
            state = self.path.stat()
        except OSError as error:
            raise ConfigError(f"{self.field}: {self.path} cannot be read ({error.strerror})") from None
        return state.st_mtime_ns, state.st_size, state.st_ino

    def _read(self) -> tuple[set[str], list[str]]:
        try:
            entries, faults = _read_lines(_read_text(self.path), self.kind)
        except OSError as error:
            raise ConfigError(f"{self.field}: {self.path} cannot be read ({error})") from None
        count = f"{len(entries)} {self.kind.name}{'s' * (len(entries) != 1)}"
        self.log(f"{self.field}: {self.path} holds {count if entries else f'no {self.kind.name}: {self.kind.empty}'}")
        return entries, faults


class Lists:
    """The files of ``network.tls.deny`` and ``network.tls.allow``, if given.

    ``log`` shows the number of entries of each, whenever it is read. Raises ConfigError for a bad line or a file that
    cannot be read.
    """

    def __init__(self, tls: "TlsConfig", log: Callable[[str], None]) -> None:
        self.deny = _ListFile("network.tls.deny", tls.deny, _SERIAL, log) if tls.deny else None
        self.allow = _ListFile("network.tls.allow", tls.allow, _FINGERPRINT, log) if tls.allow else None

    def objection(self, peer: Peer) -> str | None:
        """Return why this peer is kept out; None if it may come."""
        if self.deny is not None and peer.serial in self.deny:
            return f"the certificate {peer.serial} of {peer.name!r} is on the deny list"
        if self.allow is not None and "".join(peer.fingerprint.split()) not in self.allow:
            return f"the key of {peer.name!r} is not on the allow list"
        return None


def deny(path: Path, serials: Mapping[str, str]) -> list[str]:
    """Add serial numbers, each with its comment, to a deny list, created if necessary; return the new ones.

    Raises ConfigError for a file that is not a deny list, which stays unchanged, and OSError.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"--deny: {path} is no regular file; name a list")
    present = _ListFile("--deny", path, _SERIAL, lambda _line: None) if path.exists() else ()
    added = [serial for serial in serials if serial not in present]
    before = _read_text(path) if path.exists() else ""
    lines = [*before.splitlines(), *(f"{write_serial(serial)}  # {serials[serial]}" for serial in added)]
    if added:
        write_output(path, "".join(f"{line}\n" for line in lines))
    return added
