"""Settings, values and commands of earlier releases that are no more. An error names their replacement in one line."""

from collections.abc import Mapping
from typing import NamedTuple, cast


class Removed(NamedTuple):
    """A setting, or one of its values, that is no more."""

    key: str
    """Dotted name; a section stands for all of its settings."""
    instead: str
    """Advice on how to go on."""
    value: str | None = None
    """The value that went; None if the setting itself did."""


REMOVED = (
    Removed("training.sample_pruning", "remove the key"),
    Removed("network.consent.sample_pruning", "remove the key"),
    Removed("lightweighting.controller", "deadline keeps seconds, alpha and beta save bytes and compute", "budget"),
    Removed("lightweighting.budget", "remove the section"),
    Removed("wire.compressor", "magnitude takes its place", "random_top_k"),
    Removed("wire.random_share", "remove the key"),
    Removed("wire.rounding", "dithered takes its place, with half the squared error", "stochastic"),
)


def refuse_removed(values: object) -> None:
    """Raise ValueError if nested settings name a removed one."""
    for key, instead, value in REMOVED:
        at = values
        for name in key.split("."):
            at = cast(Mapping[str, object], at).get(name) if isinstance(at, Mapping) else None
        if at is not None and value in (None, at):
            raise ValueError(f"{key}: {f'{value} was ' if value else ''}removed in 0.2.0; {instead}")
