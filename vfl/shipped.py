"""The experiments that are installed with the program (``configs/``), found by name."""

from importlib.resources import files
from pathlib import Path

from vfl.errors import ConfigError
from vfl.registry import nearest


def shipped_folder() -> Path:
    """Return the folder of the shipped configurations."""
    return Path(str(files("vfl.shipped_configs")))


def find_config(given: Path, folder: Path = Path()) -> Path:
    """Return the YAML file that is meant: a path from ``folder`` on, a run's folder, or a shipped one's name.

    Raises ConfigError, naming the nearest, for a name that is neither.
    """
    path = folder / given
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    if (path / "config.yaml").is_file():
        return path / "config.yaml"
    shipped = shipped_folder()
    names = [str(file.relative_to(shipped).with_suffix("")) for file in sorted(shipped.rglob("*.yaml"))]
    if str(given) in names:
        return shipped / f"{given}.yaml"
    if not path.exists():
        raise ConfigError(f"{path}: neither a file nor a shipped experiment{nearest(str(given), names)}")
    return path
