"""Identity of a process (TLS files, or plaintext if requested), and the errors that it shows to others."""

import ipaddress

from vfl.base.errors import PeerLost, plain
from vfl.config import ConfigError, NetworkConfig
from vfl.messages.messages import MessageError
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.tls.files import TlsFiles, load_tls_files
from vfl.parties.network.wire.frame import TooLargeError


def load_identity(owner: str, network: NetworkConfig, *, insecure: bool) -> TlsFiles | None:
    """Return the TLS files of the server or a party; None for plaintext.

    Raises ConfigError for plaintext beyond this machine and for missing files, ValueError for files that cannot be
    used.
    """
    if insecure:
        field, address = ("listen", network.listen) if owner == SERVER else ("server", network.server)
        if not _is_loopback(address):
            raise ConfigError(
                f"--insecure: network.{field} {address} is not on this machine; use 127.0.0.1, or certificates"
            )
        if network.tls.deny or network.tls.allow:
            raise ConfigError("--insecure: without certificates no list can be checked; leave tls.deny and allow out")
        return None
    tls = network.tls
    if tls.ca is None or tls.certificate is None or tls.key is None:
        missing = [name for name in ("ca", "certificate", "key") if getattr(tls, name) is None]
        raise ConfigError(
            f"network.tls.{missing[0]}: is missing; make keys with lvfl certs (--insecure: plaintext on loopback)"
        )
    return load_tls_files(tls.ca, tls.certificate, tls.key, owner)


def last_word(error: Exception) -> str:
    """Return an error's text for a peer: all about peers' actions, but nothing about this process's own files."""
    if isinstance(error, MessageError | PeerLost | TooLargeError):
        return plain(str(error))
    return "something of its own is wrong; see its own log"


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
