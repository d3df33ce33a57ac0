"""Configurations that are installed with the program (``configs/``), found by name; and what other paths are."""

from importlib.resources import files
from pathlib import Path

from vfl.base.errors import ConfigError, closest, did_you_mean, nearest_name


def shipped_folder() -> Path:
    """Return the folder of the shipped configurations."""
    return Path(str(files("vfl.shipped_configs")))


def find_config(given: Path, folder: Path = Path()) -> Path:
    """Return the YAML file of a path relative to ``folder``, a run's folder, or a shipped experiment's name.

    Raises ConfigError, naming the nearest, for an unknown name.
    """
    path = folder / given
    try:
        return _found(path, str(given))
    except OSError as error:  # such as a name that is too long
        raise ConfigError(f"{given}: cannot be read ({error.strerror})") from None


def _found(path: Path, given: str) -> Path:
    if path.is_file():
        return path
    if (path / "config.yaml").is_file():
        return path / "config.yaml"
    if path.suffix in (".yaml", ".yml"):
        # Shipped files name each other this way: a file beside the given one comes first.
        inner = shipped_folder() / given
        if not Path(given).is_absolute() and inner.is_file():
            return inner
        if path.exists():
            return path
        beside = {each.stem: str(each) for each in sorted(path.parent.glob("*.y*ml"))}
        near = beside.get(closest(path.stem, [*beside]) or "") or closest(given.removesuffix(path.suffix), _names())
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"{path}: cannot be read (No such file or directory){hint}")
    names = _names()
    if given in names:
        return shipped_folder() / f"{given}.yaml"
    if not path.exists():
        raise ConfigError(f"{path}: no file, no run and no shipped experiment{nearest_name(given, [*names, *_runs()])}")
    return path


def check_resumed(path: Path) -> None:
    """Raise ConfigError, naming only the nearest, for what is neither a file, a run nor a shipped experiment."""
    given, names = str(path), _names()
    if path.exists() or path.suffix in (".yaml", ".yml") or given in names:
        return
    near = did_you_mean(given, [*_runs(), *names])
    raise ConfigError(f"--resume: {path} is no run and no experiment{near}; name a run's folder")


def _runs() -> list[str]:
    """Return the folders of runs where they are written."""
    return [str(config.parent) for config in sorted(Path("runs").glob("*/config.yaml"))]


def shipped_summaries() -> dict[str, dict[str, str]]:
    """Return the first line of each shipped file by its name, by group."""
    groups: dict[str, dict[str, str]] = {}
    for name in sorted(_names(), key=lambda name: (name.startswith("sweep_"), "/" in name, name)):
        first, *_ = (shipped_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        folder = f"{name.rpartition('/')[0]} ".lstrip()
        group = "sweeps" if name.startswith("sweep_") else f"{folder}experiments"
        groups.setdefault(group, {})[name] = first.removeprefix("# ")
    return groups


def _names() -> list[str]:
    """Return the names of the shipped experiments and sweeps."""
    shipped = shipped_folder()
    return [str(file.relative_to(shipped).with_suffix("")) for file in sorted(shipped.rglob("*.yaml"))]


TABLES = (".csv", ".tsv", ".csv.gz", ".parquet", ".feather", ".jsonl", ".xlsx")
SWEEP = "sweep.json"
"""File in a sweep's folder with its runs and their settings; the folder is known by it."""


def kind_of(path: Path) -> str:
    """Return what a path is, with the command that takes it, as the end of an error line; nothing if unknown."""
    if path.name.lower().endswith(TABLES):
        return "; it is a table, which lvfl describe takes"
    if (path / SWEEP).is_file():
        return "; it is a sweep's folder, which lvfl report takes; runs are folders in it"
    if (path / "config.yaml").is_file():
        return "; it is a run's folder, which lvfl predict, report and status take"
    try:
        settings = find_config(path).suffix in (".yaml", ".yml")
    except ConfigError:
        return ""
    return "; it holds settings, which lvfl train or lvfl sweep takes" if settings else ""
