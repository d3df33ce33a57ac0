"""lvfl train --resume: what goes on, bit for bit, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_training import QUICK, Train, content_of, damage, rows_of, summary_of, timeless

from vfl.config import load_config
from vfl.data.sources.pooled import PooledSource
from vfl.runs.checkpoint import CheckpointStore


def test_resuming_a_finished_run_changes_nothing(train: Train, copied: Path):
    before = content_of(copied)
    ended = train("--run-dir", copied, "--resume")
    assert (ended.code, ended.err) == (0, "")
    assert "resumed after 4 of 4 rounds" in ended.out
    assert "test accuracy" in ended.out
    assert content_of(copied) == before


def test_a_run_is_resumed_from_its_own_saved_configuration(train: Train, copied: Path):
    shutil.rmtree(copied / "checkpoints/round_000004")
    assert train("--run-dir", copied, "--resume", config=copied / "config.yaml").code == 0
    assert CheckpointStore(copied / "checkpoints").rounds() == [3, 4]


@pytest.mark.filterwarnings("default")
def test_a_corrupt_newest_checkpoint_falls_back_and_says_so(train: Train, finished: Path, copied: Path):
    damage(copied / "checkpoints/round_000004")
    (copied / "summary.json").unlink()
    ended = train("--run-dir", copied, "--resume")
    assert (ended.code, ended.err) == (0, "")
    said = next(line for line in ended.out.splitlines() if line.startswith("warning: "))
    assert "round 4 is corrupt" in said
    assert "server.safetensors: content does not match its sha256" in said
    assert said.endswith("using round 3 instead")
    assert "resumed after 3 of 4 rounds" in ended.out
    assert timeless(summary_of(copied)) == timeless(summary_of(finished))
    assert timeless(rows_of(copied)) == timeless(rows_of(finished))


@pytest.mark.parametrize("rounds", [(4,), (3, 4)])
def test_rounds_that_are_lost_are_trained_again_to_the_same_bits(train: Train, finished: Path, copied: Path, rounds):
    for number in rounds:  # (3, 4): no checkpoint at all
        shutil.rmtree(copied / f"checkpoints/round_{number:06d}")
    assert train("--run-dir", copied, "--resume").code == 0
    assert timeless(summary_of(copied)) == timeless(summary_of(finished))
    assert timeless(rows_of(copied)) == timeless(rows_of(finished))


def test_all_checkpoints_corrupt_ends_with_every_damage_named(train: Train, copied: Path):
    for number in (3, 4):
        damage(copied / f"checkpoints/round_{number:06d}")
    before = content_of(copied)
    error = train("--run-dir", copied, "--resume").error
    assert error.startswith(f"no usable checkpoint in {copied / 'checkpoints'}: round 4 is corrupt")
    assert "round 3 is corrupt" in error
    assert content_of(copied) == before


def test_a_run_folder_in_use_is_not_written_without_resume(train: Train, copied: Path):
    before = content_of(copied)
    assert train("--run-dir", copied).error == (f"--run-dir: {copied} holds a run; add --resume or name another folder")
    assert content_of(copied) == before


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_checkpoints_whose_configuration_is_gone_are_not_gone_on_with(train: Train, copied: Path, resume: list[str]):
    (copied / "config.yaml").unlink()
    before = content_of(copied)
    error = train("--run-dir", copied, *resume, "training.optimizer.learning_rate=0.3").error
    assert error.startswith(f"--run-dir: {copied / 'checkpoints'} belong to a run whose {copied / 'config.yaml'} is")
    assert content_of(copied) == before


def test_a_resume_with_another_configuration_names_what_changed(train: Train, copied: Path):
    before = content_of(copied)
    error = train("--run-dir", copied, "--resume", "training.rounds=9", "lightweighting.beta=0.7").error
    assert "changed: lightweighting.beta (0.5 -> 0.7); use" in error
    assert error.startswith("--resume: the configuration has changed")
    assert error.endswith(f"use the saved {copied / 'config.yaml'}")
    assert content_of(copied) == before


@pytest.mark.release
def test_a_run_goes_on_from_its_folder_alone_and_for_longer(train: Train, copied: Path, tmp_path: Path):
    longer = ["training.rounds=6", "evaluation.every=2", "checkpoint.every=5", "training.patience=50"]
    ended = train("--resume", *longer, config=copied)
    assert ended.code == 0
    assert "resumed after 4 of 6 rounds" in ended.out
    assert load_config(copied / "config.yaml").training.rounds == summary_of(copied)["rounds"] == 6
    assert train("training.rounds=6", "--run-dir", tmp_path / "whole").code == 0
    assert summary_of(copied)["model_digest"] == summary_of(tmp_path / "whole")["model_digest"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "--run-dir: {run} holds a run; add --resume or name another folder"),
        (["--resume", "training.rounds=2"], "training.rounds: 2 are fewer than the 4 that are done"),
    ],
)
def test_a_folder_alone_that_cannot_go_on_is_one_line(train: Train, copied: Path, options: list[str], line: str):
    before = summary_of(copied)
    assert train(*options, config=copied).error == line.format(run=copied)
    assert summary_of(copied) == before


def test_a_resume_with_other_data_is_refused(train: Train, copied: Path, monkeypatch: pytest.MonkeyPatch):
    before = content_of(copied)
    load = PooledSource.load

    def load_others(*arguments: Any, **options: Any) -> Any:
        data = load(*arguments, **options)
        data.train.features[5, 0, 3, 3] ^= 1
        return data

    monkeypatch.setattr(PooledSource, "load", load_others)
    assert train("--run-dir", copied, "--resume").error == (
        "--resume: party_1's features are not those of the saved run; restore the data or start a new run"
    )
    assert content_of(copied) == before


def test_a_run_that_begins_elsewhere_meanwhile_keeps_its_configuration(train: Train, tmp_path: Path, monkeypatch):
    run_dir = tmp_path / "run"
    load = PooledSource.load

    def load_slowly(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(PooledSource, "load", load)
        assert train(*QUICK, "--run-dir", run_dir, "seed=8").code == 0
        return load(*arguments, **options)

    monkeypatch.setattr(PooledSource, "load", load_slowly)
    ended = train(*QUICK, "--run-dir", run_dir, "seed=9")
    assert ended.error == f"--run-dir: another run has just begun in {run_dir}; name another folder"
    assert load_config(run_dir / "config.yaml").seed == 8
    assert train(*QUICK, "--run-dir", run_dir, "seed=8", "--resume").code == 0
