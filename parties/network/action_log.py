"""Audit log of peers' actions: an append-only file with a JSON object per line, and limits on each peer's lines.

``audit.jsonl`` in a process's folder: ``time`` (UTC), ``event``, ``peer``, ``serial`` of its certificate, ``detail``.
"""

import json
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.base.errors import one_line
from vfl.console import DONE, INTERRUPTED, failure_code
from vfl.runs.atomic import naming

if TYPE_CHECKING:  # cryptography: a status is read without it
    from vfl.parties.network.tls.certificates import Peer

LINES_A_MINUTE = 120
"""Most lines of one peer per minute; runs of honest peers stay far below."""
NAME = "audit.jsonl"
AWAITED = "awaited"
"""Event of a server that begins to wait for a party."""
ENDED = "ended"
"""Event of this process's own end, with ``code``, its exit code."""


class Quotas:
    """Limit of ``LINES_A_MINUTE`` lines per minute for every peer, so that none can hide another one's lines."""

    def __init__(self) -> None:
        self._passed: dict[Peer, deque[float]] = {}
        self._left_out = Counter["Peer"]()
        self._lock = threading.Lock()

    def take(self, peer: "Peer") -> str | None:
        """Return the addition to this peer's next line, None if that must be left out."""
        now_s = time.monotonic()
        with self._lock:
            passed = self._passed.setdefault(peer, deque(maxlen=LINES_A_MINUTE))
            if len(passed) == LINES_A_MINUTE and now_s - passed[0] < 60:
                self._left_out[peer] += 1
                return None
            passed.append(now_s)
            left_out = self._left_out.pop(peer, 0)
        return f" ({left_out} lines before were left out)" if left_out else ""


def limited(log: Callable[[str], None]) -> "Callable[[Peer, str], None]":
    """Return ``log`` for lines that a peer causes, at most ``LINES_A_MINUTE`` of each peer."""
    quotas = Quotas()

    def show(peer: "Peer", line: str) -> None:
        if (addition := quotas.take(peer)) is not None:
            log(line + addition)

    return show


class ActionLog:
    """Appends to a file, from any thread; ``None`` writes nowhere."""

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / NAME
        self._quotas = Quotas()

    def note(self, event: str, peer: "Peer", detail: str = "") -> None:
        """Add a line, unless this peer has caused too many of late. Raises OSError."""
        addition = self._quotas.take(peer)
        if self.path is None or addition is None:
            return
        self._write({"event": event, "peer": peer.name, "serial": peer.serial, "detail": detail + addition})

    @contextmanager
    def noting_end(self) -> Generator[Callable[[int, str], None]]:
        """Record how this process ends: by an error, or with the code and reason passed to the yielded function."""
        said = (DONE, "")

        def say(code: int, reason: str) -> None:
            nonlocal said
            said = code, reason

        try:
            yield say
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            said = (INTERRUPTED, "interrupted") if interrupted else (failure_code(error), one_line(error))
            raise
        finally:
            with suppress(OSError):  # a full disk's own reason must be seen
                self._write({"event": ENDED, "peer": "", "serial": "", "detail": said[1], "code": said[0]})

    def _write(self, entry: Mapping[str, object]) -> None:
        assert self.path is not None
        timed = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")} | dict(entry)
        with naming(self.path):
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, (json.dumps(timed) + "\n").encode())
            finally:
                os.close(file)
