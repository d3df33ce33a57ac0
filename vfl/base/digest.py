"""Digests of weights: equal digests mean equal bits."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names (sorted), dtypes, shapes and bytes of tensors on any device."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_same_data(owner: str, saved: str, present: str) -> None:
    """Raise ValueError if a run would continue with other data than it was saved with."""
    if saved != present:
        raise ValueError(f"--resume: {owner} are not those of the saved run; restore the data or start a new run")


def combined_digest(digests: Mapping[str, str]) -> str:
    """Return the sha256 over the owners' digests (names sorted), for which no owner has to show its weights."""
    lines = "".join(f"{owner}:{digests[owner]}\n" for owner in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()
