"""The settings of a pruning without training; they are read before PyTorch is imported."""

from collections.abc import Mapping

from vfl.config import ConfigError, ExperimentConfig
from vfl.config.files import lay_over, parse_config
from vfl.runs.stored_run import Run

SETTINGS = "alpha", "pruning"
"""Settings of the section lightweighting that a pruning takes."""


def pruned_config(run: Run, settings: Mapping[str, object]) -> ExperimentConfig:
    """Return a run's configuration with the new ratios, which are fixed ones. Raises ConfigError, naming the key."""
    for key in settings:
        if key.split(".")[0] not in SETTINGS:
            raise ConfigError(f"{key}: is no setting of a pruning; name alpha, or pruning.refit, importance, round_to")
    if "alpha" not in settings:
        raise ConfigError("alpha: is missing; name the share of the filters to remove, as alpha=0.4")
    given = {"pruning.refit": True, **settings, "controller": "fixed"}
    ratios = {f"lightweighting.{key}": value for key, value in given.items()}
    return parse_config(lay_over(run.vertical.model_dump(), ratios))
