"""Labelled images of every kind that `data.dataset.kind` names, as uint8 tensors.

A loader only says how many images there are, their labels, and how to read some of them (`_Pool`); which ones an
experiment uses is decided here, once, for all kinds. So an image that was not chosen is never decoded.
"""
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# torch's own signatures are partly untyped; torchvision and scikit-learn ship no stubs.

import contextlib
import difflib
import http.client
import io
import socket
import struct
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.nn.functional import interpolate

from vfl.data.samples import Samples
from vfl.random import generator

if TYPE_CHECKING:  # torchvision and scikit-learn take over a second to import: only the kinds that use them do
    from torchvision.datasets import CIFAR10, ImageFolder

TEST_ID_START = 1_000_000_000
"""Ids of training samples are their rows in the full training set; those of test samples start here."""

DIGITS_TEST_SAMPLES = 397
"""Of the 1,797 digits: always the same ones, whatever the seed, so that no run trains on another's test images."""

DEFAULT_ROOT = Path("data")
DOWNLOAD_TIMEOUT_S = 30.0
DECODERS = 4


@dataclass(frozen=True)
class Dataset:
    """Training and test samples (uint8 images, no id in both) and the names of the classes their labels index."""

    train: Samples
    test: Samples
    classes: tuple[str, ...]


@dataclass(frozen=True)
class _Pool:
    """All samples of one split."""

    labels: Tensor
    """int64 [N]"""
    read: Callable[[Tensor], Tensor]
    """rows int64 [M] -> images uint8 [M, C, H, W]"""


@dataclass(frozen=True)
class _Source:
    train: _Pool
    test: _Pool
    classes: tuple[str, ...]


def load_dataset(
    kind: str,
    root: str | Path | None,
    *,
    train_samples: int | None,
    test_samples: int | None,
    seed: int,
    image_size: int | None = None,
) -> Dataset:
    """Load images and choose the samples of an experiment.

    kind: `cifar10`, `image_folder` or `digits`. root: where the files are, or for cifar10 will be downloaded to
    (default `data/`). image_size: the side in pixels that images are resized to, squares whatever they were;
    None keeps their own (digits: 32).

    train_samples: how many to draw, without replacement, by `seed`; None takes all. A larger draw by the same seed
    contains the smaller one. test_samples: the same, but never by `seed`: all seeds are evaluated on the same images.
    Rows come in ascending order of their ids (see `TEST_ID_START`), not shuffled.

    Raises ValueError, naming the field, for anything that cannot be had.
    """
    if kind not in _LOADERS:
        near = difflib.get_close_matches(kind, _LOADERS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"data.dataset.kind: there is no {kind!r}{hint}; choose one of {', '.join(_LOADERS)}")
    if image_size is not None and image_size < 1:
        raise ValueError(f"data.dataset.image_size: must be at least 1 pixel, got {image_size}")
    try:
        folder = None if root is None else Path(root).expanduser()
    except RuntimeError as error:
        raise ValueError(f"data.dataset.root: {root}: {_one_line(error)}") from None
    source = _LOADERS[kind](folder, image_size)
    train_draw = generator(seed, "train_subset")
    test_draw = generator(0, "test_subset")
    train_rows = _choose_rows("data.train_samples", train_samples, len(source.train.labels), train_draw)
    test_rows = _choose_rows("data.test_samples", test_samples, len(source.test.labels), test_draw)
    train, test = source.train.read(train_rows), source.test.read(test_rows)
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"data.dataset.root: training images are [C, H, W] {list(train.shape[1:])} and test images "
            f"{list(test.shape[1:])}; set data.dataset.image_size to resize them all"
        )
    return Dataset(
        train=Samples(train_rows, train, source.train.labels[train_rows]),
        test=Samples(test_rows + TEST_ID_START, test, source.test.labels[test_rows]),
        classes=source.classes,
    )


def _choose_rows(field: str, wanted: int | None, available: int, draw: torch.Generator) -> Tensor:
    """Return `wanted` of the rows 0 .. available - 1 (all for None), ascending int64."""
    if wanted is None:
        return torch.arange(available)
    if not 1 <= wanted <= available:
        raise ValueError(f"{field}: {wanted} asked for; choose from 1 to {available}, or leave it out for all")
    return torch.randperm(available, generator=draw)[:wanted].sort().values


# digits


def _digits(root: Path | None, image_size: int | None) -> _Source:
    """The 1,797 8 x 8 digits within scikit-learn, one channel. Needs no files.

    The split is a plain shuffle, so digits of one writer are on both sides.
    """
    from sklearn import datasets

    if root is not None:
        warnings.warn("data.dataset.root is ignored: the digits are part of scikit-learn", stacklevel=3)
    digits = cast(Any, datasets.load_digits())
    levels = torch.from_numpy(digits.images)[:, None]  # [1797, 1, 8, 8], 0 to 16
    images = (levels * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    order = torch.randperm(len(labels), generator=generator(0, "digits_split"))
    test, train = order[:DIGITS_TEST_SAMPLES], order[DIGITS_TEST_SAMPLES:]
    return _Source(
        train=_in_memory(images[train], labels[train], image_size or 32),
        test=_in_memory(images[test], labels[test], image_size or 32),
        classes=tuple(str(name) for name in digits.target_names),
    )


def _in_memory(images: Tensor, labels: Tensor, image_size: int | None) -> _Pool:
    """images: uint8 [N, C, H, W] of any strides."""
    return _Pool(labels, lambda rows: _resize(images[rows], image_size))


def _resize(images: Tensor, size: int | None) -> Tensor:
    """Resize uint8 [N, C, H, W] to squares of `size` pixels, bilinear and antialiased; None leaves them."""
    if size is None or images.shape[-2:] == (size, size):
        return images
    resized = torch.empty((*images.shape[:2], size, size), dtype=torch.uint8)
    for start in range(0, len(images), 1024):  # in pieces, for float copies take four times the memory
        piece = images[start : start + 1024].float()
        exact = interpolate(piece, (size, size), mode="bilinear", align_corners=False, antialias=True)
        resized[start : start + 1024] = exact.round()
    return resized


# cifar10


def _cifar10(root: Path | None, image_size: int | None) -> _Source:
    """CIFAR-10 as torchvision keeps it: from `root`, else downloaded to it."""
    from torchvision.datasets import CIFAR10

    root = root or DEFAULT_ROOT
    try:
        if not (root / CIFAR10.base_folder).exists() and not (root / CIFAR10.filename).exists():
            warnings.warn(f"downloading CIFAR-10 (170 MB) to '{root}'", stacklevel=3)
        with _quiet(), _network_timeout(DOWNLOAD_TIMEOUT_S):
            train = CIFAR10(root, train=True, download=True)  # looks on the disk first
            test = CIFAR10(root, train=False)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise ValueError(
            f"data.dataset.root: no intact CIFAR-10 in '{root}' and it cannot be downloaded ({_one_line(error)}); "
            f"put {CIFAR10.filename} or its folder {CIFAR10.base_folder} there, or use data.dataset.kind=digits"
        ) from None
    return _Source(
        train=_cifar10_pool(train, image_size),
        test=_cifar10_pool(test, image_size),
        classes=tuple(train.classes),
    )


def _cifar10_pool(split: "CIFAR10", image_size: int | None) -> _Pool:
    images = torch.from_numpy(split.data).permute(0, 3, 1, 2)  # torchvision has [N, H, W, C]
    return _in_memory(images, torch.tensor(cast(list[int], split.targets)), image_size)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Swallow torchvision's progress bar and its warnings.

    They are of its archive's age (NumPy 2.4.0 to 2.4.4 on unpickling, Python 3.12 on unpacking): no user can act on
    them. The pickles are torchvision's to read, which checks their published md5 first.
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
    """Give sockets opened meanwhile a timeout: torchvision sets none and hangs where a firewall drops packets."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(timeout_s)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


# image_folder


def _image_folder(root: Path | None, image_size: int | None) -> _Source:
    """Images below `root/train/<class>/` and `root/test/<class>/`, as RGB.

    Their own sizes must be one size when image_size is None.
    """
    if root is None:
        raise ValueError("data.dataset.root: image_folder needs a folder with train/<class>/ and test/<class>/ in it")
    train, test = _scan(root / "train"), _scan(root / "test")
    if train.classes != test.classes:
        differences = [
            f"{', '.join(sorted(names))} only in {split}"
            for split, names in (
                ("train", set(train.classes) - set(test.classes)),
                ("test", set(test.classes) - set(train.classes)),
            )
            if names
        ]
        raise ValueError(
            f"data.dataset.root: '{root}': train and test need the same class folders, {'; '.join(differences)}"
        )
    return _Source(
        train=_folder_pool(train.samples, image_size),
        test=_folder_pool(test.samples, image_size),
        classes=tuple(train.classes),
    )


def _scan(folder: Path) -> "ImageFolder":
    """Return torchvision's list of the images below one folder: sorted, so the same on every machine."""
    from torchvision.datasets import ImageFolder

    try:
        return ImageFolder(str(folder))
    except OSError as error:  # also torchvision's own for "no class folder" and "a class without images"
        raise ValueError(f"data.dataset.root: no images as '{folder}/<class>/*': {_one_line(error)}") from None


def _folder_pool(files: Sequence[tuple[str, int]], image_size: int | None) -> _Pool:
    """files: (path, class index) each."""
    return _Pool(
        labels=torch.tensor([label for _, label in files]),
        read=lambda rows: _decode_all([files[int(row)][0] for row in rows], image_size),
    )


def _decode_all(paths: Sequence[str], image_size: int | None) -> Tensor:
    """Decode images into uint8 [N, 3, H, W], H and W those of the first one."""
    width, height = _decode(paths[0], image_size).size
    images = np.empty((len(paths), 3, height, width), dtype=np.uint8)

    def decode_into(row: int) -> None:
        image = _decode(paths[row], image_size)
        if image.size != (width, height):
            raise ValueError(
                f"data.dataset.root: '{paths[row]}' has {image.width} x {image.height} pixels, '{paths[0]}' "
                f"{width} x {height}; set data.dataset.image_size to resize them all"
            )
        images[row] = np.asarray(image).transpose(2, 0, 1)

    with ThreadPoolExecutor(DECODERS) as threads:  # PIL decodes outside the interpreter lock
        for _ in threads.map(decode_into, range(len(paths))):
            pass  # raises the first error in order of the files, so the same one every time
    return torch.from_numpy(images)


def _decode(path: str, image_size: int | None) -> Image.Image:
    """Read one image as RGB, resized to a square of image_size pixels unless that is None."""
    try:
        encoded = io.BytesIO(Path(path).read_bytes())  # PIL makes some 40 short reads of its own
        with Image.open(encoded) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError("more than 8 bits per channel")
            rgb = image.convert("RGB")
    except UnidentifiedImageError:
        raise ValueError(f"data.dataset.root: cannot read '{path}': not an image, or damaged") from None
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(f"data.dataset.root: cannot read '{path}': {_one_line(error)}") from None
    return rgb if image_size is None else rgb.resize((image_size, image_size), Image.Resampling.BILINEAR)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_LOADERS: dict[str, Callable[[Path | None, int | None], _Source]] = {
    "cifar10": _cifar10,
    "digits": _digits,
    "image_folder": _image_folder,
}
