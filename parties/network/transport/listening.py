"""Opening of listening sockets; errors name the setting."""

import errno
import os
import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from vfl.base.errors import TryLater
from vfl.config import ConfigError

KERNEL_BUFFER = 1 << 16
"""Bytes that the kernel keeps of a client's connection in each direction, about; by default it keeps megabytes."""


@contextmanager
def listening(setting: str, address: str) -> Generator[list[socket.socket]]:
    """Yield sockets that listen at HOST:PORT, the value of a setting: one for each address that the host has.

    Raises ConfigError for an address that cannot be bound, TryLater where another process listens.
    """
    host, _, port = address.rpartition(":")
    with ExitStack() as opened:
        try:
            addresses = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            places = dict.fromkeys((family, place) for family, _, _, _, place in addresses)
            sockets = [opened.enter_context(socket.create_server(place, family=family)) for family, place in places]
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise TryLater(f"{setting}: {address} cannot be bound; another process listens there") from None
            why = f"cannot be bound ({error.strerror}); name another address"
            raise ConfigError(f"{setting}: {address} {why}") from None
        for each in sockets:
            # Inherited by what is accepted; asyncio sets it only on sockets with a protocol number, which these lack.
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sockets


class Bounded(socket.socket):
    """Listens instead of another socket. While ``most`` connections of ``held`` are open, it hangs up on new ones.

    What waits for its handshakes counts as well: descriptors stay free for others, whoever comes. A spare one lets it
    hang up where none is left, which asyncio would log a thousand times a second.
    """

    def __init__(self, listener: socket.socket, most: int, held: list[socket.socket]) -> None:
        super().__init__(listener.family, listener.type, listener.proto, listener.detach())
        self.most, self.held = most, held
        self._spare = os.open(os.devnull, os.O_RDONLY)
        for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # inherited by what is accepted
            self.setsockopt(socket.SOL_SOCKET, kind, KERNEL_BUFFER)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Raises ConnectionAbortedError after hanging up on one too many."""
        try:
            came, address = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._hang_up()
        else:
            if len(self.held) >= self.most:
                self.held[:] = [each for each in self.held if each.fileno() >= 0]
            if len(self.held) < self.most:
                self.held.append(came)
                return came, address
            came.close()
        raise ConnectionAbortedError(errno.ECONNABORTED, "too many connections")

    def close(self) -> None:
        """Listen no longer."""
        super().close()
        self._close_spare()

    def _hang_up(self) -> None:
        self._close_spare()
        with suppress(OSError):
            super().accept()[0].close()
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def _close_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
        self._spare = -1


def bounded(sockets: Sequence[socket.socket], most: int) -> list[socket.socket]:
    """Return sockets that listen in place of others and hold ``most`` connections together."""
    held: list[socket.socket] = []
    return [Bounded(each, most, held) for each in sockets]
