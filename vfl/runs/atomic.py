"""Files that are on the disk when the call returns, and files that are old or new but never half of one."""

import csv
import hashlib
import io
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""How text begins that a spreadsheet would run, or would after an apostrophe is taken off."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|-?(inf|nan)", re.IGNORECASE | re.ASCII)


class Fingerprint(NamedTuple):
    """What a file must still be to count as undamaged."""

    size: int
    """bytes"""
    sha256: str
    """hexadecimal"""

    def verify(self, path: Path) -> None:
        """Raise ValueError, naming file and damage, unless `path` has this content; OSError if unreadable."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != self.size:
                raise ValueError(f"{path}: {size} bytes instead of {self.size}")
            if hashlib.file_digest(file, "sha256").hexdigest() != self.sha256:
                raise ValueError(f"{path}: content does not match its sha256")


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Let an OSError name the file: a full disk's, found when an open file is written, names none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_atomically(path: Path, content: str | bytes) -> None:
    """Create or replace the file at `path`; text is written as UTF-8, line ends as they are.

    Raises OSError (disk full, no permission, ...), which names `path`, with the earlier file untouched and nothing left
    beside it.
    """
    temporary = path.with_name(f".partial-{path.name}")  # always this: the next write replaces what a kill has left
    data = content.encode() if isinstance(content, str) else content
    try:
        write_durably(temporary, [data])
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise
    sync_directory(path.parent)


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """Write a table as ``write_atomically``, the first row naming the columns; lines end as on Unix."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_atomically(path, text.getvalue())


def inert(cell: object) -> object:
    """Return a cell that no spreadsheet takes for a formula: text that begins as one gets an apostrophe before it.

    Numbers stay; so does text that begins otherwise. Text that begins with apostrophes and then as a formula gets one
    more, so that taking one off such text gives what was meant. As in OWASP, CSV Injection.
    """
    text = str(cell)
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else cell


def write_together(folder: Path, writers: Mapping[str, Callable[[Path], object]], *, overwrite: bool) -> list[Path]:
    """Create files that belong together, in a folder that is made (0700) where it is not there; return their paths.

    Each of `writers` {name: write} writes one file to the path it is given. No file has its name before all are
    written, so that a full disk leaves everything as it was. Raises ValueError for files that are there already,
    unless `overwrite`; OSError as the system does.
    """
    if not overwrite:
        check_absent(folder, writers)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    staged = {name: folder / f".partial-{name}" for name in writers}
    try:
        for name, write in writers.items():
            write(staged[name])
        for name, partial in staged.items():  # a rename takes no room on the disk
            partial.replace(folder / name)
    finally:
        for partial in staged.values():
            partial.unlink(missing_ok=True)
    sync_directory(folder)
    return [folder / name for name in writers]


def check_absent(folder: Path, names: Iterable[str]) -> None:
    """Raise ValueError where one of the files is in the folder already."""
    for name in names:
        if (folder / name).exists():
            raise ValueError(f"{folder / name} is there already; add --overwrite to replace it")


def write_durably(path: Path, chunks: Iterable[bytes | memoryview], mode: int | None = None) -> Fingerprint:
    """Write `chunks` one after another to `path` and wait until they are on the disk (fsync).

    The file is visible while it grows: give it a temporary name or folder. It has the permissions `mode` before it
    has content; None leaves them to the system. Raises OSError as the system does.
    """
    size = 0
    sha256 = hashlib.sha256()
    with naming(path), path.open("wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        for chunk in chunks:
            sha256.update(chunk)
            size += file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Fingerprint(size, sha256.hexdigest())


def sync_directory(directory: Path) -> None:
    """Wait until the names in `directory` (created, renamed, removed files) are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
