"""Secrets in files of their own: never in a configuration, which is shown and sent."""

from pathlib import Path

from vfl.base.errors import ConfigError

SHORTEST = 16
"""Characters."""


def read_secret(path: Path | None) -> bytes | None:
    """Return what a file holds without the white space around it, None without a file.

    Raises ConfigError for a secret that is too short, or that others than its owner may read.
    """
    if path is None:
        return None
    try:
        secret, mode = path.read_bytes().strip(), path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file that holds a secret") from None
    if len(secret) < SHORTEST:
        raise ConfigError(f"{path}: holds {len(secret)} characters; a secret has at least {SHORTEST}")
    if mode & 0o077:
        raise ConfigError(f"{path}: others may read it; chmod 600 {path}")
    return secret
