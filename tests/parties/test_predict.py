"""Predictions of a trained run: those of its evaluation, of a file, and without a party."""

import csv
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from predicted import predict_in_process
from refusals import refused, refuses
from rich.console import Console
from shorthand import load_dataset

from vfl.base.errors import PeerLost, WhenAbsent
from vfl.config import parse_config
from vfl.predict.open_run import take_samples
from vfl.predict.trained_run import load_run_with_data
from vfl.runs.checkpoint import CheckpointStore, CorruptCheckpoint
from vfl.runs.run import run_experiment
from vfl.runs.stored_run import Run

SCRIPTS = Path(__file__).parents[2] / "scripts"
CLASSES = 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three pruned rounds."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    config = parse_config(
        {
            "name": "small",
            "seed": 3,
            "threads": 1,
            "data": {"train_samples": 48, "test_samples": 40},
            "models": {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8}, "head": {"hidden": [16]}},
            "training": {"rounds": 3, "batch_size": 16, "optimizer": {"learning_rate": 0.05}},
            "lightweighting": {"alpha": {1: 0.4}, "beta": 0.5},
        }
    )
    run_experiment(config, run_dir, resume=False, console=Console(quiet=True))
    return run_dir


def test_the_test_set_is_predicted_as_it_was_evaluated(trained: Path):
    rebuilt = load_run_with_data(Run(trained))
    joint = rebuilt.server.joint
    probabilities_NC = joint.predictions()
    assert probabilities_NC.shape == (40, CLASSES)
    torch.testing.assert_close(probabilities_NC.sum(dim=1), torch.ones(40))
    assert joint.task.metrics(probabilities_NC, joint.samples.values) == Run(trained).summary["test_metrics"]
    assert rebuilt.parties[0].pruner.alpha_max == 0.4


def test_a_file_of_the_test_images_gives_the_same_predictions(trained: Path, tmp_path: Path):
    rebuilt = load_run_with_data(Run(trained))
    expected_NC = rebuilt.server.joint.predictions()
    whole = load_dataset("digits", None, train_samples=48, test_samples=40, seed=3).test
    order = torch.arange(39, -1, -2)
    np.savez(tmp_path / "some.npz", images=whole.features[order].numpy())
    samples = rebuilt.source.read_samples(tmp_path / "some.npz", rebuilt.split.parties[0].train, CLASSES)
    assert samples.whole.labels is None
    torch.testing.assert_close(take_samples(rebuilt, samples).predictions(), expected_NC[order])


def test_what_stands_for_an_absent_party_is_what_was_chosen(trained: Path):
    rebuilt = load_run_with_data(Run(trained))
    joint, parties = rebuilt.server.joint, rebuilt.parties
    embeddings = joint.embeddings(0, 40)
    with torch.inference_mode():
        train_ND = parties[1].evaluated.finished_copy()(parties[1].train.features)
    choices: list[tuple[WhenAbsent, torch.Tensor]] = [
        ("placeholder", torch.zeros(8)),
        ("zeros", torch.zeros(8)),
        ("mean", train_ND.mean(dim=0)),
    ]
    for choice, value_D in choices:
        expected_NC = joint.outputs(embeddings | {"party_2": value_D.expand(40, 8)}).softmax(dim=1)
        told = pytest.warns(UserWarning, match="no placeholder was learned, so zeros replace party_2; training.party_d")
        with told if choice == "placeholder" else nullcontext():
            predicted = predict_in_process(Run(trained), None, ["party_2"], choice)
        torch.testing.assert_close(predicted.probabilities_NC, expected_NC)
        assert list(predicted.scores) == [f"accuracy without party_2 ({choice})", "with all parties"]
    with pytest.raises(PeerLost, match="party_2 is absent"):
        predict_in_process(Run(trained), None, ["party_2"], "refuse")
    refuses("--absent", lambda: predict_in_process(Run(trained), None, ["party2"], "zeros"), "'party_2'")
    with refused("--absent", "left"):
        predict_in_process(Run(trained), None, [f"party_{number}" for number in range(1, 5)], "zeros")


def test_an_absent_party_is_not_asked(trained: Path, monkeypatch: pytest.MonkeyPatch):
    joint = load_run_with_data(Run(trained)).server.joint
    asked: list[str] = []
    for link in (party.link for party in joint.parties):
        assert link is not None
        monkeypatch.setattr(
            link, "send", lambda *order, name=link.name, send=link.send: (asked.append(name), send(*order))[1]
        )
    joint.without(["party_3"]).predictions()
    assert set(asked) == {"party_1", "party_2", "party_4"}


def test_the_last_checkpoint_is_taken_or_nothing(trained: Path, tmp_path: Path):
    copied = _copy(trained, tmp_path)
    newest = max((copied / "checkpoints").iterdir())
    damaged = newest / "party_1.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert len(CheckpointStore(copied / "checkpoints").rounds()) >= 1
    with pytest.raises(CorruptCheckpoint, match=r"party_1\.safetensors"):
        load_run_with_data(Run(copied))


def test_the_table_has_a_line_per_sample_and_the_accuracy_is_said(call, trained: Path, tmp_path: Path):
    out = tmp_path / "predictions.csv"
    code, said, _ = call("predict", trained, "--out", out)
    assert code == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = sum(row["label"] == row["prediction"] for row in rows) / len(rows)
    assert len(rows) == 40
    assert f"accuracy {right:.2%}" in said
    assert all(row["probability"] == row[f"p_{row['prediction']}"] for row in rows)
    options = ("--absent", "party_1", "--when-absent", "mean", "--insecure")
    code, said, warned = call("predict", trained, "--out", out, *options)
    assert code == 0
    assert warned == "warning: --insecure: ignored; it goes with --listen\n"
    assert "accuracy without party_1 (mean)" in said
    assert f"with all parties {right:.2%}" in said


def test_refusing_has_a_code_of_its_own_and_writes_nothing(call, trained: Path, tmp_path: Path):
    out = tmp_path / "predictions.csv"
    code, _, err = call("predict", trained, "--out", out, "--absent", "party_1")
    assert code == 3
    assert err.startswith("error: party_1 is absent")
    assert len(err.splitlines()) == 1
    assert not out.exists()
    for where in ("--processes", f"--out={out}"):
        code, _, err = call("predict", trained, where, "--table", "party_9=x.csv")
        assert (code, err[:39]) == (2, "error: --table: unknown party 'party_9'")


@pytest.mark.parametrize("script", ["predict", "export"])
def test_what_cannot_be_used_is_one_line(call, script: str, trained: Path, tmp_path: Path):
    damaged = _copy(trained, tmp_path)
    (max((damaged / "checkpoints").iterdir()) / "manifest.json").write_text("{")
    bare = _copy(trained, tmp_path / "bare")
    shutil.rmtree(bare / "checkpoints")
    cases = {tmp_path: "holds no run", damaged: "not a valid manifest", bare: "has no checkpoint"}
    for folder, expected in cases.items():
        code, _, err = call(script, folder)
        assert code == 2
        assert expected in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"pictures": np.zeros((2, 1, 32, 32), np.uint8)}, "got no images"),
        ({"images": np.zeros((2, 1, 16, 16), np.uint8)}, "[N, 1, 32, 32]"),
        ({"images": np.zeros((2, 1, 32, 32), np.float32)}, "got torch.float32"),
        ({"images": np.zeros((0, 1, 32, 32), np.uint8)}, "holds no image"),
        ({"images": np.zeros((2, 1, 32, 32), np.uint8), "labels": np.array([0, 10])}, "labels must be 0 to 9"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(call, arrays, expected: str, trained: Path, tmp_path: Path):
    np.savez(tmp_path / "file.npz", **arrays)
    code, _, err = call("predict", trained, "--data", tmp_path / "file.npz", "--out", tmp_path / "p.csv")
    assert code == 2
    assert expected in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "p.csv").exists()


def _copy(run_dir: Path, to: Path) -> Path:
    return shutil.copytree(run_dir, to / "copied")
