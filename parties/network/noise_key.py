"""The secret of a process's noise: it stays in the folder of its run, and no other process learns it."""

import secrets
from pathlib import Path

from vfl.config import ExperimentConfig
from vfl.runs.atomic import write_atomically
from vfl.runs.run_folder import private_files

NOISE_KEY = "noise.key"
_BYTES = 32


def noise_key(config: ExperimentConfig, run_dir: Path) -> bytes | None:
    """Return the secret, which is created at its first use; None if ``privacy.noise_seed`` gives it.

    Raises ValueError for a file without a secret: with another one a resumed run would draw other noise.
    """
    privacy = config.privacy
    noisy = privacy.gradients is not None or privacy.embeddings == "gaussian"
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
