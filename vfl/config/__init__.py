"""The typed experiment, read from YAML plus ``key=value`` overrides.

A user's mistake becomes one line of ``ConfigError`` that names the field and the fix.
"""

from vfl.base.errors import ConfigError
from vfl.config.experiment import ExperimentConfig, TrainingConfig
from vfl.config.files import (
    changed_keys,
    changed_keys_but_places,
    dotted_settings,
    dump_config,
    load_config,
    load_experiment,
    parse_config,
    parse_experiment,
    vertical,
)
from vfl.config.models import FeatureModelConfig
from vfl.config.network import NetworkConfig
from vfl.config.optimizer import OptimizerConfig
from vfl.config.shared import Experiment

__all__ = [
    "ConfigError",
    "Experiment",
    "ExperimentConfig",
    "FeatureModelConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "TrainingConfig",
    "changed_keys",
    "changed_keys_but_places",
    "dotted_settings",
    "dump_config",
    "load_config",
    "load_experiment",
    "parse_config",
    "parse_experiment",
    "vertical",
]
