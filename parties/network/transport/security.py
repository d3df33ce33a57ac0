"""Identity of a process (TLS files, or plaintext if requested), its secret, and the errors that it shows to others."""

import secrets
from pathlib import Path

from vfl.base.errors import PeerLost, plain
from vfl.config import ConfigError, ExperimentConfig, NetworkConfig
from vfl.config.network import is_loopback
from vfl.messages.messages import MessageError
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.tls.files import TlsFiles, load_tls_files
from vfl.parties.network.wire.frame import TooLargeError
from vfl.runs.atomic import write_atomically
from vfl.runs.run_folder import private_files


def load_identity(owner: str, network: NetworkConfig, *, insecure: bool) -> TlsFiles | None:
    """Return the TLS files of the server or a party; None for plaintext.

    Raises ConfigError for plaintext beyond this machine and for missing files, ValueError for files that cannot be
    used.
    """
    if insecure:
        field, address = ("listen", network.listen) if owner == SERVER else ("server", network.server)
        if not is_loopback(address):
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


NOISE_KEY = "noise.key"
_BYTES = 32


def noise_key(config: ExperimentConfig, run_dir: Path) -> bytes | None:
    """Return the secret, which is created at its first use; None if ``privacy.noise_seed`` gives it.

    Raises ValueError for a file without a secret: with another one a resumed run would draw other noise.
    """
    privacy = config.privacy
    noisy = privacy.gradients is not None or "embeddings" in privacy.noisy
    if privacy.noise_seed is not None or not noisy:
        return None
    path = run_dir / NOISE_KEY
    if not path.exists():
        with private_files():
            write_atomically(path, secrets.token_hex(_BYTES) + "\n")
    try:
        secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != _BYTES:
        raise ValueError(f"{path}: holds no secret of {_BYTES} bytes; begin the run in another folder")
    return secret
