"""Feature models that an owner brings as code: ``kind: "my_models.py:Net"`` or ``kind: "package.module:Net"``.

Such code runs only if a configuration of this user names it: a YAML file that a command is called with, or the settings
of a Python program. A peer sends no kind. The ``config.yaml`` of a run's folder names kinds, but the folder may be
somebody else's. So each configuration of the user notes its models in a file of the user's own, and nothing else is
imported: a run that was trained here can be used here, and a run from elsewhere runs no code.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from vfl.base.errors import ConfigError, nearest_name, with_type

MOST_NOTES = 10_000
"""Lines that the user's file keeps, the latest ones."""

_noted: set[str] = set()
"""Models that this process has noted: it may use them even if the user's file cannot be written."""


def check_own(kind: str) -> str:
    """Return the kind. Raises ValueError unless it is FILE.py:CLASS or package.module:CLASS; imports nothing."""
    place, _, name = kind.rpartition(":")
    if not name.isidentifier():
        raise ValueError(f"{kind!r} names no class; write it as my_models.py:Net or package.module:Net")
    if not place.endswith(".py") and not all(part.isidentifier() for part in place.split(".")):
        raise ValueError(f"{place!r} is neither a file of Python (my_models.py:Net) nor a module (package.module:Net)")
    return kind


def beside(folder: Path, kind: str) -> str:
    """Return a kind with its file's path relative to a folder; other kinds stay as they are."""
    place, _, name = kind.rpartition(":")
    return f"{folder / place}:{name}" if place.endswith(".py") else kind


def note_own(kind: str, options: Mapping[str, Any]) -> None:
    """Note a model that a configuration of this user names, with its options, for this process and later ones.

    Warns if the user's file cannot be written: commands that read a run's folder will then refuse the model.
    """
    digest = _digest(kind, options)
    if digest in _noted:
        return
    _noted.add(digest)
    path = _notes()
    try:
        lines = _read(path)
        if digest not in lines:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Rewritten only to shorten it: to append a line is safe beside other processes.
            mode = "w" if len(lines) >= MOST_NOTES else "a"
            kept = lines[-MOST_NOTES // 2 :] if mode == "w" else []
            with path.open(mode, encoding="utf-8") as file:
                file.write("".join(f"{each}\n" for each in [*kept, digest]))
    except OSError as error:
        warnings.warn(
            f"{path}: cannot be written ({error.strerror}); later commands will not run {kind} for a run's folder; "
            "set XDG_STATE_HOME to a folder that can be written",
            stacklevel=2,
        )


def check_noted(kind: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for a model that no configuration of this user has named."""
    digest = _digest(kind, options)
    if digest not in _noted and digest not in _read(_notes()):
        raise ConfigError(
            f"feature model {kind!r}: this run's folder names code that no configuration of yours has named with these "
            "options; if you trust the code, name it in a YAML file of your own and call lvfl plan with that file first"
        )


def load_own(kind: str, options: Mapping[str, Any]) -> Any:
    """Import and return what a kind names. Raises ConfigError, one line, for whatever prevents that."""
    check_noted(kind, options)
    place, _, name = kind.rpartition(":")
    try:
        module = _import_file(Path(place).absolute()) if place.endswith(".py") else importlib.import_module(place)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the owner's code: whatever it raises
        raise ConfigError(f"feature model {kind!r}: cannot be imported ({with_type(error)})") from error
    if not hasattr(module, name):
        names = [each for each, value in vars(module).items() if isinstance(value, type) and each[0] != "_"]
        raise ConfigError(f"feature model {kind!r}: {place} has no {name!r}{nearest_name(name, names)}")
    return getattr(module, name)


def _import_file(path: Path) -> ModuleType:
    """Import a file once per process. Modules beside it can be imported, too, after all installed ones."""
    name = f"{path.stem}@{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"models.feature.kind: {path} is no file; a path is relative to the YAML file that names it")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _digest(kind: str, options: Mapping[str, Any]) -> str:
    text = json.dumps([beside(Path().absolute(), kind), options], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _notes() -> Path:
    """Return the user's file: a digest of each noted model, with its options, in a line."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path("~/.local/state").expanduser()) / "lvfl" / "own_models"


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []
