"""The TensorBoard page: what it opens on, hyperparameters, the configuration, the widths of pruned layers."""

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from parties.mode import VERTICAL
from parties.widths import ShowWidths, draw_widths
from vfl.checkpoint import CheckpointStore
from vfl.horizontal.mode import HORIZONTAL
from vfl.loop import TrainingLoop
from vfl.tensorboard import TensorBoard, layout


def events_of(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "tensors": 0})
    events.Reload()
    return events


@pytest.fixture
def trained(build, tmp_path: Path) -> Path:
    """Events of a vertical run in which one party is pruned in round 1 and all in round 2, with a resume between."""
    alpha = {"party_1": {1: 0.2, 2: 0.5}} | {f"party_{number}": {2: 0.5} for number in (2, 3, 4)}
    sections = {"training": {"steps_per_round": 1, "batch_size": 8}, "lightweighting": {"alpha": alpha}}
    sections |= {"models": {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 4}}}
    for rounds in (2, 4):
        server = build(**sections)
        tensorboard = TensorBoard(
            tmp_path,
            "name: small\n",
            {"lightweighting.beta": 0.1, "labels": "shared", "odd": (1,)},
            VERTICAL.front_page,
        )
        store = CheckpointStore(tmp_path / "checkpoints")
        TrainingLoop(server, rounds, [tensorboard, ShowWidths(server, tensorboard)], checkpoints=store).run()
    return tmp_path


def test_every_pruning_leaves_a_picture_once(trained: Path):
    events = events_of(trained)
    steps = {tag: [image.step for image in events.Images(tag)] for tag in events.Tags()["images"]}
    assert steps == {"widths/party_1": [1, 2]} | {f"widths/party_{number}": [2] for number in (2, 3, 4)}


def test_all_events_of_a_session_are_in_one_file(trained: Path):
    assert len(list(trained.glob("events.*"))) == 2


def test_the_page_has_the_configuration_and_the_hyperparameters(trained: Path):
    events = events_of(trained)
    (text,) = {event.tensor_proto.string_val[0] for event in events.Tensors("config/text_summary")}
    assert text == b"```yaml\nname: small\n```"
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams  # pyright: ignore[reportAttributeAccessIssue]  # generated without a stub
    assert hparams["lightweighting.beta"].number_value == 0.1
    assert hparams["labels"].string_value == "shared"
    assert hparams["odd"].string_value == "(1,)"
    content = events.summary_metadata["_hparams_/experiment"].plugin_data.content
    columns = plugin_data_pb2.HParamsPluginData.FromString(content).experiment.metric_infos  # pyright: ignore[reportAttributeAccessIssue]  # generated without a stub
    shown = {column.name.tag for column in columns}
    assert {"accuracy/test", "savings/compute", "savings/communication"} <= shown <= set(events.Tags()["scalars"])


def test_the_page_opens_on_the_savings(trained: Path):
    (event,) = events_of(trained).Tensors("custom_scalars__config__")[:1]
    categories = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0]).category  # pyright: ignore[reportAttributeAccessIssue]  # generated without a stub
    first = min(categories, key=lambda category: category.title)
    assert [chart.title for chart in first.chart] == [
        *("test accuracy", "compute saved", "communication saved"),
        *("compute saved, by party", "communication saved, by party"),
    ]


def test_every_quantity_has_one_chart(trained: Path):
    metrics = dict.fromkeys(events_of(trained).Tags()["scalars"], 0.0)
    charts = [
        tag
        for category in layout(metrics, VERTICAL.front_page).values()
        for chart in category.values()
        for tag in chart[1]
    ]
    import re

    for tag in metrics:
        assert sum(re.search(str(pattern), tag) is not None for pattern in charts) == 1, tag


def test_a_horizontal_run_has_no_empty_charts():
    sections: dict[str, Any] = layout({"accuracy/test": 0.5, "loss/train": 1.0}, HORIZONTAL.front_page)
    assert [list(charts) for charts in sections.values()] == [["test accuracy"], ["loss"]]


def test_the_picture_grows_with_the_layers():
    small = draw_widths("t", {"a": 3}, {"a": 4})
    large = draw_widths("t", {f"l{n}": 3 for n in range(10)}, {f"l{n}": 4 for n in range(10)})
    assert small.shape[2] == 4
    assert large.shape[0] > small.shape[0]
    assert len({tuple(pixel) for pixel in small.reshape(-1, 4)}) > 10
