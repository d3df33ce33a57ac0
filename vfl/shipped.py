"""The experiments that are installed with the program (``configs/``), found by name."""

from importlib.resources import files
from pathlib import Path

from vfl.config.fields import ConfigError, nearest


def shipped_folder() -> Path:
    """Return the folder of the shipped configurations."""
    return Path(str(files("vfl.shipped_configs").joinpath("quickstart.yaml"))).parent


def find_config(given: str) -> Path:
    """Return the YAML file that a user means: a path, or the name of a shipped one, as quickstart.

    Raises ConfigError, naming the nearest, for a name that is neither.
    """
    path = Path(given)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    folder = shipped_folder()
    names = [str(file.relative_to(folder).with_suffix("")) for file in sorted(folder.rglob("*.yaml"))]
    if given not in names:
        raise ConfigError(f"{given}: neither a file nor a shipped experiment{nearest(given, names)}")
    return folder / f"{given}.yaml"
