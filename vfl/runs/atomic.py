"""Durable files: on the disk when the call returns, and old or new after a crash, but never half of one."""

import csv
import errno
import hashlib
import io
import os
import re
import stat
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""Beginnings of text that a spreadsheet would run as a formula, possibly once it has removed an apostrophe."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|-?(inf|nan)", re.IGNORECASE | re.ASCII)


class Fingerprint(NamedTuple):
    """Size and digest of a file, to detect damage."""

    size: int
    """bytes"""
    sha256: str
    """hexadecimal"""


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Add the file's name to an OSError that has none, such as that of a full disk while an open file is written."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_atomically(path: Path, content: str | bytes, writer: str = "") -> None:
    """Create or replace the file at `path`; text is written as UTF-8, line ends as they are.

    ``writer`` names one of several processes that may write the file at once.

    Raises OSError (disk full, no permission, ...), which names `path`, with the earlier file untouched and nothing left
    beside it.
    """
    temporary = path.with_name(
        f".partial-{writer}{path.name}"
    )  # always this: its next write replaces what a kill has left
    data = content.encode() if isinstance(content, str) else content
    try:
        write_durably(temporary, [data])
        _take_name(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise
    sync_directory(path.parent)


def _take_name(temporary: Path, path: Path) -> None:
    """Rename a file to `path`, in place of a file or a link. Raises OSError, also for a pipe or a device."""
    if is_special(path) and not path.is_symlink():
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    temporary.replace(path)


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that a user names. Raises OSError, which names `path`.

    A link is followed and stays. A pipe, a device and a stream of this process (/dev/stdout) are written into; a
    regular file is created or replaced as by ``write_atomically``.
    """
    if not is_special(path):
        write_atomically(follow_links(path), content)
        return
    stream, data = stream_of(path), content.encode() if isinstance(content, str) else content
    with naming(path), os.fdopen(os.open(path, os.O_WRONLY) if stream is None else os.dup(stream), "wb") as file:
        file.write(data)


def stream_of(path: Path) -> int | None:
    """Return the descriptor of this process that a path such as /dev/stdout names; None for any other path."""
    if found := re.fullmatch(r"/dev/(stdout|stderr)|(?:/dev|/proc/self)/fd/(\d+)", str(path)):
        return int(found[2] or {"stdout": 1, "stderr": 2}[found[1]])
    return None


def is_special(path: Path) -> bool:
    """Return whether a path leads to what can only be written into: a pipe, a device, a stream of this process."""
    return stream_of(path) is not None or (path.exists() and not path.is_file() and not path.is_dir())


def follow_links(path: Path) -> Path:
    """Return where a link leads, also to nothing yet; a path of another kind, a pipe or a device as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() and not is_special(path) else path


def check_output(path: Path) -> None:
    """Raise ValueError, before the work, for an ``--out`` that can be no file: a folder, or one in no folder."""
    if path.is_dir():
        raise ValueError(f"--out: {path} is a folder; name a file")
    if not follow_links(path).parent.is_dir():
        raise ValueError(f"--out: there is no folder {follow_links(path).parent}; make it, or name another file")


def check_new_folder(path: Path) -> None:
    """Raise ValueError, before the work, for an ``--out`` that is there already."""
    if path.exists():
        raise ValueError(f"--out: {path} exists already; name another folder")


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV; the first row names the columns, lines end in LF."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def write_csv(path: Path, rows: Iterable[Iterable[object]], writer: str = "") -> None:
    """Write a table as CSV, as ``write_atomically``."""
    write_atomically(path, csv_text(rows), writer)


def escape_formula(cell: object) -> object:
    """Return a cell that no spreadsheet takes for a formula: text that begins like one gets an apostrophe before it.

    Numbers and other text stay as they are. Text that begins with apostrophes and then like a formula gets one more, so
    that removing one restores it. See OWASP, CSV Injection.
    """
    text = str(cell)
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else cell


def write_together(folder: Path, writers: Mapping[str, Callable[[Path], object]], *, overwrite: bool) -> list[Path]:
    """Create files that belong together in a folder, which is created (0700) if necessary; return their paths.

    Each of `writers` {name: write} writes one file to the path it is given. No file gets its name before all are
    written, so that a full disk leaves everything as it was. Raises ValueError for files that exist, unless
    `overwrite`, and OSError.
    """
    if not overwrite:
        check_absent(folder, writers)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    staged = {name: folder / f".partial-{name}" for name in writers}
    try:
        for name, write in writers.items():
            write(staged[name])
        for name, partial in staged.items():  # a rename takes no room on the disk
            _take_name(partial, folder / name)
    finally:
        for partial in staged.values():
            partial.unlink(missing_ok=True)
    sync_directory(folder)
    return [folder / name for name in writers]


def check_absent(folder: Path, names: Iterable[str]) -> None:
    """Raise ValueError if one of the files exists in the folder."""
    for name in names:
        if (folder / name).exists():
            raise ValueError(f"{folder / name} is there already; add --overwrite to replace it")


def write_durably(path: Path, chunks: Iterable[bytes | memoryview], mode: int | None = None) -> Fingerprint:
    """Write `chunks` one after another to `path` and wait until they are on the disk (fsync).

    The file is visible while it grows: give it a temporary name or folder. It has the permissions `mode` before it has
    content; None leaves them to the system. Raises OSError.
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


FIX_MODE = "chmod 600 it; only a mounted secret of root may be 0440, for a group of this process"
"""Remedy for a file of a secret that others may read."""


def is_open_to_others(file: os.stat_result) -> bool:
    """Return whether users other than this process's own may read a file, or write it.

    0440 of root and a group of this process is private, too: Kubernetes mounts secrets so for a pod without root, and
    nobody in the pod can change that.
    """
    mounted = file.st_uid == 0 and file.st_gid in (os.getegid(), *os.getgroups())
    return bool(stat.S_IMODE(file.st_mode) & 0o077) and not (mounted and stat.S_IMODE(file.st_mode) == 0o440)
