"""Checkpoints that survive a kill at any instant, a damaged file and a full disk.

Layout below the store's directory:

    round_000012/             committed, after 12 rounds: it has its final name and a manifest
        server.json           the section's tree; in a tensor's place stands {"$tensor": name}
        server.safetensors    the section's tensors, named by their place in the tree (as in RFC 6901)
        manifest.json         format version, round, size and sha256 of every file; written last
    .partial-round_000013/    being written or being removed: garbage once its process is dead
    .replaced-round_000012/   about to be replaced by a new version of its round: valid until that has the name
"""

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vfl.runs.atomic import Fingerprint, sync_directory, write_durably

if TYPE_CHECKING:  # which checkpoints there are is known without PyTorch
    from torch import Tensor

State = dict[str, Any]
"""Nested dicts with string keys, lists, None, bool, int, float, str and torch tensors."""
_FORMAT = 1
_MANIFEST = "manifest.json"
_PARTIAL = ".partial-"
_REPLACED = ".replaced-"
_FOLDER = re.compile(r"round_(\d{6,})")
_SECTION = re.compile(r"(?!manifest$)\w[\w.-]*", re.ASCII)
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}

# A user's key that starts with "$" is stored with one more: no user data can look like these.
_TENSOR = "$tensor"


class CorruptCheckpoint(ValueError):  # noqa: N818 - names the object, not the error
    """A committed checkpoint whose files are not what was saved; the message names file and damage."""


class CheckpointWriteError(OSError):
    """The disk is full; the message says what is still there and what to do."""


class CheckpointStore:
    """The newest `keep` checkpoints of one run, below `directory`. One process writes them; reading changes nothing."""

    usable: Collection[int] | None = None
    """The rounds that `load_latest` may choose from; None for all."""

    def __init__(self, directory: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep: {keep} checkpoints would leave nothing to resume from; give at least 1")
        self.directory = directory
        self.keep = keep

    def rounds(self) -> list[int]:
        """Return the rounds with a committed checkpoint, ascending."""
        return sorted(self._committed())

    def save(self, done: int, sections: Mapping[str, State], among: Collection[int] | None = None) -> Path:
        """Commit the checkpoint after `done` rounds, replacing one of the same number, and return its folder.

        Sections (one per owner) are fetched and written one at a time. After the commit, rounds older than the newest
        `keep` are removed (if `among` is given, only of those in it); later rounds stay. Raises CheckpointWriteError if
        the disk is full, TypeError for a value unfit for a State, ValueError for a section that cannot name a file;
        each leaves all as it was.
        """
        return self._commit(done, lambda partial: _write_checkpoint(partial, done, sections), among)

    def adopt(self, other: "CheckpointStore", done: int, among: Collection[int] | None = None) -> None:
        """Commit a copy of another folder's checkpoint of the same run, as `save` does; nothing if it is here already.

        Raises as `save`, and CorruptCheckpoint for one that is not as it was saved.
        """
        source = other._committed()[done]
        if done not in self.rounds() or self.digest(done) != other.digest(done):
            self._commit(done, lambda partial: _copy_checkpoint(source, partial, done), among)

    def _commit(self, done: int, write: Callable[[Path], None], among: Collection[int] | None) -> Path:
        assert done >= 0, done
        final = self.directory / f"round_{done:06d}"
        partial = self.directory / f"{_PARTIAL}{final.name}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._clear_leftovers()
            write(partial)
            # A folder cannot take the place of another in one step. Killed between the two, the old version counts.
            if final.exists():
                final.rename(self.directory / f"{_REPLACED}{final.name}")
            partial.rename(final)
        except BaseException as error:
            with suppress(OSError):  # the next save tries again
                self._clear_leftovers()
            if isinstance(error, OSError) and error.errno in _NO_SPACE:
                raise CheckpointWriteError(
                    f"the checkpoint after round {done} could not be saved in {self.directory}: {error.strerror}; "
                    f"still saved: rounds {self.rounds()}; free space, then continue with --resume"
                ) from error
            raise
        sync_directory(self.directory)
        sync_directory(self.directory.parent)  # where the store's own name may be new
        self._clear_leftovers()
        # Older ones go only now that the new checkpoint is on the disk.
        older = [earlier for earlier in self.rounds() if earlier <= done and (among is None or earlier in among)]
        for old_round in older[: -self.keep]:
            self._remove(self._committed()[old_round])
        return final

    def load(self, done: int) -> dict[str, State]:
        """Return the sections of a committed round; tensors are contiguous, on the CPU and independent of the files.

        Every file is verified first: raises CorruptCheckpoint, and ValueError for a round without a checkpoint.
        """
        folder = self._committed().get(done)
        if folder is None:
            raise ValueError(
                f"no checkpoint after round {done} in {self.directory}, but after {self.rounds()}; restore its folder"
            )
        files = _read_manifest(folder, done)
        # All files before any is read: what is read can be trusted to be what was written.
        for name, fingerprint in files.items():
            try:
                _verify(folder / name, fingerprint)
            except (OSError, ValueError) as error:
                raise CorruptCheckpoint(str(error)) from error
        return {
            name.removesuffix(".json"): _read_section(folder, name.removesuffix(".json"))
            for name in files
            if name.endswith(".json")
        }

    def digest(self, done: int) -> str:
        """Return the sha256 of a committed round's manifest, which contains the digests of all its files."""
        return hashlib.sha256((self._committed()[done] / _MANIFEST).read_bytes()).hexdigest()

    def load_latest(self) -> tuple[int, dict[str, State]] | None:
        """Return round and sections of the newest checkpoint that verifies; None if there is no checkpoint at all.

        Warns of corrupt ones and names the one used instead; raises CorruptCheckpoint if no other is left.
        """
        damages: list[str] = []
        for done in reversed(self.rounds()):
            if self.usable is not None and done not in self.usable:
                continue
            try:
                sections = self.load(done)
            except CorruptCheckpoint as damage:
                damages.append(f"round {done} is corrupt ({damage})")
                continue
            if damages:
                warnings.warn(f"{'; '.join(damages)}: using round {done} instead", stacklevel=2)
            return done, sections
        if damages:
            raise CorruptCheckpoint(
                f"no usable checkpoint in {self.directory}: {'; '.join(damages)}; begin anew in another folder"
            )
        return None

    def _committed(self) -> dict[int, Path]:
        folders: dict[int, Path] = {}
        for prefix in (_REPLACED, ""):  # in this order: the final name wins
            for folder in self.directory.glob(f"{prefix}round_*"):
                match = _FOLDER.fullmatch(folder.name.removeprefix(prefix))
                # A final name always counts: without its manifest it is damaged, and `load` reports it.
                if match and (prefix == "" or (folder / _MANIFEST).is_file()):
                    folders[int(match[1])] = folder
        return folders

    def _clear_leftovers(self) -> None:
        """Clean up after a killed, failed or completed save: drop partial folders, settle replaced ones."""
        for partial in self.directory.glob(f"{_PARTIAL}*"):
            shutil.rmtree(partial, ignore_errors=True)
        for replaced in self.directory.glob(f"{_REPLACED}*"):
            final = self.directory / replaced.name.removeprefix(_REPLACED)
            if final.exists():
                self._remove(replaced)
            else:
                replaced.rename(final)

    def _remove(self, folder: Path) -> None:
        garbage = self.directory / f"{_PARTIAL}{folder.name}"
        folder.rename(garbage)
        sync_directory(self.directory)  # or a power loss could bring the name back without all of its files
        shutil.rmtree(garbage, ignore_errors=True)


class ReadOnlyStore(CheckpointStore):
    """The same checkpoints, for a process that reads what another one writes."""

    def save(self, done: int, sections: Mapping[str, State], among: Collection[int] | None = None) -> Path:
        """Do nothing: the other process writes."""
        return self.directory


def _write_checkpoint(folder: Path, done: int, sections: Mapping[str, State]) -> None:
    """Write the whole checkpoint durably into the new `folder`, the manifest last."""
    folder.mkdir()
    files: dict[str, Fingerprint] = {}
    # Not `.items()`: a section may be made when it is asked for, and need not be held once it is written.
    for name in sections:
        files |= _write_section(folder, name, sections[name])
    manifest = {"format": _FORMAT, "round": done, "files": {k: v._asdict() for k, v in files.items()}}
    write_durably(folder / _MANIFEST, [json.dumps(manifest, indent=1).encode()])
    sync_directory(folder)


def _copy_checkpoint(source: Path, folder: Path, done: int) -> None:
    """Copy a committed checkpoint durably into the new `folder`, the manifest last."""
    folder.mkdir()
    for name, fingerprint in _read_manifest(source, done).items():
        if write_durably(folder / name, [(source / name).read_bytes()]) != fingerprint:
            raise CorruptCheckpoint(f"{source / name}: content does not match its sha256")
    write_durably(folder / _MANIFEST, [(source / _MANIFEST).read_bytes()])
    sync_directory(folder)


def _write_section(folder: Path, name: str, state: State) -> dict[str, Fingerprint]:
    if not _SECTION.fullmatch(name):
        raise ValueError(f"section {name!r} cannot name a file: use letters, digits and _.-, and not 'manifest'")
    from vfl.runs.tensor_file import write_tensors

    tree_file, tensor_file = f"{name}.json", f"{name}.safetensors"
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_pack(state, name, tensors)).encode()
    return {
        tree_file: write_durably(folder / tree_file, [tree]),
        tensor_file: write_tensors(folder / tensor_file, tensors),
    }


def _read_manifest(folder: Path, done: int) -> dict[str, Fingerprint]:
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        if (manifest["format"], manifest["round"]) != (_FORMAT, done):
            raise ValueError(f"expected format {_FORMAT}, after round {done}")
        return {name: Fingerprint(**entry) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(f"{path}: not a valid manifest: {error}") from error


def _verify(path: Path, expected: Fingerprint) -> None:
    """Raise ValueError, naming file and damage, unless the file has this content; OSError if it cannot be read."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected.size:
            raise ValueError(f"{path}: {size} bytes instead of {expected.size}")
        if hashlib.file_digest(file, "sha256").hexdigest() != expected.sha256:
            raise ValueError(f"{path}: content does not match its sha256")


def _read_section(folder: Path, name: str) -> State:
    from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType] - a bare PathLike in its stub

    # The library maps the file: a clone stays valid whatever happens to it.
    tensors = {key: tensor.clone() for key, tensor in load_file(folder / f"{name}.safetensors").items()}
    return _unpack((folder / f"{name}.json").read_bytes(), tensors)


def _pack(value: Any, path: str, tensors: "dict[str, Tensor]") -> Any:
    """Return the JSON tree of `value` and put its tensors into `tensors` under their paths.

    Raises TypeError, naming the path, for a value that would not come back equal.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    from torch import Tensor

    if isinstance(value, Tensor):
        tensors[path] = value
        return {_TENSOR: path}
    if isinstance(value, list):  # no tuple, which JSON would give back as a list
        items = cast("list[Any]", value)
        return [_pack(item, f"{path}/{index}", tensors) for index, item in enumerate(items)]
    if isinstance(value, dict):
        return {
            _pack_key(key, path): _pack(item, f"{path}/{key.replace('~', '~0').replace('/', '~1')}", tensors)
            for key, item in cast("dict[Any, Any]", value).items()
        }
    kind = type(value).__name__
    raise TypeError(f"{path}: a checkpoint holds dicts, lists, tensors and JSON scalars, not {kind}: convert it")


def _pack_key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{path}: key {key!r} is a {type(key).__name__}: a checkpoint's keys are strings")
    return f"${key}" if key.startswith("$") else key


def _unpack(text: bytes, tensors: "Mapping[str, Tensor]") -> Any:
    """Return the value of a JSON tree; the inverse of `_pack`."""

    whole: list[Any] = [json.loads(text)]
    trees: list[dict[str, Any] | list[Any]] = [whole]
    for tree in trees:  # it grows meanwhile: a call for each of hundreds of small trees took longer than the reading
        inside: list[tuple[Any, Any]] = [*enumerate(tree)] if isinstance(tree, list) else [*tree.items()]
        for place, value in inside:
            kind = cast(Any, type(value))
            if kind is dict and _TENSOR in value:
                cast(Any, tree)[place] = tensors[value[_TENSOR]]
            elif kind is dict and b'"$$' in text:
                renamed = {key.removeprefix("$"): each for key, each in value.items()}
                cast(Any, tree)[place] = renamed
                trees.append(renamed)
            elif kind is dict or kind is list:
                trees.append(value)
    return whole[0]
