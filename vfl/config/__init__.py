"""The typed experiment, read from YAML plus ``key=value`` overrides.

A user's mistake becomes one line of ``ConfigError`` that names the field and the fix.
"""

from vfl.config.experiment import ExperimentConfig, FeatureModelConfig
from vfl.config.fields import ConfigError
from vfl.config.files import changed_keys, dump_config, load_config, parse_config
from vfl.config.network import NetworkConfig
from vfl.config.optimizer import OptimizerConfig

__all__ = [
    "ConfigError",
    "ExperimentConfig",
    "FeatureModelConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "changed_keys",
    "dump_config",
    "load_config",
    "parse_config",
]
