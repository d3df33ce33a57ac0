"""What peers did, for later: an append-only file of one JSON object a line, and limits on what a peer can have said.

``audit.jsonl`` in a process's folder: ``time`` (UTC), ``event``, ``peer``, ``serial`` of its certificate, ``detail``.
"""

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from parties.remote.tls.certificates import Peer
from vfl.atomic import naming

LINES_A_MINUTE = 120
"""Of one peer; a run of honest ones stays far below."""
NAME = "audit.jsonl"


class Quota:
    """Lets at most ``LINES_A_MINUTE`` pass."""

    def __init__(self) -> None:
        self._passed = deque[float](maxlen=LINES_A_MINUTE)
        self._left_out = 0
        self._lock = threading.Lock()

    def take(self) -> str | None:
        """Return what to add to the next line, None where it must be left out."""
        now_s = time.monotonic()
        with self._lock:
            if len(self._passed) == self._passed.maxlen and now_s - self._passed[0] < 60:
                self._left_out += 1
                return None
            self._passed.append(now_s)
            left_out, self._left_out = self._left_out, 0
        return f" ({left_out} lines before were left out)" if left_out else ""


class Quotas:
    """A quota for every peer, so that none hides what another one does."""

    def __init__(self) -> None:
        self._quotas: dict[Peer, Quota] = {}

    def take(self, peer: Peer) -> str | None:
        """Return what to add to the next line that this peer causes, None where it must be left out."""
        return self._quotas.setdefault(peer, Quota()).take()


def limited(log: Callable[[str], None]) -> Callable[[Peer, str], None]:
    """Return ``log`` for lines that a peer causes: at most ``LINES_A_MINUTE`` of each."""
    quotas = Quotas()

    def show(peer: Peer, line: str) -> None:
        if (addition := quotas.take(peer)) is not None:
            log(line + addition)

    return show


class Audit:
    """Writes to the end of a file, from any thread; ``None`` writes nowhere."""

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / NAME
        self._quotas = Quotas()

    def note(self, event: str, peer: Peer, detail: str = "") -> None:
        """Add a line, unless this peer has caused too many of late. Raises OSError as the system does."""
        addition = self._quotas.take(peer)
        if self.path is None or addition is None:
            return
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        entry |= {"peer": peer.name, "serial": peer.serial, "detail": detail + addition}
        with naming(self.path):
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, (json.dumps(entry) + "\n").encode())
            finally:
                os.close(file)
