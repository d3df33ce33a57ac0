"""Deny lists (serial numbers of signed certificates) and allow lists (fingerprints of keys).

Text files, one entry a line, ``#`` begins a comment; blanks within an entry are ignored. ``lvfl certs show`` prints
both kinds. A changed file is read again; if that fails, its previous content stays valid. The content of a file is
logged whenever it is read: an empty deny list keeps nobody out.
"""

import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vfl.base.errors import ConfigError
from vfl.parties.network.tls.certificates import Peer
from vfl.runs.atomic import write_atomically

if TYPE_CHECKING:  # `lvfl certs --help` need not read all settings
    from vfl.config.network import TlsConfig


class _Kind(NamedTuple):
    """Kind of a list's entries."""

    name: str
    pattern: re.Pattern[str]
    empty: str
    """Meaning of a file without entries."""


_SERIAL = _Kind("serial number", re.compile(r"[0-9a-f]{1,40}"), "nobody is kept out")
_FINGERPRINT = _Kind("fingerprint", re.compile(r"[0-9a-f]{64}"), "everybody is kept out")


class _ListFile:
    """The current entries of one file. Raises ConfigError, only at first, if it cannot be read."""

    def __init__(self, field: str, path: Path, kind: _Kind, log: Callable[[str], None]) -> None:
        self.field, self.path, self.kind, self.log = field, path, kind, log
        self._state, self._entries = self._stat(), self._read()

    def __contains__(self, wanted: str) -> bool:
        try:
            if (state := self._stat()) != self._state:
                self._state, self._entries = state, self._read()
        except ConfigError as error:
            warnings.warn(f"{error}; its previous content stays valid", stacklevel=2)
        return wanted in self._entries

    def _stat(self) -> tuple[int, int, int]:
        try:
            found = self.path.stat()
        except OSError as error:
            raise ConfigError(f"{self.field}: {self.path} cannot be read ({error.strerror})") from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> set[str]:
        try:
            lines = self.path.read_text(encoding="utf-8").lower().splitlines()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"{self.field}: {self.path} cannot be read ({error})") from None
        entries = {number: "".join(line.split("#")[0].split()) for number, line in enumerate(lines, 1)}
        for number, each in entries.items():
            if each and not self.kind.pattern.fullmatch(each):
                raise ConfigError(
                    f"{self.field}: {self.path}, line {number}: {each[:80]!r} is malformed; see lvfl certs show"
                )
        found = {each.lstrip("0") if self.kind is _SERIAL else each for each in entries.values() if each}
        count = f"{len(found)} {self.kind.name}{'s' * (len(found) != 1)}"
        self.log(f"{self.field}: {self.path} holds {count if found else f'no {self.kind.name}: {self.kind.empty}'}")
        return found


class Lists:
    """The files of ``network.tls.deny`` and ``network.tls.allow``, if given.

    ``log`` shows the number of entries of each, whenever it is read. Raises ConfigError if one cannot be read.
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
    present = _ListFile("--deny", path, _SERIAL, lambda _line: None) if path.exists() else ()
    added = [serial for serial in serials if serial not in present]
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [*before.splitlines(), *(f"{serial}  # {serials[serial]}" for serial in added)]
    if added:
        write_atomically(path, "".join(f"{line}\n" for line in lines))
    return added
