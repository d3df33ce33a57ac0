"""Settings that are no more: one line refuses them, or says that they are ignored."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple, cast

from vfl.base.errors import ConfigError, ConfigWarning
from vfl.config.devices import ALL


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


MOVED = {
    "privacy.gradient_strength": ("privacy.gradients", "strength", ("max_norm", "gaussian"), 1.0),
    "privacy.gradient_clip": ("privacy.gradients", "clip", ("gaussian",), 1.0),
    "privacy.embedding_strength": ("privacy.embeddings", "strength", ("gaussian", "distance_correlation"), 1.0),
    "privacy.embedding_clip": ("privacy.embeddings", "clip", ("gaussian",), 10.0),
    "training.optimizer.rounds": ("training.optimizer.schedule", "rounds", ("cosine", "one_cycle"), None),
}
"""Settings that became part of a choice: the choice, their name there, the kinds that have them, the former default."""


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings without those that are ignored now, and warn of each that had another value.

    Settings that moved are where they are now. Raises ConfigError for a setting that is refused. A null says nothing
    and is left out.
    """
    kept = deepcopy(dict(values))
    for each in REMOVED:
        at, name = _find(kept, each.key)
        if at is None or name not in at or each.value not in (None, at[name]):
            continue
        given = at.pop(name)
        if given is not None and each.always is None:
            went = f"{each.value} was removed" if each.value else "removed"
            raise ConfigError(f"{each.key}: {went}; {each.instead}")
        if given is not None and given != (each.always if each.default is None else each.default):
            ignored = f"{each.key}: ignored, it is always {each.always}; {each.instead}"
            warnings.warn(ConfigWarning(ignored), stacklevel=3)
    _move(kept)
    return kept


def _move(kept: dict[str, Any]) -> None:
    """Put settings of earlier versions where they are now, in place."""
    for key, (choice, inner, kinds, default) in MOVED.items():
        at, name = _find(kept, key)
        if at is None or (given := at.pop(name, None)) is None:
            continue
        choice_name = choice.rpartition(".")[2]
        chosen: Any = at.get(choice_name)
        chosen = cast(dict[str, Any], chosen) if isinstance(chosen, dict) else {"kind": chosen}
        if (kind := chosen.get("kind")) in kinds:
            at[choice_name] = {inner: given} | chosen
        elif given != default:  # a run's folder has the default also where it says nothing
            warnings.warn(
                ConfigWarning(f"{key}: ignored, as {choice} is {kind or 'null'}; remove the key"), stacklevel=4
            )
    for section, name in (("wire", "compressor"), ("lightweighting", "controller")):
        at, _ = _find(kept, f"{section}.options")
        if at is not None and (options := at.pop("options", None)) and isinstance(at.get(name), str):
            at[name] = {"kind": at[name]} | options
    at, name = _find(kept, "training.loss.kind")
    if at is not None and at.get(name) is None and not any(at.values()):
        kept["training"] = {key: value for key, value in kept["training"].items() if key != "loss"}
    at, name = _find(kept, "data.augmentation.from")
    if at is not None and (first := at.pop(name, None)) and at.get("shift"):
        at["shift"] = {first: at["shift"]}
    at, name = _find(kept, "simulation.device")
    if at is not None and isinstance(at.get(name), dict) and (device := at.pop(name)):
        # A run's folder has it also where it says nothing.
        at["parties"] = ({ALL: device} if any(device.values()) else {}) | (at.get("parties") or {})


def _find(values: dict[str, Any], key: str) -> tuple[dict[str, Any] | None, str]:
    """Return the mapping that a dotted key's section is, None if there is none, and the key's last part."""
    at: Any = values
    *sections, name = key.split(".")
    for section in sections:
        at = cast(dict[str, Any], at).get(section) if isinstance(at, dict) else None
    return cast(dict[str, Any], at) if isinstance(at, dict) else None, name
