"""Kinds of files and folders: the wrong command names the right one."""

from pathlib import Path

from vfl.base.errors import ConfigError
from vfl.config.shipped import find_config

TABLES = (".csv", ".tsv", ".csv.gz", ".parquet", ".feather", ".jsonl", ".xlsx")
SWEEP = "sweep.json"
"""File by which a sweep's folder is known."""


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
