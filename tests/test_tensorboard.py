"""The TensorBoard page: what it opens on, hyperparameters, the configuration, the widths of pruned layers."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.summary.writer import event_file_writer

from vfl.config import parse_experiment
from vfl.core.pruning_pictures import ShowWidths, by_number, draw_widths
from vfl.core.server import HeadServer
from vfl.horizontal.mode import HORIZONTAL
from vfl.messages.control import Description
from vfl.predict.mode import VERTICAL
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.loop import TrainingLoop
from vfl.runs.tensorboard import TensorBoard, address, layout, opening, run_name
from vfl.runs.tensorboard_hparams import hparams_of, hparams_summaries


def events_of(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "tensors": 0})
    events.Reload()
    return events


@pytest.fixture(autouse=True, scope="module")
def undrawn():
    """Draw: the pictures are tested here."""


@pytest.fixture(scope="module")
def trained(build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events of a vertical run in which one party is pruned in round 1 and all in round 2, with a resume between."""
    folder = tmp_path_factory.mktemp("trained")
    alpha = {"party_1": {1: 0.2, 2: 0.5}} | {f"party_{number}": {2: 0.5} for number in (2, 3, 4)}
    sections = {"training": {"steps_per_round": 1, "batch_size": 8}, "lightweighting": {"alpha": alpha}}
    sections |= {"models": {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 4}}}
    with pytest.MonkeyPatch.context() as patch:
        # Files of one second are read in the order of this count as text, in which 10 comes before 9.
        patch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
        for rounds in (2, 4):
            train(build(**sections), folder, rounds)
    return folder


def train(server: HeadServer, folder: Path, rounds: int) -> None:
    settings = {"alpha": 0.2, "beta": 0.1, "seed": 3, "training.nesterov": False}
    tensorboard = TensorBoard(folder, "name: small\n", settings, front_page=VERTICAL.front_page)
    store = CheckpointStore(folder / "checkpoints")
    TrainingLoop(server, rounds, [tensorboard, ShowWidths(server, tensorboard)], checkpoints=store).run()


def test_every_pruning_leaves_one_picture_of_all_parties(trained: Path):
    events = events_of(trained)
    assert {tag: [image.step for image in events.Images(tag)] for tag in events.Tags()["images"]} == {"widths": [1, 2]}


def test_all_events_of_a_session_are_in_one_file(trained: Path):
    assert len(list(trained.glob("events.*"))) == 2


def test_the_page_has_the_configuration_and_the_hyperparameters(trained: Path):
    events = events_of(trained)
    (text,) = {event.tensor_proto.string_val[0] for event in events.Tensors("config/text_summary")}
    assert text == b"```yaml\nname: small\n```"
    last = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("result/text_summary")][-1]
    accuracy = events.Scalars("accuracy/test")[-1].value
    assert f"| accuracy/test | {accuracy:.6g} |" in last
    assert "| savings/compute |" in last


def summarised(settings: dict[str, object], varied: tuple[str, ...] = ()) -> tuple[Any, Any]:
    summaries = hparams_summaries("name", settings, varied, VERTICAL.front_page)
    contents = [each.value[0].metadata.plugin_data.content for each in summaries]
    experiment, start = map(plugin_data_pb2.HParamsPluginData.FromString, contents)  # pyright: ignore[reportAttributeAccessIssue]  # generated without a stub
    return experiment.experiment, start.session_start_info


def test_every_run_has_the_same_columns_with_a_value_in_each(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    ratios = {"alpha": {"party_1": {2: 0.5, 90: 0.6}}, "beta": {0: 0.1, 3: 0.3}}
    chosen = {"controller": "deadline", "seconds_per_exchange": 1.0}
    runs = ({"mode": "horizontal"}, {"lightweighting": ratios}, {"lightweighting": chosen})
    shown = [summarised(hparams_of(parse_experiment({"name": "x", "training": {"rounds": 9}, **run}))) for run in runs]
    columns = [[info.name for info in experiment.hparam_infos] for experiment, _start in shown]
    assert columns[0] == columns[1]
    for experiment, start in shown:
        assert {info.name for info in experiment.hparam_infos} == {*start.hparams} == {"alpha", "beta"}
    ended = [shown[1][1].hparams[name].number_value for name in ("alpha", "beta")]
    assert ended == pytest.approx([0.5 / 4, 0.3]), "the last round's, mean over the four parties"
    assert shown[2][1].hparams["alpha"].string_value == "by deadline"


def test_what_a_sweep_varies_are_the_columns():
    """With five or more, the metric would be out of sight."""
    settings = {"seed": 3, "training.batch_size": 8, "mode": "vertical"}
    experiment, start = summarised(settings, ("seed", "training.batch_size"))
    assert {info.name for info in experiment.hparam_infos} == {"training.batch_size"}
    assert start.group_name == "seed 3: name"  # its first dozen letters are shown


def test_a_sweep_of_ratios_shows_metric_and_both_savings_on_1280_pixels():
    """Beside the names there are 758 pixels of columns of 160; of the last at least a dozen letters are to be seen."""
    keys = ("lightweighting.alpha", "lightweighting.beta", "seed")
    summaries = hparams_summaries(
        "name", dict.fromkeys(keys, 0), keys, {tag: k for k, tag in VERTICAL.front_page.items()}
    )
    content = summaries[0].value[0].metadata.plugin_data.content
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content).experiment  # pyright: ignore[reportAttributeAccessIssue]  # generated without a stub
    columns = [each.name for each in experiment.hparam_infos] + [each.display_name for each in experiment.metric_infos]
    assert columns == ["alpha", "beta", "test accuracy", "compute saved", "bytes saved"]
    assert 160 * (len(columns) - 1) + 8 * len(columns[-1]) <= 758


def test_a_row_is_named_by_the_run_first_and_its_sweep_then(tmp_path: Path):
    (tmp_path / "ratios").mkdir()
    (tmp_path / "ratios" / "sweep.json").touch()
    assert run_name(tmp_path / "ratios" / "runs" / "beta0.4-seed1") == "beta0.4-seed1 (ratios)"
    assert run_name(tmp_path / "runs" / "quickstart") == "quickstart"


def test_every_party_has_curves_with_units_for_people_and_a_run_one_folder(trained: Path):
    """TensorBoard selects none of more than 40 folders, and so draws nothing."""
    whole = events_of(trained)
    assert {path.parent for path in trained.rglob("events.out.tfevents.*")} == {trained}
    for name in ("party_1", "party_4"):
        for title, tag, factor in (
            ("sent up in MB", "uplink_bytes", 1e6),
            ("model in MMAC per sample", "macs_per_sample", 1e6),
        ):
            shown = {event.step: event.value * factor for event in whole.Scalars(f"by party/{title}/{name}")}
            assert shown == pytest.approx({event.step: event.value for event in whole.Scalars(f"{tag}/{name}")})


def test_an_only_owner_and_runs_of_a_sweep_have_no_further_folders(tmp_path: Path):
    metrics = {f"savings_compute/{name}": 0.5 for name in ("a", "b")}
    for name, varied, told in (("sweep", ("seed",), metrics), ("only", (), {"savings_compute/a": 0.5})):
        board = TensorBoard(tmp_path / name, varied=varied)
        watched = cast(Any, SimpleNamespace(metric="accuracy"))
        board.on_round(watched, 0, told)
        assert board.writer is not None
        board.writer.close()
        assert not (tmp_path / name / "parties").exists()
    assert "by party/compute saved/a" in events_of(tmp_path / "only").Tags()["scalars"]


def test_the_page_opens_on_the_savings(trained: Path):
    (event,) = events_of(trained).Tensors("custom_scalars__config__")[:1]
    categories = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0]).category  # pyright: ignore[reportAttributeAccessIssue]  # generated without a stub
    first = min(categories, key=lambda category: category.title)
    assert [chart.title for chart in first.chart] == [
        *("test accuracy", "compute saved", "communication saved"),
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


def test_the_layouts_of_different_runs_have_equal_charts():
    horizontal = layout({"accuracy/test": 0.5, "loss/train": 1.0}, HORIZONTAL.front_page)
    vertical = layout({"accuracy/test": 0.5, "loss/train": 1.0, "savings/compute": 0.5}, VERTICAL.front_page)
    for title, charts in horizontal.items():
        assert charts.items() <= vertical[title].items()


def test_the_layers_of_the_picture_are_in_the_networks_order():
    layers = [f"features.{number}" for number in (0, 3, 7, 10, 40)]
    assert sorted(sorted(layers), key=by_number) == layers


def test_the_picture_grows_with_the_layers_and_the_parties():
    def picture(layers: int, parties: int) -> Any:
        built = {f"l{layer}": 4 for layer in range(layers)}
        party = Description.model_construct(widths=dict.fromkeys(built, 3), original_widths=built)
        return draw_widths("t", {f"p{number}": party for number in range(parties)})

    small, long, wide = picture(1, 1), picture(10, 1), picture(1, 3)
    assert small.shape[2] == 4
    assert long.shape[0] > small.shape[0]
    assert wide.shape[0] > small.shape[0]
    assert wide.shape[1] > small.shape[1]
    assert len({tuple(pixel) for pixel in small.reshape(-1, 4)}) > 10


def test_the_printed_address_pins_the_charts_on_which_the_page_opens():
    parts = urlsplit(address(opening(VERTICAL.front_page, "auc")))
    (cards,) = parse_qs(parts.query)["pinnedCards"]
    assert parts.fragment == "timeseries"
    assert [card["tag"] for card in json.loads(cards)] == ["auc/test", "savings/compute", "savings/communication"]
    assert not {*address(VERTICAL.front_page)} & {*"'\"\\ <>"}, "a terminal takes it for one link"
