"""Published image sets through torchvision: read from disk in their own formats, or else downloaded."""
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# torchvision ships no stubs.

import contextlib
import http.client
import io
import socket
import warnings
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vfl.base.errors import one_line
from vfl.data.sources.images import ImageGrid
from vfl.data.sources.pooled import Pool, Pools, in_memory

DEFAULT_ROOT = Path("data")
DOWNLOAD_TIMEOUT_S = 30.0


class Published(NamedTuple):
    """One published set: names, size and files."""

    title: str
    name: str
    """Name of its class in torchvision."""
    megabytes: int
    """Size of the download."""
    places: tuple[str, ...]
    """Files or folders below `root` that contain it, packed or unpacked."""


PUBLISHED = {
    "mnist": Published("MNIST", "MNIST", 12, ("MNIST/raw",)),
    "fashion_mnist": Published("Fashion-MNIST", "FashionMNIST", 31, ("FashionMNIST/raw",)),
    "cifar10": Published("CIFAR-10", "CIFAR10", 170, ("cifar-10-python.tar.gz", "cifar-10-batches-py")),
    "cifar100": Published("CIFAR-100", "CIFAR100", 169, ("cifar-100-python.tar.gz", "cifar-100-python")),
    "svhn": Published("SVHN", "SVHN", 246, ("train_32x32.mat", "test_32x32.mat")),
}
"""Published sets by `data.dataset.kind`."""

DIGITS = tuple("0123456789")
"""Classes of MNIST ("0 - zero" in torchvision) and SVHN (which names none)."""


def load_published(kind: str, root: Path | None, image_size: int | None) -> Pools:
    """Return a set of `PUBLISHED` from `root` (default `data/`), downloading it if it is missing.

    MNIST and Fashion-MNIST have one channel and 28 pixels a side, the others three and 32. Raises ValueError if it is
    neither on disk nor can be downloaded.
    """
    title, name, megabytes, places = PUBLISHED[kind]
    root = root or DEFAULT_ROOT
    first = root / places[0]
    absent = [folder for folder in (first, *first.parents) if not folder.exists()]  # innermost first, as rmdir needs
    try:
        # torchvision leaves an empty folder where a download fails
        if not any(place.is_file() or any(place.glob("*")) for place in map(root.joinpath, places)):
            warnings.warn(f"downloading {title} ({megabytes} MB) to '{root}'", stacklevel=3)
        with _quiet(), _network_timeout(DOWNLOAD_TIMEOUT_S):
            train, test = _open(name, root, training=True), _open(name, root, training=False)
        classes = DIGITS if kind in ("mnist", "svhn") else tuple(train.classes)
        return Pools(_pool(train, image_size), _pool(test, image_size), classes)
    except _UNREADABLE as error:
        for folder in absent:  # torchvision makes them before it downloads
            with contextlib.suppress(OSError):  # one that holds something stays
                folder.rmdir()
        places = " and ".join(places) if kind == "svhn" else " or ".join(places)
        raise ValueError(
            f"data.dataset.root: no intact {title} in '{root}' and none downloaded ({one_line(error)}); "
            f"put {places} there, or use data.dataset.kind=digits, or image_folder for images of your own"
        ) from None


_UNREADABLE = (OSError, http.client.HTTPException, RuntimeError, AssertionError, LookupError, TypeError, ValueError)
"""Errors of torchvision: the first three for a failed download, the others for damaged MNIST files, whose unpacked form
it does not check."""


def _open(name: str, root: Path, *, training: bool) -> Any:
    """Return one split as torchvision's object, which looks on disk before it downloads."""
    from torchvision import datasets  # over a second to import: only those who use it wait

    if name == "SVHN":  # one file per split
        return datasets.SVHN(root, split="train" if training else "test", download=True)
    return getattr(datasets, name)(root, train=training, download=training)  # a download brings both splits


def _pool(split: Any, image_size: int | None) -> Pool:
    """Convert torchvision's three layouts [N, H, W], [N, H, W, 3] and [N, 3, H, W] to ours."""
    images = torch.as_tensor(split.data)
    if images.dim() == 3:
        images = images[:, None]
    elif images.shape[-1] == 3:
        images = images.permute(0, 3, 1, 2)
    labels: Tensor = torch.as_tensor(split.labels if hasattr(split, "labels") else split.targets)
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images with {len(labels)} labels")
    return in_memory(images, labels.to(torch.int64), image_size)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Suppress torchvision's progress bar and its warnings.

    The warnings are about its archives' age (NumPy 2.4.0 to 2.4.4 on unpickling, Python 3.12 on unpacking), which no
    user can change. Torchvision itself reads the pickles, after checking their published md5.
    """
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _network_timeout(timeout_s: float) -> Generator[None]:
    """Set a timeout for sockets opened meanwhile: torchvision sets none and hangs if a firewall drops packets."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(timeout_s)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


mnist, fashion_mnist, cifar10, cifar100, svhn = (
    partial(ImageGrid, pools=partial(load_published, kind)) for kind in PUBLISHED
)
