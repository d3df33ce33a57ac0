"""Folders of images, one per class."""
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# torchvision ships no stubs.

import io
import struct
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from vfl.base.errors import one_line
from vfl.data.sources.images import ImageGrid
from vfl.data.sources.pooled import Pool, Pools

if TYPE_CHECKING:
    from torchvision.datasets import ImageFolder

SHOWN = 5
"""Suffixes that a warning names."""
DECODERS = 4
"""Number of decoding threads."""


def load_image_folder(root: Path | None, image_size: int | None) -> Pools:
    """Return the images below `root/train/<class>/` and `root/test/<class>/`, as RGB.

    All must have one size if image_size is None.
    """
    if root is None:
        raise ValueError("data.dataset.root: image_folder needs a folder with train/<class>/ and test/<class>/ in it")
    if not (root / "train").is_dir() and (meant := _meant(root)):
        raise ValueError(f"data.dataset.root: '{root}' holds no folder train; '{meant}' does: name that one")
    train, test = _scan(root / "train"), _scan(root / "test")
    if train.classes != test.classes:
        only = {"train": set(train.classes) - set(test.classes), "test": set(test.classes) - set(train.classes)}
        classes_by_split = "; ".join(
            f"{', '.join(sorted(names))} only in {split}" for split, names in only.items() if names
        )
        raise ValueError(f"data.dataset.root: '{root}': train and test need the same class folders, {classes_by_split}")
    return Pools(_folder_pool(train.samples, image_size), _folder_pool(test.samples, image_size), tuple(train.classes))


def _meant(root: Path) -> Path | None:
    """Return the folder one level above or below that contains train and test, if there is one."""
    below = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    near = (root.absolute().parent, *below)
    return next((folder for folder in near if (folder / "train").is_dir() and (folder / "test").is_dir()), None)


def _scan(folder: Path) -> "ImageFolder":
    """Return torchvision's list of the images below one folder: sorted, so the same on every machine."""
    from torchvision.datasets import ImageFolder  # over a second to import: only those who use it wait
    from torchvision.datasets.folder import IMG_EXTENSIONS

    class Visible(ImageFolder):
        def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
            names, _ = super().find_classes(directory)
            names = [name for name in names if not _is_hidden(name)]
            if not names:
                raise FileNotFoundError(f"Couldn't find any class folder in {directory}.")
            return names, {name: place for place, name in enumerate(names)}

    def is_read(path: str) -> bool:
        return path.lower().endswith(IMG_EXTENSIONS) and not any(map(_is_hidden, Path(path).relative_to(folder).parts))

    _warn_of_others(folder, IMG_EXTENSIONS)
    try:
        return Visible(str(folder), is_valid_file=is_read)
    except OSError as error:  # also torchvision's own for "no class folder" and "a class without images"
        why = error.strerror or one_line(error)
        raise ValueError(f"data.dataset.root: no images as '{folder}/<class>/*': {why}") from None


def _is_hidden(name: str) -> bool:
    """Return whether a folder or file is a program's own: of Jupyter, a NAS, macOS or Windows."""
    return name.startswith((".", "@")) or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def _warn_of_others(folder: Path, read: Sequence[str]) -> None:
    """Warn, once, of files that are left out for their format, with their number by suffix."""
    files = (path.relative_to(folder) for path in folder.glob("*/**/*") if path.is_file())
    suffixes = [path.suffix.lower() for path in files if not any(map(_is_hidden, path.parts))]
    counts = Counter(suffix for suffix in suffixes if suffix not in read)
    if counts:
        counted = ", ".join(f"{count} {suffix or 'without a suffix'}" for suffix, count in counts.most_common(SHOWN))
        what = f"{counts.total()} files of other formats are left out ({counted}); convert pictures to .png or .jpg"
        warnings.warn(f"data.dataset.root: '{folder}': {what}", stacklevel=2)


def _folder_pool(files: Sequence[tuple[str, int]], image_size: int | None) -> Pool:
    """Return the pool of some files, each (path, class index)."""
    return Pool(
        labels=torch.tensor([label for _, label in files]),
        read=lambda rows: _decode_all([files[int(row)][0] for row in rows], image_size),
    )


def _decode_all(paths: Sequence[str], image_size: int | None) -> Tensor:
    """Decode images into uint8 [N, 3, H, W], with the size of the first one."""
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
            if image.mode.startswith(("I", "F")):  # convert would clip their values at 255, in silence
                raise ValueError("more than 8 bits per channel")
            rgb = image.convert("RGB")
    except UnidentifiedImageError:
        raise ValueError(f"data.dataset.root: cannot read '{path}': not an image, or damaged") from None
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(f"data.dataset.root: cannot read '{path}': {one_line(error)}") from None
    return rgb if image_size is None else rgb.resize((image_size, image_size), Image.Resampling.BILINEAR)


image_folder = partial(ImageGrid, pools=load_image_folder)
