"""A run stands alone: new rows and exports need neither its place nor its training data."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from predicted import predict_in_process
from refusals import refused, refuses
from rich.console import Console

import vfl
from vfl.config import parse_config
from vfl.config.prediction import PREDICTION, prediction_text
from vfl.predict.export_run import export_run
from vfl.predict.predict import owned_tables
from vfl.predict.trained_run import load_run_with_data, open_federation
from vfl.runs import stored_run
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run import run_experiment
from vfl.runs.run_folder import check_run
from vfl.runs.stored_run import Run

ROWS = 150


def write_tables(folder: Path, columns: dict[str, list[str]]) -> None:
    """A table for each owner, of a category and numbers with gaps; the first knows the label."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=(ROWS, 8))
    for place, (owner, names) in enumerate(columns.items()):
        with (folder / f"{owner}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["key", *names, *(["label"] if place == 0 else [])])
            for row in range(ROWS):
                cells = [
                    f"v{row % 3}",
                    *(f"{each:.4f}" for each in values[row, place * 3 : place * 3 + len(names) - 1]),
                ]
                cells[-1] = "" if row % 7 == 0 else cells[-1]
                label = ["yes" if values[row, 0] + values[row, 3] > 0 else "no"] if place == 0 else []
                writer.writerow([f"k{row:03}", *cells, *label])


def train(folder: Path, columns: dict[str, list[str]], **data: object) -> Path:
    """Train with paths relative to ``folder``, and types that are proposed from the files; return the run."""
    folder.mkdir(exist_ok=True)
    write_tables(folder, columns)
    tables = {owner: {"file": f"{owner}.csv", "key": "key"} for owner in columns}
    tables[next(iter(columns))]["label"] = "label"
    config = parse_config(
        {
            "name": "alone",
            "threads": 1,
            "data": {"dataset": {"kind": "tables"}, "tables": tables, **data},
            "models": {"feature": {"embedding_size": 4, "width": 0.05}, "head": {"hidden": [8]}},
            "training": {"rounds": 2, "batch_size": 16},
            "lightweighting": {"alpha": 0.3},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_experiment(config, Path("run"), resume=False, console=Console(quiet=True))
        check_run(Path("run"), config, resume=True)
    return folder / "run"


APART = {"bank": ["job", "age"], "insurer": ["car", "claims", "years"]}
EQUAL = {"bank": ["x0", "x1", "x2"], "insurer": ["x0", "x1", "x2"]}
WITHIN = {"bank": ["x0", "x1"], "insurer": ["x0", "x1", "x2"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("alone"), APART)


@pytest.fixture
def new(run: Path, tmp_path: Path) -> dict[str, Path]:
    """The owners' rows again, elsewhere."""
    return {owner: Path(shutil.copy(run.parent / f"{owner}.csv", tmp_path / f"new_{owner}.csv")) for owner in APART}


@pytest.fixture
def moved(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run in another folder, from which it is called, without its training files."""
    copied = shutil.copytree(run, tmp_path / "moved")
    text = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(text.replace(str(run.parent), str(tmp_path / "gone")))
    monkeypatch.chdir(tmp_path)
    return copied


def test_new_rows_have_the_scores_that_the_whole_experiment_gives(run: Path, moved: Path, new: dict[str, Path]):
    expected = predict_in_process(Run(run), None, (), "refuse")
    found = predict_in_process(Run(moved), None, (), "refuse", new)
    scores = {tuple(key): row for key, row in zip(found.keys[1:], found.probabilities_NC, strict=True)}
    assert len(scores) == ROWS
    for key, row in zip(expected.keys[1:], expected.probabilities_NC, strict=True):
        torch.testing.assert_close(scores[tuple(key)], row)


def test_the_finished_models_are_those_of_the_whole_experiment(run: Path, moved: Path):
    whole, alone = load_run_with_data(Run(run)).server.summary(), open_federation(Run(moved), with_data=False).digests()
    assert alone["finished_model_digest"] == whole["finished_model_digest"]
    assert alone["model_digest"] == Run(run).summary["model_digest"]


def test_predictions_and_exports_read_no_experiment(run: Path, new: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    expected = predict_in_process(Run(run), None, (), "refuse", new).probabilities_NC
    monkeypatch.setattr(stored_run, "load_stored_config", lambda *_: pytest.fail("it was read"))
    assert torch.equal(predict_in_process(Run(run), None, (), "refuse", new).probabilities_NC, expected)
    assert len(predict_in_process(Run(run), None, (), "refuse").ids_N) == ROWS // 5
    assert open_federation(Run(run), with_data=False).parties


@pytest.mark.parametrize("kept", [None, "", "{}", '{"version": 2, "config": "", "settings": {}}', "[" * 100_000])
def test_a_run_without_settings_of_predictions_has_those_of_its_experiment(
    run: Path, new: dict[str, Path], tmp_path: Path, kept: str | None
):
    """As a run of an earlier version."""
    earlier = shutil.copytree(run, tmp_path / "earlier")
    (earlier / PREDICTION).unlink()
    if kept is not None:
        (earlier / PREDICTION).write_text(kept)
    found, expected = (predict_in_process(Run(each), None, (), "refuse", new) for each in (earlier, run))
    assert torch.equal(found.probabilities_NC, expected.probabilities_NC)


@pytest.mark.parametrize(("options", "kept"), [({"layers": {"1": 64}}, True), ({"layers": {1: 64}}, False)])
def test_settings_that_json_would_change_stay_in_the_experiment(run: Path, options: dict[str, object], kept: bool):
    own = Run(run).vertical
    feature = own.models.feature.model_copy(update={"options": options})
    config = own.model_copy(update={"models": own.models.model_copy(update={"feature": feature})})
    assert (prediction_text(config, "") is not None) == kept


def test_paths_are_whole_in_the_run(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    predicted = predict_in_process(Run(run), None, (), "refuse")
    assert len(predicted.ids_N) == ROWS // 5


@pytest.mark.release
def test_an_export_needs_no_data(moved: Path):
    pytest.importorskip("onnxruntime")
    card = export_run(moved, moved / "export")
    assert card["classes"] == ["no", "yes"]
    assert card["checked_samples"] == 32
    assert "car" in (moved / "export" / "insurer.preparation.json").read_text()


def test_what_needs_the_training_rows_names_the_file(moved: Path, new: dict[str, Path]):
    for tables in (None, {"bank": new["bank"]}):
        with refused("bank.csv", "gone/bank.csv"):
            predict_in_process(Run(moved), None, (), "mean", tables)


def test_a_run_of_a_version_that_kept_too_little_is_refused(moved: Path, new: dict[str, Path]):
    store = CheckpointStore(moved / "checkpoints")
    sections = store.load(2)
    del sections["bank"]["raw"]
    shutil.rmtree(moved / "checkpoints")
    CheckpointStore(moved / "checkpoints").save(2, sections)
    refuses("moved", lambda: predict_in_process(Run(moved), None, (), "refuse", new), "0.2.0")


def test_python_predicts_files_and_frames_in_the_order_of_the_label_owners_rows(moved: Path, new: dict[str, Path]):
    run = vfl.Run(moved)
    expected_NC = run.predict(new)
    assert expected_NC.shape == (ROWS, 2)
    rows = list(csv.reader(new["bank"].read_text().splitlines()))
    columns = {name: list(cells) for name, *cells in zip(rows[0], *rows[:0:-1], strict=True)}
    found_NC = run.predict({"insurer": str(new["insurer"]), "bank": columns})
    np.testing.assert_array_equal(found_NC, expected_NC[::-1])


@pytest.mark.parametrize(
    ("samples", "line"),
    [
        ({"bnk": {}}, ("samples", "'bnk'", "'bank'")),
        ({}, ("samples", "there")),
        ("new.csv", ("samples", "new.csv", "'new.csv'")),
        ({"bank": 3}, ("samples", "table")),
        ({"bank": {"key": ["a"]}}, ("", "insurer")),
        ({"bank": {"key": ["a"]}, "insurer": {"key": ["a"]}}, ("samples", "'job'")),
    ],
)
def test_errors_in_python_are_about_what_python_gave(moved: Path, samples: object, line: tuple[str, ...]):
    with refused(*line) as told:
        vfl.Run(moved).predict(samples)  # pyright: ignore[reportArgumentType] - some are no samples
    assert "::" not in str(told.value)
    assert "--" not in str(told.value)


def joined(folder: Path) -> Path:
    """One table with the columns of all owners."""
    bank, insurer = ((folder / f"{owner}.csv").read_text().splitlines() for owner in APART)
    rows = [f"{left},{right.partition(',')[2]}" for left, right in zip(bank, insurer, strict=True)]
    (folder / "joined.csv").write_text("\n".join(rows))
    return folder / "joined.csv"


def test_a_table_without_an_owner_is_taken_where_it_can_be_only_one_owners_or_all(run: Path):
    folder = run.parent
    for owner in APART:
        assert owned_tables(Run(run), [str(folder / f"{owner}.csv")]) == {owner: folder / f"{owner}.csv"}
    whole = joined(folder)
    assert owned_tables(Run(run), [str(whole)]) == dict.fromkeys(APART, whole)
    refuses("--table", lambda: owned_tables(Run(run), ["bnk=x.csv"]), "'bnk'", "'bank'")
    (folder / "neither.csv").write_text("key,job,claims\na,b,1\n")
    refuses("--table", lambda: owned_tables(Run(run), [str(folder / "neither.csv")]), "'s age; insurer'")


@pytest.mark.parametrize("columns", [EQUAL, WITHIN])
def test_columns_of_two_owners_ask_whose_table_it_is(tmp_path: Path, columns: dict[str, list[str]]):
    run = train(tmp_path / "equal", columns)
    for owner in columns:
        file = tmp_path / "equal" / f"{owner}.csv"
        with refused("--table", file):
            owned_tables(Run(run), [str(file)])
        assert owned_tables(Run(run), [f"{owner}={file}"]) == {owner: file}


@pytest.mark.filterwarnings("ignore:data.validation_share")
def test_after_validation_the_test_is_scored_and_the_summary_names_what_it_has(tmp_path: Path):
    plain = train(tmp_path / "plain", APART)
    run = train(tmp_path / "checked", APART, validation_share=0.25)
    summary = Run(run).summary
    assert not [key for key in summary if key.startswith("test_")]
    assert predict_in_process(Run(run), None, (), "refuse").scores == {
        "AUC": f"{summary['validation_metrics']['auc']:.4f}"
    }
    test, all_tests = (predict_in_process(Run(each), None, (), "refuse", split="test") for each in (run, plain))
    assert test.keys == all_tests.keys
    labels_N = test.labels_N
    assert labels_N is not None
    assert test.scores == {"AUC": f"{test.task.metrics(test.probabilities_NC, labels_N)['auc']:.4f}"}
    assert {"test_accuracy", "test_loss", "test_metrics"} <= Run(plain).summary.keys()
    refuses("--split", lambda: predict_in_process(Run(plain), None, (), "refuse", split="validation"), "validation")
