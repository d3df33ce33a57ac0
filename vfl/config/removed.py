"""Settings that are no more: one line refuses them, or says that they are ignored."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple, cast

from vfl.base.errors import ConfigError, ConfigWarning


class Removed(NamedTuple):
    """A setting, or one of its values, that is no more."""

    key: str
    """Dotted name; a section stands for all of its settings."""
    instead: str = "remove the key"
    """Advice on how to go on."""
    value: str | None = None
    """The value that went; None if the setting itself did."""
    always: object = None
    """What holds for all now; the setting is ignored, with a warning if it differs. None: the setting is refused."""
    default: object = None
    """The value that ``always`` describes, where a run's folder may have it; None: ``always`` itself."""


REMOVED = (
    Removed("training.sample_pruning"),
    Removed("network.consent.sample_pruning"),
    Removed("lightweighting.controller", "deadline keeps seconds, alpha and beta save bytes and compute", "budget"),
    Removed("lightweighting.budget", "remove the section"),
    Removed("wire.compressor", "magnitude takes its place", "random_top_k"),
    Removed("wire.random_share"),
    Removed("wire.rounding", "dithered takes its place, with half the squared error", "stochastic"),
    Removed("evaluation.statistics_samples", always=256),
    Removed("evaluation.batch_statistics", always="estimated"),
    Removed("lightweighting.alpha_weight", always=1.0),
    Removed("training.optimizer.betas", always=[0.9, 0.999]),
    Removed("parties_at_once", always=1),
    Removed("network.reply_limit_s", always=3600.0),
    Removed("serving.gather_ms", always=2.0),
    Removed("serving.batch", always=256),
    Removed("serving.queue", always=4096),
)


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings without those that are ignored now, and warn of each that had another value.

    Raises ConfigError for one that is refused. A null says nothing and is left out.
    """
    kept = deepcopy(dict(values))
    for each in REMOVED:
        *sections, name = each.key.split(".")
        at: Any = kept
        for section in sections:
            at = cast(dict[str, Any], at).get(section) if isinstance(at, dict) else None
        if not isinstance(at, dict) or name not in at:
            continue
        given = cast(dict[str, Any], at)[name]
        if each.value is not None and given != each.value:
            continue
        if given is not None and each.always is None:
            went = f"{each.value} was removed" if each.value else "removed"
            raise ConfigError(f"{each.key}: {went} in 0.2.0; {each.instead}")
        if given is not None and given != (each.always if each.default is None else each.default):
            ignored = f"{each.key}: ignored, it is always {each.always}; {each.instead}"
            warnings.warn(ConfigWarning(ignored), stacklevel=3)
        del at[name]
    return kept
