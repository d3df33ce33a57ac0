"""The wire format as docs and ``parties/network/wire/frame.py`` have it, written again with struct and json alone."""

import json
import struct
from dataclasses import dataclass, field
from typing import Any, Self

HELLO, WELCOME, REFUSAL, HEARTBEAT, RESTORE, RESTORED, SAVE, SAVED, LEAVING, GOODBYE = range(40, 50)
CONTROL = 4
HEADER = struct.Struct("<BBIIH8sIII")


@dataclass
class Frame:
    """A message's bytes, whose every field may lie."""

    kind: int
    round: int = 0
    exchange: int = 0
    parts: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    run: str = ""
    session: int = 0
    sequence: int = 0
    version: int = 4
    count: int | None = None
    """Of parts, as announced; None: true."""
    length: int | None = None
    """As announced; None: true."""
    body: bytes | None = None
    """In place of the parts."""

    def packed(self) -> bytes:
        body = b"".join(struct.pack("<BI", kind, len(payload)) + payload for kind, payload in self.parts)
        body = body if self.body is None else self.body
        count = len(self.parts) if self.count is None else self.count
        length = len(body) if self.length is None else self.length
        run = bytes.fromhex(self.run)
        header = (self.version, self.kind, self.round, self.exchange, count, run, self.session, self.sequence, length)
        return HEADER.pack(*header) + body

    @classmethod
    def read(cls, data: bytes) -> Self:
        version, kind, round_index, exchange, count, run, session, sequence, _ = HEADER.unpack_from(data)
        parts, offset = list[tuple[int, bytes]](), HEADER.size
        for _ in range(count):
            part, size = struct.unpack_from("<BI", data, offset)
            parts.append((part, data[offset + 5 : offset + 5 + size]))
            offset += 5 + size
        run = run.hex() if any(run) else ""
        return cls(kind, round_index, exchange, parts, run, session, sequence, version)

    @property
    def control(self) -> dict[str, Any]:
        """What the first part says, which is the control part where there is one."""
        return json.loads(self.parts[0][1])


def said(values: Any) -> list[tuple[int, bytes]]:
    """Return JSON as the parts of a message, Python's NaN and Infinity included."""
    return [(CONTROL, json.dumps(values).encode())]
