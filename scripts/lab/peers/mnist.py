"""MNIST, as the peers read it: its four files, unpacked, as tensors that are kept once read."""

import functools
from pathlib import Path

import torch


@functools.cache
def read_mnist(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images [N, 1, 28, 28], standardised by the usual mean and spread, and labels [N], of train or t10k."""
    pixels, labels = (
        torch.frombuffer(bytearray((folder / f"{part}-{kind}-ubyte").read_bytes()), dtype=torch.uint8)
        for kind in ("images-idx3", "labels-idx1")
    )
    return (pixels[16:].view(-1, 1, 28, 28) / 255 - 0.1307) / 0.3081, labels[8:].long()
