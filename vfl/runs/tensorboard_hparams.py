"""TensorBoard's page HParams: a row per run, the same few columns first for every run.

Written as TensorBoard's own messages, for what PyTorch's ``add_hparams`` leaves out: a run's name, and which columns
come first.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportMissingTypeStubs=false, reportUnknownParameterType=false
# The messages are generated without stubs.

from collections.abc import Iterable, Mapping
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import DataType, Experiment, HParamInfo, MetricInfo, MetricName
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

SHORT = {"alpha": "lightweighting.alpha", "beta": "lightweighting.beta", "seed": "seed"}
"""The first columns of every run, and their settings."""
COMMON = ("data.dataset.kind", "mode")
"""Next columns if no sweep varies anything else; TensorBoard opens on five columns."""
LEFT_OUT = ("name", "network", "checkpoint", "data.file", "data.labels_file")
"""Settings, or sections, that do not influence what is learned."""


def hparams_summaries(
    name: str, settings: Mapping[str, object], varied: Iterable[str], metrics: Mapping[str, str]
) -> list[Summary]:
    """Return the summaries that make a run a row of the page: settings by dotted key, then metrics, titles by tag.

    The keys ``varied`` come first, after alpha, beta and seed.
    """
    columns = {title: settings.get(key, "") for title, key in SHORT.items()}
    columns |= {key: value for key, value in settings.items() if key not in SHORT.values() and not _left_out(key)}
    first = {*SHORT, *(set(varied) - {*SHORT.values()} or COMMON)}
    # TensorBoard sorts by "differs", then by name.
    infos = [HParamInfo(name=key, type=_type_of(value), differs=key in first) for key, value in columns.items()]
    shown = [MetricInfo(name=MetricName(tag=tag), display_name=title) for tag, title in metrics.items()]
    start = SessionStartInfo(group_name=name)
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


def _left_out(key: str) -> bool:
    return any(key == left_out or key.startswith(f"{left_out}.") for left_out in LEFT_OUT)


def _summary(tag: str, **content: Any) -> Summary:
    data = HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **content).SerializeToString()
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=data)
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])
