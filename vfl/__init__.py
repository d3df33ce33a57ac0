"""Vertical federated learning with split-model pruning and embedding sparsification.

From Python: ``train``, ``report``, ``Run``, ``Callback`` and ``ConfigError``, imported when used (docs/python.md).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vfl.api import Callback, ConfigError, Run, report, train

__all__ = ["Callback", "ConfigError", "Run", "report", "train"]


def __getattr__(name: str) -> Any:
    """Import what is public with its first use: commands that only explain themselves do without PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module 'vfl' has no attribute {name!r}")
    from vfl import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
