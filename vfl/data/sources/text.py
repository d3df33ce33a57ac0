"""Plain text for next-character prediction, by speaking role where it is a play.

A play is a text in which at least half of the paragraphs begin with a line `NAME:`; the rest of such a paragraph is
that role's, and paragraphs without a name (titles, stage directions) are left out. Roles as clients: McMahan et al.
2017 (arXiv 1602.05629), section 3. Names are all there is to go by: roles of two plays in one file that bear one name
are one client.

Shapes: N samples, T characters.
"""
# pyright: reportUnknownMemberType=false
# torch's own signatures are partly untyped.

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vfl.base.errors import one_line
from vfl.data.samples import Owners
from vfl.data.sources.pooled import Pool, PooledSource, Pools, in_memory

WINDOW = 80
"""T: as long as McMahan et al. unroll their network, and as LEAF's sequences."""

TEST_SHARE = 5
"""Every fifth window of a role (rounded down) is in the test set, about 20 %: those at the end of its text."""

_PARAGRAPHS = re.compile(r"\n[^\S\n]*\n\s*")
_SPEECH = re.compile(r"([^\n:]+):[^\S\n]*(?:\n|$)")


def load_text(root: Path | None, image_size: int | None) -> Pools:
    """Cut a text file into windows of `WINDOW` characters that do not overlap; labels are one character further.

    Both are int64 [N, T]. The text of every role is cut separately; the rest at its end, and roles too short for a
    window, are left out. Classes are the characters of the whole file, sorted. Raises ValueError if there is no such
    file or too little in it.
    """
    warn_of_pixels(image_size)
    text = _read(root)
    roles = split_roles(text)
    texts = list(roles.values()) or [text]
    codes, classes = encode(texts)
    train, test = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
    for end, part in zip(accumulate(map(len, texts)), texts, strict=True):  # end: of this text, in the row of all codes
        x, y = windows(codes[end - len(part) : end])
        train_size = len(x) - len(x) // TEST_SHARE
        train.append((x[:train_size], y[:train_size]))
        test.append((x[train_size:], y[train_size:]))
    if not any(len(x) for x, _ in test):
        raise ValueError(
            f"data.dataset.root: '{root}' is too short: it takes {TEST_SHARE} windows of {WINDOW} characters by one "
            "role, or in all where there are no roles"
        )
    return Pools(
        train=_pool(train),
        test=_pool(test),
        classes=classes,
        owners=_owners({role: len(x) for role, (x, _) in zip(roles, train, strict=True)}) if roles else None,
    )


def _pool(pairs: Sequence[tuple[Tensor, Tensor]]) -> Pool:
    x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return in_memory(x, y)


def warn_of_pixels(image_size: int | None) -> None:
    """Warn if a size of images is given for text."""
    if image_size is not None:
        warnings.warn("data.dataset.image_size is ignored: text has no pixels", stacklevel=4)


def split_roles(text: str) -> dict[str, str]:
    """Return the text of each role of a play, speeches one per line; empty for a text that is not a play."""
    paragraphs = [paragraph for paragraph in _PARAGRAPHS.split(text.strip()) if paragraph]
    speeches: dict[str, list[str]] = {}
    for paragraph in paragraphs:
        heading = _SPEECH.match(paragraph)
        if heading is not None:
            speeches.setdefault(heading[1].strip(), []).append(paragraph[heading.end() :])
    if 2 * sum(map(len, speeches.values())) < len(paragraphs):
        return {}
    return {role: "\n".join(lines) for role, lines in speeches.items()}


def encode(texts: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return all characters of the texts in one row, int64 [sum of lengths], and the sorted characters they index."""
    # UTF-32 has four bytes for every character: numbers, which NumPy sorts without a Python object for each.
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4")
    vocabulary, codes = np.unique(points, return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), tuple(map(chr, vocabulary.tolist()))


def windows(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Cut int64 [L] into features and labels [(L - 1) // T, T], labels one character further."""
    length = max(0, len(codes) - 1) // WINDOW * WINDOW
    return codes[:length].view(-1, WINDOW), codes[1 : length + 1].reshape(-1, WINDOW)


def _owners(rows: Mapping[str, int]) -> Owners:
    """Number the roles that have at least one window."""
    long_enough = {role: count for role, count in rows.items() if count}
    counts = torch.tensor(list(long_enough.values()))
    return Owners(tuple(long_enough), torch.arange(len(counts)).repeat_interleave(counts))


def _read(root: Path | None) -> str:
    if root is None:
        raise ValueError("data.dataset.root: text needs the path of a text file")
    try:
        return root.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"data.dataset.root: '{root}' is not UTF-8 text ({one_line(error)}); convert it") from None
    except OSError as error:
        raise ValueError(
            f"data.dataset.root: cannot read '{root}' ({error.strerror}); name a text file, nothing is downloaded"
        ) from None


text = partial(PooledSource, pools=load_text)
