"""TensorBoard's page HParams: a row per run, and few columns.

Written as TensorBoard's own messages, as PyTorch's ``add_hparams`` leaves out a run's name.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportMissingTypeStubs=false, reportUnknownParameterType=false
# The messages are generated without stubs.

from collections.abc import Collection, Mapping
from statistics import mean
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import DataType, Experiment, HParamInfo, MetricInfo, MetricName
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

from vfl.config import ExperimentConfig, dotted_settings
from vfl.config.schedules import PartySchedule, named_parties, schedule_of, value_at
from vfl.config.shared import Experiment as AnyExperiment

SHORT = {"alpha": "lightweighting.alpha", "beta": "lightweighting.beta"}
"""Columns of a run that no sweep made, and the settings that have these names where a sweep varies them."""
NARROW = {"communication saved": "bytes saved"}
"""Shorter titles of metrics: of the fifth column 1280 pixels show a hundred."""
SEED = "seed"


def hparams_of(config: AnyExperiment) -> dict[str, object]:
    """Return all settings by dotted key and, as ``alpha`` and ``beta``, the last round's: a mean over the parties."""
    return dotted_settings(config) | {name: _last_ratio(config, name) for name in SHORT}


def _last_ratio(config: AnyExperiment, name: str) -> float | str:
    if not isinstance(config, ExperimentConfig):
        return 0.0
    if config.lightweighting.measures:
        return f"by {config.lightweighting.controller.kind}"
    ratio: PartySchedule = getattr(config.lightweighting, name)
    owners = config.parties if named_parties(ratio) else ("",)
    return mean(value_at(schedule_of(ratio, owner), config.training.rounds - 1) for owner in owners)


def hparams_summaries(
    name: str, settings: Mapping[str, object], varied: Collection[str], metrics: Mapping[str, str]
) -> list[Summary]:
    """Return the summaries that make a run a row of the page: settings by dotted key, then metrics, titles by tag.

    Columns are the settings that a sweep ``varied``, else the last alpha and beta, and no others: TensorBoard shows
    settings before metrics, and 1280 pixels have room for two and for a metric with both savings. A seed that varies
    stands before the run's name. The page Text has all settings.
    """
    titles = {key: title for title, key in SHORT.items()}
    chosen = [key for key in varied if key != SEED] or SHORT
    columns = {titles.get(key, key): settings.get(key, "") for key in chosen}
    infos = [HParamInfo(name=key, type=_type_of(value), differs=True) for key, value in columns.items()]
    titled = {tag: NARROW.get(title, title) for tag, title in metrics.items()}
    shown = [MetricInfo(name=MetricName(tag=tag), display_name=title) for tag, title in titled.items()]
    start = SessionStartInfo(group_name=f"seed {settings.get(SEED)}: {name}" if SEED in varied else name)
    for key, value in columns.items():
        setattr(start.hparams[key], _FIELDS[_type_of(value)], value if isinstance(value, int | float) else str(value))
    return [
        _summary(metadata.EXPERIMENT_TAG, experiment=Experiment(hparam_infos=infos, metric_infos=shown)),
        _summary(metadata.SESSION_START_INFO_TAG, session_start_info=start),
    ]


_FIELDS = {
    DataType.DATA_TYPE_BOOL: "bool_value",
    DataType.DATA_TYPE_FLOAT64: "number_value",
    DataType.DATA_TYPE_STRING: "string_value",
}


def _type_of(value: object) -> int:
    if isinstance(value, bool):
        return DataType.DATA_TYPE_BOOL
    return DataType.DATA_TYPE_FLOAT64 if isinstance(value, int | float) else DataType.DATA_TYPE_STRING


def _summary(tag: str, **content: Any) -> Summary:
    data = HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **content).SerializeToString()
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=data)
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])
