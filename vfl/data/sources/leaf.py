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
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from vfl.base.errors import one_line
from vfl.data.samples import Owners, Samples
from vfl.data.source import AsItIs, Preparation
from vfl.data.sources.images import ImageGrid
from vfl.data.sources.pooled import Pool, Pools, in_memory
from vfl.data.sources.text import encode, warn_of_pixels
from vfl.models.features import Features

FEMNIST_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""FEMNIST's 62 classes in the order of its labels; always all, so that a model's size does not depend on the sample."""


class _User(NamedTuple):
    """One user's samples, checked."""

    name: str
    x: Tensor | list[str]
    """uint8 [n, 1, H, W], or n sequences of characters."""
    y: list[Any]
    """n classes, or the characters that follow."""


def load_leaf(root: Path | None, image_size: int | None) -> Pools:
    """Return FEMNIST-like images (one channel) or Shakespeare-like text, whichever the files hold.

    Text has labels int64 [N], the next character; its classes are the characters of all files, sorted. Owners are the
    training users, in order of files and their lists. Samples keep the files' order.
    Raises ValueError, naming file and user, for files that are missing or of another kind.
    """
    if root is None:
        raise ValueError("data.dataset.root: leaf needs a folder with train/*.json and test/*.json in it")
    train, test = _read_users(root / "train"), _read_users(root / "test")
    places = {name: place for place, name in enumerate(dict.fromkeys(user.name for user in train))}
    owners = Owners(tuple(places), torch.tensor([places[user.name] for user in train for _ in user.y]))
    texts = [[x for user in users if isinstance(user.x, list) for x in user.x] for users in (train, test)]
    if bool(texts[0]) != bool(texts[1]):
        raise ValueError(f"data.dataset.root: '{root}' has text in one of train and test and images in the other")
    if texts[0]:
        warn_of_pixels(image_size)
        return _text_pools(root, texts[0] + texts[1], [y for user in train + test for y in user.y], owners)
    train_pool, test_pool = (
        _image_pool(root / name, users, image_size) for name, users in (("train", train), ("test", test))
    )
    return Pools(train_pool, test_pool, FEMNIST_CLASSES, owners)


def _text_pools(root: Path, sequences: list[str], following: list[str], owners: Owners) -> Pools:
    """Return the pools of training sequences, which come first, and of test sequences."""
    length = len(sequences[0])
    for sequence in sequences:
        if len(sequence) != length:
            raise ValueError(
                f"data.dataset.root: '{root}' has sequences of {length} and of {len(sequence)} characters; LEAF's have "
                "one length"
            )
    codes, classes = encode([*sequences, *following])  # one row of characters: first all sequences, then a label each
    x, y = codes[: length * len(sequences)].view(-1, length), codes[length * len(sequences) :]
    rows = len(owners.of_row)  # only training samples have owners
    return Pools(in_memory(x[:rows], y[:rows]), in_memory(x[rows:], y[rows:]), classes, owners)


def _image_pool(folder: Path, users: Sequence[_User], image_size: int | None) -> Pool:
    """Concatenate the users' images, which must have one size."""
    images = [user.x for user in users if isinstance(user.x, Tensor)]
    if len({each.shape[1:] for each in images}) > 1:
        raise ValueError(f"data.dataset.root: '{folder}' has images of several sizes")
    return in_memory(torch.cat(images), torch.tensor([y for user in users for y in user.y]), image_size)


def _read_users(folder: Path) -> list[_User]:
    """Read all users below a folder, one file in memory at a time."""
    users = [user for path in sorted(folder.glob("*.json")) for user in _users(path)]
    kinds = {type(user.x) for user in users if user.y}
    if not kinds:
        raise ValueError(
            f"data.dataset.root: no samples as '{folder}/*.json'; put the files there that LEAF's preprocess.sh makes"
        )
    if len(kinds) > 1:
        raise ValueError(f"data.dataset.root: '{folder}' mixes text and images; use one of LEAF's data sets at a time")
    return users


def _users(path: Path) -> Iterator[_User]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
        raise ValueError(f"data.dataset.root: cannot read '{path}': {one_line(error)}") from None
    users, data = _members(content, "users", "user_data")
    if not isinstance(users, list) or not isinstance(data, dict):
        raise ValueError(f"data.dataset.root: '{path}' is not LEAF's: it needs users and user_data")
    for name in cast(list[Any], users):
        where = f"data.dataset.root: '{path}', user {name!r}"
        x, y = _members(cast(dict[Any, Any], data).get(name) if isinstance(name, str) else None, "x", "y")
        if not isinstance(x, list) or not isinstance(y, list):
            raise ValueError(f"{where}: needs lists x and y in user_data")
        samples, labels = cast(list[Any], x), cast(list[Any], y)
        if len(samples) != len(labels):
            raise ValueError(f"{where}: {len(samples)} samples with {len(labels)} labels")
        of_text = not samples or isinstance(samples[0], str)  # a user without samples is of either kind
        yield _User(str(name), (_checked_texts if of_text else _checked_images)(where, samples, labels), labels)


def _members(value: object, *keys: str) -> list[object]:
    """Return the values of some keys in a JSON object, None for missing ones."""
    return [cast(dict[str, object], value).get(key) if isinstance(value, dict) else None for key in keys]


def _checked_texts(where: str, x: list[Any], y: list[Any]) -> list[str]:
    if not all(isinstance(value, str) for value in x):
        raise ValueError(f"{where}: x mixes strings with other values")
    if not all(x):
        raise ValueError(f"{where}: x holds an empty string; LEAF's sequences have one length")
    if not all(isinstance(value, str) and len(value) == 1 for value in y):
        raise ValueError(
            f"{where}: y must hold the one character that follows; of LEAF's sets FEMNIST and Shakespeare can be read"
        )
    return x


def _checked_images(where: str, x: list[Any], y: list[Any]) -> Tensor:
    try:
        grey = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
    except (TypeError, ValueError):  # ragged, or not numbers: refused below, as no square
        grey = np.empty((0, 0))
    side = math.isqrt(grey.shape[1])
    if side == 0 or side * side != grey.shape[1] or not ((grey >= 0) & (grey <= 1)).all():
        raise ValueError(
            f"{where}: x must hold the grey values of squares, 0 to 1; of LEAF's sets FEMNIST and Shakespeare can be "
            "read"
        )
    if not all(type(label) is int and 0 <= label < len(FEMNIST_CLASSES) for label in y):  # true is no label
        raise ValueError(f"{where}: y must hold whole numbers from 0 to 61")
    return torch.from_numpy((grey * 255).round().astype(np.uint8)).view(-1, 1, side, side)


class LeafSource(ImageGrid):
    """FEMNIST's images as other images; Shakespeare's text as other text."""

    def prepare(self, train: Samples) -> Preparation:
        """Standardise images; leave text as it is."""
        if train.features.dim() == 4:
            return super().prepare(train)
        return AsItIs(Features("text", tuple(train.features.shape[1:])))


leaf = partial(LeafSource, pools=load_leaf)
