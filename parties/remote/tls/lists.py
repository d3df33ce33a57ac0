"""Deny lists (serial numbers of signed certificates) and allow lists (fingerprints of keys).

Text files, one entry a line, ``#`` begins a comment; blanks within an entry do not count. ``lvfl certs show``
prints both kinds. A changed file is read again; if that fails, its previous content stays valid.
"""

import re
import warnings
from pathlib import Path

from parties.remote.tls.certificates import Peer
from vfl.config import ConfigError
from vfl.config.network import TlsConfig

_SERIAL = re.compile(r"[0-9a-f]{1,40}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class _ListFile:
    """The entries of one file, as it is now. Raises ConfigError, at first, where it cannot be read."""

    def __init__(self, field: str, path: Path, entry: re.Pattern[str]) -> None:
        self.field, self.path, self.entry = field, path, entry
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
            if each and not self.entry.fullmatch(each):
                raise ConfigError(
                    f"{self.field}: {self.path}, line {number}: {each[:80]!r} is malformed; see lvfl certs show"
                )
        return {each.lstrip("0") if self.entry is _SERIAL else each for each in entries.values()}


class Lists:
    """The files of ``network.tls.deny`` and ``network.tls.allow``, where they are given."""

    def __init__(self, tls: TlsConfig) -> None:
        self.deny = _ListFile("network.tls.deny", tls.deny, _SERIAL) if tls.deny else None
        self.allow = _ListFile("network.tls.allow", tls.allow, _FINGERPRINT) if tls.allow else None

    def objection(self, peer: Peer) -> str | None:
        """Return why this peer is kept out; None for one that may come."""
        if self.deny is not None and peer.serial in self.deny:
            return f"the certificate {peer.serial} of {peer.name!r} is on the deny list"
        if self.allow is not None and "".join(peer.fingerprint.split()) not in self.allow:
            return f"the key of {peer.name!r} is not on the allow list"
        return None
