"""LEAF's JSON files (Caldas et al. 2018, arXiv 1812.01097): FEMNIST's images and Shakespeare's text, by user.

`root/train/*.json` and `root/test/*.json`, as LEAF's preprocessing writes them: each file an object with `users`
(names) and `user_data` ({user: {"x": [...], "y": [...]}}).
FEMNIST: x is a square's grey values from 0 to 1 in one list, y a class from 0 to 61.
Shakespeare: x is a string of T characters, y the one that follows.
"""
# pyright: reportUnknownMemberType=false
# torch's own signatures are partly untyped.

import json
import math
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from models.features import Features
from vfl.data.samples import Owners, Samples
from vfl.data.source import AsItIs, Preparation
from vfl.data.sources.images import ImageGrid
from vfl.data.sources.pooled import Pools, in_memory
from vfl.data.sources.text import encode, warn_of_pixels
from vfl.errors import one_line

FEMNIST_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""In the order of FEMNIST's labels; always all 62, so that a model's size does not depend on the sampled users."""


class _User(NamedTuple):
    """One user's entry, checked to be two lists of one length."""

    where: str
    """File and user, for error messages."""
    name: str
    x: list[Any]
    y: list[Any]


@dataclass
class _Split:
    """All users of one split; either `images` or `texts` is filled."""

    folder: Path
    owners: dict[str, int] = field(default_factory=dict[str, int])
    """Index by name."""
    of_row: list[int] = field(default_factory=list[int])
    images: list[Tensor] = field(default_factory=list[Tensor])
    """uint8 [n, 1, H, W], one per user."""
    texts: list[str] = field(default_factory=list[str])
    classes: list[int] = field(default_factory=list[int])
    """Labels of the images."""
    following: list[str] = field(default_factory=list[str])
    """Labels of the texts."""


def load_leaf(root: Path | None, image_size: int | None) -> Pools:
    """Return FEMNIST-like images (one channel) or Shakespeare-like text, whichever the files hold.

    Text has labels int64 [N], the next character; its classes are the characters of all files, sorted. Owners are the
    training users, in order of files and their lists. Samples keep the files' order.
    Raises ValueError, naming file and user, for files that are missing or of another kind.
    """
    if root is None:
        raise ValueError("data.dataset.root: leaf needs a folder with train/*.json and test/*.json in it")
    train, test = _read_split(root / "train"), _read_split(root / "test")
    if bool(train.texts) != bool(test.texts):
        raise ValueError(f"data.dataset.root: '{root}' has text in one of train and test and images in the other")
    owners = Owners(tuple(train.owners), torch.tensor(train.of_row))
    if train.texts:
        warn_of_pixels(image_size)
        return _texts(train, test, owners)
    train_pool, test_pool = (
        in_memory(_stack(split), torch.tensor(split.classes), image_size) for split in (train, test)
    )
    return Pools(train_pool, test_pool, FEMNIST_CLASSES, owners)


def _texts(train: _Split, test: _Split, owners: Owners) -> Pools:
    sequences = train.texts + test.texts
    length = len(sequences[0])
    for sequence in sequences:
        if len(sequence) != length:
            raise ValueError(
                f"data.dataset.root: '{train.folder.parent}' has sequences of {length} and of {len(sequence)} "
                "characters; LEAF's have one length"
            )
    codes, classes = encode([*sequences, *train.following, *test.following])
    x, y = codes[: length * len(sequences)].view(-1, length), codes[length * len(sequences) :]
    rows = len(train.texts)
    return Pools(in_memory(x[:rows], y[:rows]), in_memory(x[rows:], y[rows:]), classes, owners)


def _stack(split: _Split) -> Tensor:
    """Join the users' images, which must be of one size."""
    sizes = {tuple(images.shape[1:]) for images in split.images}
    if len(sizes) > 1:
        raise ValueError(f"data.dataset.root: '{split.folder}' has images of several sizes")
    return torch.cat(split.images)


def _read_split(folder: Path) -> _Split:
    """Read all users below a folder, one file in memory at a time."""
    split = _Split(folder)
    for path in sorted(folder.glob("*.json")):
        for user in _users(path):
            owner = split.owners.setdefault(user.name, len(split.owners))
            split.of_row += [owner] * len(user.x)
            if user.x and isinstance(user.x[0], str):
                _add_texts(split, user)
            elif user.x:
                _add_images(split, user)
    if not split.of_row:
        raise ValueError(
            f"data.dataset.root: no samples as '{folder}/*.json'; put the files there that LEAF's preprocess.sh makes"
        )
    if split.texts and split.images:
        raise ValueError(f"data.dataset.root: '{folder}' mixes text and images; use one of LEAF's data sets at a time")
    return split


def _users(path: Path) -> Iterator[_User]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
        raise ValueError(f"data.dataset.root: cannot read '{path}': {one_line(error)}") from None
    users, data = (cast(dict[str, Any], content).get(key) if isinstance(content, dict) else None for key in _KEYS)
    if not isinstance(users, list) or not isinstance(data, dict):
        raise ValueError(f"data.dataset.root: '{path}' is not LEAF's: it needs {' and '.join(_KEYS)}")
    entries = cast(dict[Any, Any], data)
    for name in cast(list[Any], users):
        entry = entries.get(name) if isinstance(name, str) else None
        where = f"'{path}', user {name!r}"
        x, y = (cast(dict[str, Any], entry).get(key) if isinstance(entry, dict) else None for key in ("x", "y"))
        if not isinstance(x, list) or not isinstance(y, list):
            raise ValueError(f"data.dataset.root: {where}: needs lists x and y in user_data")
        samples, labels = cast(list[Any], x), cast(list[Any], y)
        if len(samples) != len(labels):
            raise ValueError(f"data.dataset.root: {where}: {len(samples)} samples with {len(labels)} labels")
        yield _User(where, str(name), samples, labels)


_KEYS = ("users", "user_data")


def _add_texts(split: _Split, user: _User) -> None:
    if not all(isinstance(value, str) for value in user.x):
        raise ValueError(f"data.dataset.root: {user.where}: x mixes strings with other values")
    if not all(user.x):
        raise ValueError(f"data.dataset.root: {user.where}: x holds an empty string; LEAF's sequences have one length")
    if not all(isinstance(value, str) and len(value) == 1 for value in user.y):
        raise ValueError(
            f"data.dataset.root: {user.where}: y must hold the one character that follows; "
            "of LEAF's sets FEMNIST and Shakespeare can be read"
        )
    split.texts += user.x
    split.following += user.y


def _add_images(split: _Split, user: _User) -> None:
    try:
        grey = np.asarray(user.x, dtype=np.float64).reshape(len(user.x), -1)
    except (TypeError, ValueError):  # ragged, or not numbers
        grey = np.empty((0, 0))
    side = math.isqrt(grey.shape[1])
    if side == 0 or side * side != grey.shape[1] or not ((grey >= 0) & (grey <= 1)).all():
        raise ValueError(
            f"data.dataset.root: {user.where}: x must hold the grey values of squares, 0 to 1; "
            "of LEAF's sets FEMNIST and Shakespeare can be read"
        )
    if not all(type(label) is int and 0 <= label < len(FEMNIST_CLASSES) for label in user.y):
        raise ValueError(f"data.dataset.root: {user.where}: y must hold whole numbers from 0 to 61")
    pixels = torch.from_numpy((grey * 255).round().astype(np.uint8))
    split.images.append(pixels.view(-1, 1, side, side))
    split.classes += user.y


class LeafSource(ImageGrid):
    """FEMNIST's images as all images; Shakespeare's text as all text."""

    def prepare(self, train: Samples) -> Preparation:
        """Standardise images; leave text as it is."""
        if train.features.dim() == 4:
            return super().prepare(train)
        return AsItIs(Features("text", tuple(train.features.shape[1:])))


leaf = partial(LeafSource, pools=load_leaf)
