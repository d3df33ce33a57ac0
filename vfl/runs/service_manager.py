"""Notices to systemd that this process is alive: sd_notify(3)."""

import os
import socket
from contextlib import suppress

ALIVE = b"READY=1\nWATCHDOG=1"
"""Says that the process serves, and is not stuck."""


def tell_manager() -> None:
    """Tell the service manager that this process is alive, if there is one that listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.setblocking(False)  # a manager whose queue is full must not hold up scores
            sender.sendto(ALIVE, b"\0" + address[1:].encode() if address.startswith("@") else address)
