"""lvfl distill: the label owner's own model, taught by the joint model's scores."""

import csv
import hashlib
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from shorthand import release

from parties.alone import of_one, only, train_on
from parties.distill import distill, mixed, over_seeds, train_distilled, training_scores
from parties.predict import predict_in_process
from parties.trained_run import load_finished, load_trained
from scripts.distill import main
from vfl.config import ConfigError, parse_config
from vfl.data.source import prepare_samples
from vfl.data.tables.source import Tables
from vfl.export import run_onnx
from vfl.runs.experiments.run import run_experiment
from vfl.runs.run_folder import read_summary
from vfl.vertical.tasks import Classification, Regression

QUIET = Console(quiet=True)


def write_planted(folder: Path, task: str) -> dict[str, Any]:
    """Write few rows whose label is noise around what both owners' columns say; the laboratory's repeat the truth.

    The clinic sees the truth's cause under six columns of noise: scores near the truth teach it more than labels do.
    """
    draw = np.random.default_rng(0)
    rows = 1500
    x = draw.normal(size=(rows, 8))
    truth = 3 * np.tanh(2 * x[:, 0]) * x[:, 1]
    noisy = truth + draw.normal(size=rows) * 3
    label = noisy if task == "regression" else np.where(noisy > 0, "yes", "no")
    owners = {"clinic": x, "laboratory": np.stack([truth, draw.normal(size=rows)], 1)}
    tables: dict[str, Any] = {}
    for owner, values in owners.items():
        own = owner == "clinic"
        with (folder / f"{owner}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["key", *(f"c{place}" for place in range(values.shape[1])), *(["sick"] if own else [])])
            writer.writerows([f"k{row:04}", *each, *([label[row]] if own else [])] for row, each in enumerate(values))
        tables[owner] = {"file": str(folder / f"{owner}.csv"), "key": "key"} | ({"label": "sick"} if own else {})
    return {
        "task": task,
        "threads": 1,
        "data": {"dataset": {"kind": "tables"}, "tables": tables, "test_share": 0.5},
        "models": {"feature": {"kind": "mlp", "width": 0.25, "embedding_size": 8}, "head": {"hidden": [8]}},
        "training": {
            "rounds": 12,
            "batch_size": 50,
            "labels": "server",
            "optimizer": {"kind": "adam", "learning_rate": 0.005},
        },
    }


def train(folder: Path, sections: dict[str, Any]) -> Path:
    run_experiment(parse_config({"name": "planted", **sections}), folder / "run", resume=False, console=QUIET)
    return folder / "run"


@pytest.fixture(scope="module", params=["classification", release("regression")])
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a joint run on the planted tables."""
    folder = tmp_path_factory.mktemp(request.param)
    return train(folder, write_planted(folder, request.param))


def test_a_teacher_less_noisy_than_the_labels_teaches_more_than_they(planted: Path, tmp_path: Path):
    found = train_distilled(load_trained(planted), tmp_path, QUIET, seeds=3)
    assert found.leader == "clinic"
    assert found.gain is not None
    assert found.gain.low > 0
    assert found.headline().startswith("clinic alone, by the joint model's scores, gains 0.")
    pairs = zip(found.distilled, found.alone, strict=True)
    sign = -1 if found.metric == "rmse" else 1
    assert found.gain.value == pytest.approx(np.mean([sign * (first - second) for first, second in pairs]))
    saved = read_summary(tmp_path / "distilled-0")["distillation"]
    assert saved["gain"]["low"] == found.gain.low
    assert read_summary(tmp_path / "alone-2")["parties"].keys() == {"clinic"}


@pytest.mark.parametrize("labels", ["server", "shared"])
def test_with_weight_0_it_is_the_label_owner_alone_to_the_bit(planted: Path, tmp_path: Path, labels: str):
    trained = load_trained(planted)
    config, split, source = trained.server.config, trained.split, cast(Tables, trained.source)
    training = config.training.model_copy(update={"rounds": 2, "labels": labels})
    student = only(config.model_copy(update={"training": training}), source, "clinic")
    own, scores = of_one(split.parties[0], split), training_scores(trained)
    digests: list[str] = []
    for name, weight in (("alone", None), ("none", 0.0), ("some", 0.01)):
        task, train = trained.server.joint.trainer.task, split.labels.train.values
        targets = None if weight is None else mixed(task, train, scores, weight)
        train_on(student, tmp_path / name, own, source, QUIET, targets)
        digests.append(read_summary(tmp_path / name)["model_digest"])
    assert digests[0] == digests[1] != digests[2]


def test_scores_of_training_rows_are_those_of_a_prediction(planted: Path):
    """The same rows, given as new ones, have the same scores up to the last bits."""
    trained = load_trained(planted)
    tables = {name: Path(str(table.file)) for name, table in trained.server.config.data.tables.items()}
    predicted = predict_in_process(planted, None, (), "refuse", tables)
    place = {identity: row for row, identity in enumerate(predicted.ids_N.tolist())}
    rows = [place[identity] for identity in trained.split.labels.train.ids.tolist()]
    torch.testing.assert_close(training_scores(trained), predicted.probabilities_NC[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("weights", [None, (0.5, 1.0, 4.0)])
@pytest.mark.parametrize("members", [None, 3])
def test_mixed_targets_are_the_weighted_sum_of_both_losses(weights: tuple[float, ...] | None, members: int | None):
    torch.manual_seed(0)
    task, labels = Classification(3, weights), torch.randint(3, (20,))
    outputs, scores = torch.randn(20, *([members] if members else []), 3), torch.randn(20, 3).softmax(1)
    own = torch.ones(3) if weights is None else torch.tensor(weights)
    members_of = outputs if members else outputs[:, None]
    by_hand = -(own * scores)[:, None] * members_of.log_softmax(2)
    hard = torch.tensor([F.cross_entropy(each, labels, own, reduction="sum") for each in members_of.unbind(1)]).mean()
    targets = mixed(task, labels, scores, 0.3)
    total = task.total_weight(targets)
    assert total == pytest.approx(float((0.7 * own[labels] + 0.3 * scores @ own).sum()), rel=1e-5)
    expected = (0.7 * float(hard) + 0.3 * float(by_hand.sum(2).mean(1).sum())) / total
    assert float(task.loss(outputs, targets)) == pytest.approx(expected, rel=1e-5)
    assert mixed(Regression(0, 1), torch.tensor([1.0]), torch.tensor([[3.0]]), 0.25).tolist() == [1.5]


def test_the_interval_is_students():
    found = over_seeds([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.3 - 2.776445 * 0.0707107, 0.3 + 2.776445 * 0.0707107), 1e-5)
    assert over_seeds([0.1]) is None


def bytes_of(folder: Path) -> dict[str, str]:
    return {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")
def test_the_command_exports_what_pytorch_computes_and_leaves_the_run_as_it_was(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    before, out = bytes_of(planted), tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["distill", str(planted), "--out", str(out), "--seeds", "1"])
    assert main() == 0
    assert "one seed decides nothing" in capsys.readouterr().out
    assert bytes_of(planted) == before
    assert sorted(each.name for each in out.iterdir()) == ["alone-0", "distilled-0", "export"]
    rows = {"clinic": Path(str(load_trained(planted).server.config.data.tables["clinic"].file))}
    predicted = predict_in_process(out / "distilled-0", None, (), "refuse", rows).probabilities_NC
    finished = load_finished(out / "distilled-0")
    (party,), raw = finished.parties, finished.source.read_tables(rows)
    inputs = prepare_samples(party.preparation, raw.parts[0]).inputs
    export = out / "export"
    scores = run_onnx(export / "head.onnx", run_onnx(export / "clinic.onnx", *inputs))
    torch.testing.assert_close(finished.server.trainer.task.predictions(scores), predicted, atol=1e-4, rtol=1e-4)
    assert (export / "clinic.preparation.json").exists()
    with pytest.raises(ConfigError, match=r"--out: .*out exists already; name another folder"):
        distill(planted, out, QUIET)


def test_other_runs_are_refused_in_one_line(tmp_path: Path):
    small = {"data": {"train_samples": 16, "test_samples": 16}, "models": {"feature": {"kind": "mlp", "width": 0.1}}}
    images = train(tmp_path, {"threads": 1, "training": {"rounds": 1, "batch_size": 16}, **small})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("name: other\nmode: horizontal\n")
    for run, line in (
        (images, "holds no run on tables of two or more owners; name one$"),
        (tmp_path / "other", "mode is horizontal; only a vertical run has a split model$"),
        (tmp_path, "holds no run; name a folder of lvfl train$"),
    ):
        with pytest.raises(ConfigError, match=line):
            distill(run, tmp_path / "out", QUIET)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other", "run"]


def test_one_owner_and_missing_tables_are_one_line_each_and_leave_nothing(tmp_path: Path):
    sections = write_planted(tmp_path, "classification")
    sections["training"]["rounds"] = 1
    run = train(tmp_path, sections)
    (tmp_path / "laboratory.csv").unlink()
    with pytest.raises(ValueError, match=r"laboratory\.csv: cannot be read"):
        distill(run, tmp_path / "out", QUIET)
    del sections["data"]["tables"]["laboratory"]
    (tmp_path / "one").mkdir()
    with pytest.raises(ConfigError, match="one/run: holds no run on tables of two or more owners; name one"):
        distill(train(tmp_path / "one", sections), tmp_path / "out", QUIET)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["clinic.csv", "one", "run"]
