"""Digests of weights: equal digests mean equal bits."""

import hashlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from vfl.base.errors import ConfigError


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names (sorted), dtypes, shapes and bytes of tensors on any device."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class OtherData(ConfigError):  # noqa: N818 - says what it found
    """Data are not those of the saved run."""


def check_same_data(owner: str, saved: str, present: str) -> None:
    """Raise OtherData if a run would continue with other data than it was saved with."""
    if saved != present:
        raise OtherData(f"--resume: {owner} are not those of the saved run; restore the data or start a new run")


@contextmanager
def blaming(what: str) -> Generator[None]:
    """Name in OtherData, in place of ``--resume``, what a command without that option was given."""
    try:
        yield
    except OtherData as error:
        raise ConfigError(str(error).replace("--resume", what, 1)) from None


def combined_digest(digests: Mapping[str, str]) -> str:
    """Return the sha256 over the owners' digests (names sorted), for which no owner has to show its weights."""
    lines = "".join(f"{owner}:{digests[owner]}\n" for owner in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()
