"""Vertical federated learning with split-model pruning and embedding sparsification.

Public names are imported at their first use (docs/python.md); `__init__.pyi` tells editors their types.
"""

from importlib import import_module
from typing import Any

PUBLIC = {
    **dict.fromkeys(("Callback", "ConfigError", "report", "train"), "vfl.api.train"),
    "Run": "vfl.runs.stored_run",
    # Named, not imported: the parties are above this package.
    **dict.fromkeys(("VerticalClassifier", "VerticalRegressor"), "vfl.api.estimators"),
    **dict.fromkeys(("Party", "fit"), "vfl.api.fit"),
    "compare": "vfl.comparison.compare",
    "prune": "vfl.predict.prune_run",
}
"""The module of each public name."""

__all__ = sorted(PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]  # they are in __init__.pyi


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: commands that only print their help need no PyTorch."""
    if name not in PUBLIC:
        raise AttributeError(f"module 'vfl' has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(PUBLIC)
