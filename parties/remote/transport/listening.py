"""A socket that listens, or the reason why not in the words of a setting."""

import errno
import socket

from vfl.config import ConfigError
from vfl.errors import TryLater


def listen_at(setting: str, address: str) -> socket.socket:
    """Return a socket that listens at HOST:PORT, the value of a setting.

    Raises ConfigError for an address that cannot be bound, TryLater where another process listens.
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, place = found[0]
        return socket.create_server(place, family=family)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            why = f"cannot be bound ({error.strerror}); name another address"
            raise ConfigError(f"{setting}: {address} {why}") from None
        raise TryLater(f"{setting}: {address} cannot be bound; another process listens there") from None
