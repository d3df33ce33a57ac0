"""The command line of training: what lies in the run folder, what is said, and how it ends."""

import io
import json
import runpy
import shutil
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vfl.amounts import amount
from vfl.checkpoint import CheckpointStore
from vfl.config import load_config
from vfl.data.sources import pooled
from vfl.digest import combined_digest, weights_digest
from vfl.tensorboard import how_to_watch

SCRIPT = Path(__file__).parents[2] / "scripts" / "train.py"
TINY = {
    "name": "tiny",
    "seed": 3,
    "threads": 1,
    "data": {"train_samples": 48, "test_samples": 40, "partition": {"rows": 1, "columns": 2}},
    "models": {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8}, "head": {"hidden": [16]}},
    "training": {"rounds": 4, "steps_per_round": 2, "batch_size": 16, "optimizer": {"learning_rate": 0.05}},
    "lightweighting": {"alpha": {1: 0.2, 3: 0.5}, "beta": 0.5},
    "checkpoint": {"every": 1},
}
PARTIES = ("party_1", "party_2")
TAGS_OF_PARTIES = (
    *("alpha", "beta", "macs_per_sample", "parameters", "uplink_bytes", "downlink_bytes", "train_time_s"),
    *("omega", "psi"),
)
TAGS = {"accuracy/test", "loss/train", "loss/test", "savings/compute", "savings/communication"} | {
    f"{tag}/{party}" for tag in TAGS_OF_PARTIES for party in PARTIES
}
QUICK = ("training.rounds=1", "training.steps_per_round=1", "data.partition.columns=1", "models.feature.kind=mlp")


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on stderr of a command that could not do what was asked."""
        assert self.code == 2, self
        assert self.err.startswith("error: "), self
        assert self.err.endswith("\n"), self
        assert len(self.err.splitlines()) == 1, self
        return self.err.removeprefix("error: ").rstrip("\n")


Train = Callable[..., Ended]


@pytest.fixture(scope="module")
def main() -> Callable[[], int]:
    return runpy.run_path(str(SCRIPT))["main"]


@pytest.fixture
def train(main, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Train]:
    """Run the command in an empty working folder, which ``tiny.yaml`` lies beside."""
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(TINY))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main puts its own in their place
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    handler = signal.getsignal(signal.SIGTERM)

    def run_main(*arguments: str | Path, config: Path = config) -> Ended:
        monkeypatch.setattr(sys, "argv", ["train.py", str(config), *map(str, arguments)])
        capsys.readouterr()
        code = main()
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    yield run_main
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def finished(main, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody may change."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        patch.setattr(threading, "excepthook", threading.excepthook)
        patch.setattr(sys, "argv", ["train.py", str(folder / "tiny.yaml"), "--run-dir", str(folder / "run")])
        assert main() == 0
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, handler)
    return folder / "run"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may damage."""
    return shutil.copytree(finished, tmp_path / "run")


def summary_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def timeless(values: Any) -> Any:
    """Values without the seconds."""
    if isinstance(values, list):
        return [timeless(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {
        key: timeless(value) for key, value in values.items() if not key.startswith(("train_time_s", "wall_time_s"))
    }


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damage(checkpoint: Path) -> None:
    path = checkpoint / "server.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


# the run folder


def test_the_run_folder_holds_what_the_contract_names(finished: Path):
    events = [path.name for path in finished.iterdir() if path.name.startswith("events.out.tfevents.")]
    assert len(events) == 1
    assert {path.name for path in finished.iterdir()} - set(events) == {
        *("config.yaml", "metrics.jsonl", "checkpoints", "summary.json", "parties")
    }
    parties = {path.parent.name for path in (finished / "parties").glob("*/events.out.tfevents.*")}
    assert parties == {"party_1", "party_2"}
    assert CheckpointStore(finished / "checkpoints").rounds() == [3, 4]


def test_config_yaml_is_the_whole_resolved_experiment(finished: Path):
    path = finished / "config.yaml"
    assert load_config(path) == load_config(finished.parent / "tiny.yaml")
    written = yaml.safe_load(path.read_text())
    assert written["training"]["labels"] == "shared"  # a default
    assert written["lightweighting"]["alpha"] == {1: 0.2, 3: 0.5}


def test_metrics_jsonl_has_a_row_per_round_with_the_contract_s_tags(finished: Path):
    rows = rows_of(finished)
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        assert row.keys() >= TAGS
        assert all(isinstance(value, int | float) for value in row.values())
    assert [row["alpha/party_2"] for row in rows] == [0.0, 0.2, 0.2, 0.5]


def test_tensorboard_has_the_contract_s_tags_at_every_round(finished: Path):
    events = EventAccumulator(str(finished))
    events.Reload()
    rows = rows_of(finished)
    assert set(events.Tags()["scalars"]) >= TAGS
    for tag in TAGS:
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == [0, 1, 2, 3]
        assert [scalar.value for scalar in scalars] == pytest.approx([row[tag] for row in rows], rel=1e-6)


def test_summary_json_has_all_keys_of_the_contract_and_adds_up(finished: Path):
    summary, rows = summary_of(finished), rows_of(finished)
    assert summary.keys() >= {
        *("rounds", "test_accuracy", "test_loss", "wall_time_s", "uplink_bytes", "downlink_bytes"),
        *("dense_uplink_bytes", "train_macs", "unpruned_train_macs", "model_digest", "parties"),
    }
    assert summary["parties"].keys() == set(PARTIES)
    for party in summary["parties"].values():
        assert party.keys() >= {
            *("alpha", "beta", "parameters", "macs_per_sample", "uplink_bytes", "downlink_bytes", "train_time_s")
        }
    assert (summary["rounds"], summary["test_accuracy"]) == (4, rows[-1]["accuracy/test"])
    assert summary["test_loss"] == rows[-1]["loss/test"]
    assert 0 < summary["uplink_bytes"] < summary["dense_uplink_bytes"]
    assert 0 < summary["train_macs"] < summary["unpruned_train_macs"]
    for direction in ("uplink_bytes", "downlink_bytes"):
        assert summary[direction] == sum(party[direction] for party in summary["parties"].values())
        for name, party in summary["parties"].items():
            assert party[direction] == sum(row[f"{direction}/{name}"] for row in rows)
    for name, party in summary["parties"].items():
        for key in ("alpha", "beta", "parameters", "macs_per_sample"):
            assert party[key] == rows[-1][f"{key}/{name}"]
    assert summary["wall_time_s"] > sum(party["train_time_s"] for party in summary["parties"].values()) > 0


def test_the_model_digest_is_that_of_the_last_checkpoint_s_weights(finished: Path):
    sections = CheckpointStore(finished / "checkpoints").load(4)
    digests = {name: weights_digest(sections[name]["model"]) for name in PARTIES}
    digests["server"] = weights_digest(sections["server"]["head"]["weights"])
    assert summary_of(finished)["model_digest"] == combined_digest(digests)


def test_what_is_shown_ends_with_a_table_of_what_was_reached_and_saved(train: Train, tmp_path: Path, finished: Path):
    run_dir = tmp_path / "shown"
    ended = train("--run-dir", run_dir)
    summary = summary_of(run_dir)
    assert (ended.code, ended.err) == (0, "")
    assert f"tiny: run folder {run_dir}; {how_to_watch(run_dir)}\n" in ended.out
    lines = ended.out.splitlines()
    for number in range(1, 5):
        assert sum(line.startswith(f"round {number - 1} ({number}/4)  loss ") for line in lines) == 1
    table = ended.out[ended.out.index("test accuracy", ended.out.index("round 3 (4/4)") + 60) :]
    assert table.startswith(f"test accuracy {summary['test_accuracy']:.2%} after 4 rounds")
    assert max(len(line) for line in table.splitlines()) <= 80
    assert "…" not in table
    for heading in ("party", "alpha", "beta", "MACs", "sent up", "sent down"):
        assert heading in table
    for name, party in summary["parties"].items():
        row = next(line for line in table.splitlines() if line.strip().startswith(name))
        for shown in ("0.5", amount(party["macs_per_sample"]), f"{amount(party['uplink_bytes'])}B"):
            assert shown in row
    assert f"{1 - summary['train_macs'] / summary['unpruned_train_macs']:.1%}" in table
    # The same run as the other one, which was started from another folder.
    assert timeless(summary) == timeless(summary_of(finished))
    assert timeless(rows_of(run_dir)) == timeless(rows_of(finished))


def test_overrides_hold_and_warnings_are_shown(train: Train, tmp_path: Path):
    ended = train("lightweighting.alpha={0: 0.5, 1: 0.2}", *QUICK, "--run-dir", tmp_path / "run", "seed=9")
    assert ended.code == 0
    assert "warning: lightweighting.alpha: falls from 0.5 to 0.2 at round 1 (party_1)" in ended.out
    config = load_config(tmp_path / "run/config.yaml")
    assert (config.seed, config.training.rounds, config.lightweighting.alpha) == (9, 1, {0: 0.5, 1: 0.2})


@pytest.mark.parametrize("mode", [[], ["mode=horizontal", "horizontal.clients=4", "horizontal.clients_per_round=2"]])
def test_a_narrow_terminal_without_unicode_shows_all(train: Train, tmp_path: Path, monkeypatch, mode: list[str]):
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding="ascii", write_through=True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert train(*QUICK, *mode, "--run-dir", tmp_path / "run").code == 0
    shown = written.getvalue().decode("ascii")
    assert ("MACs" if not mode else "clients") in shown
    assert "\x1b" not in shown


def test_early_stopping_ends_well_and_says_so(train: Train, tmp_path: Path):
    settings = ["training.rounds=9", "training.patience=1", "training.optimizer.learning_rate=1e-9"]
    ended = train(*QUICK, *settings, "--run-dir", tmp_path / "run")
    assert ended.code == 0
    assert "stopped early: no better test accuracy than" in ended.out
    assert summary_of(tmp_path / "run")["rounds"] < 9
    before = summary_of(tmp_path / "run")
    assert train(*QUICK, *settings, "--run-dir", tmp_path / "run", "--resume").code == 0
    assert summary_of(tmp_path / "run") == before


def test_runs_without_a_folder_are_numbered_and_the_newest_is_resumed(train: Train):
    for folder in ("runs/tiny", "runs/tiny-2", "runs/tiny-3"):
        ended = train(*QUICK)
        assert ended.code == 0
        assert f"run folder {folder};" in ended.out
    before = content_of(Path("runs"))
    resumed = train(*QUICK, "--resume")
    assert "run folder runs/tiny-3;" in resumed.out
    assert "resumed after 1 of 1 rounds" in resumed.out
    assert content_of(Path("runs")) == before
    assert "run folder runs/other;" in train(*QUICK, "name=other", "--resume").out  # nothing there: a new one


# resuming


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
    load = pooled.draw_samples

    def load_others(*arguments: Any, **options: Any) -> Any:
        data = load(*arguments, **options)
        data.train.features[5, 0, 3, 3] ^= 1
        return data

    monkeypatch.setattr(pooled, "draw_samples", load_others)
    assert train("--run-dir", copied, "--resume").error == (
        "--resume: party_1's features are not those of the saved run; restore the data or start a new run"
    )
    assert content_of(copied) == before


def test_a_run_that_begins_elsewhere_meanwhile_keeps_its_configuration(train: Train, tmp_path: Path, monkeypatch):
    run_dir = tmp_path / "run"
    load = pooled.draw_samples

    def load_slowly(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(pooled, "draw_samples", load)
        assert train(*QUICK, "--run-dir", run_dir, "seed=8").code == 0
        return load(*arguments, **options)

    monkeypatch.setattr(pooled, "draw_samples", load_slowly)
    ended = train(*QUICK, "--run-dir", run_dir, "seed=9")
    assert ended.error == f"--run-dir: another run has just begun in {run_dir}; name another folder"
    assert load_config(run_dir / "config.yaml").seed == 8
    assert train(*QUICK, "--run-dir", run_dir, "seed=8", "--resume").code == 0


# bad input


def test_a_command_line_that_is_none_is_one_line(train: Train, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        train("--run-dirs", "here")
    said = capsys.readouterr()
    assert end.value.code == 2
    assert said.err == "error: unrecognized arguments: --run-dirs here; see train.py --help\n"


def test_an_empty_path_is_not_the_present_folder(train: Train, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        train("--run-dir", "")
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: argument --run-dir: is empty; give a path; see train.py --help\n"


@pytest.fixture
def nothing_written(tmp_path: Path):
    """The folder of a run that cannot begin is not made, nor anything else."""
    yield
    left = {path.name for path in tmp_path.iterdir()} - {"tiny.yaml", "images"}
    assert left == {"work"}
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.parametrize("named", [True, False], ids=["--run-dir", "default folder"])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainig.rounds=4"], "trainig: unknown key; did you mean 'training'?"),
        (["training.rounds=four"], "training.rounds: must be a whole number (got 'four')"),
        (["training.rounds"], "'training.rounds' is not an override"),
        (["lightweighting.alpha=1.0"], "lightweighting.alpha: 1.0 is outside [0, 1)"),
        (["lightweighting.beta.party_9=0.1"], "lightweighting.beta: no party is called 'party_9'"),
        (["training.batch_size=49"], "training.batch_size: 49 is larger than data.train_samples = 48"),
        (["data.train_samples=5000"], "data.train_samples: 5000 asked for; choose from 1 to 1400"),
        (["data.partition.rows=3"], "data.partition: a grid of 3 x 2 blocks does not divide images of 32 x 32"),
        (["models.feature.embedding_size=1000000000000"], "not enough memory: lower training.batch_size, or the"),
        (["data.dataset.kind=image_folder"], "data.dataset.root: image_folder needs a folder"),
        (["data.dataset.kind=image_folder", "data.dataset.root=nowhere"], "data.dataset.root: no images as"),
        (["data.dataset.kind=image_folder", "data.dataset.root=../work"], "data.dataset.root: no images as"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_nothing_is_left(train: Train, tmp_path: Path, overrides, message, named: bool):
    error = train(*overrides, *(["--run-dir", tmp_path / "run"] if named else [])).error
    assert error.startswith(message)


@pytest.mark.usefixtures("nothing_written")
def test_a_batch_larger_than_the_data_is_refused(train: Train, tmp_path: Path):
    error = train("data.train_samples=null", "training.batch_size=1401", "--run-dir", tmp_path / "run").error
    assert error.startswith("training.batch_size: 1401 is larger than the 1400 training samples")


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.parametrize("bad", ["missing", "empty class", "not an image"])
def test_an_image_folder_that_cannot_be_used_is_refused(train: Train, tmp_path: Path, bad: str):
    for split in ("train", "test"):
        for label in ("cats", "dogs"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(24):
                Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / f"{number}.png")
    if bad == "missing":
        shutil.rmtree(tmp_path / "images/test")
    elif bad == "empty class":
        for path in (tmp_path / "images/train/dogs").iterdir():
            path.unlink()
    else:
        (tmp_path / "images/train/dogs/3.png").write_bytes(b"not a picture")
    settings = ["data.dataset.kind=image_folder", f"data.dataset.root={tmp_path / 'images'}", "data.test_samples=null"]
    assert train(*settings, "--run-dir", tmp_path / "run").error.startswith("data.dataset.root: ")


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.filterwarnings("ignore:downloading CIFAR-10")
def test_cifar10_that_is_not_there_and_cannot_be_downloaded(train: Train, tmp_path: Path, monkeypatch):
    def offline(*arguments: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    monkeypatch.setattr(socket, "create_connection", offline)
    error = train("data.dataset.kind=cifar10", "data.dataset.root=../images", "--run-dir", tmp_path / "run").error
    assert error.startswith("data.dataset.root: no intact CIFAR-10 in '../images' and none downloaded")
    assert "use data.dataset.kind=digits" in error


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.parametrize(("device", "count"), [("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_that_is_not_there_is_refused(train: Train, tmp_path: Path, monkeypatch, device: str, count: int):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    error = train(f"device={device}", "--run-dir", tmp_path / "run").error
    assert error == f"device: {device} is not there; use device=cpu"


@pytest.mark.usefixtures("nothing_written")
def test_a_configuration_that_is_not_there_is_refused(train: Train, tmp_path: Path):
    error = train("--run-dir", tmp_path / "run", config=tmp_path / "no.yaml").error
    assert error == f"{tmp_path / 'no.yaml'}: cannot be read (No such file or directory)"


@pytest.mark.parametrize("place", ["tiny.yaml", "tiny.yaml/run"])
def test_a_run_folder_that_cannot_be_made_is_refused(train: Train, tmp_path: Path, place: str):
    error = train(*QUICK, "--run-dir", tmp_path / place).error
    assert error.startswith(f"--run-dir: {tmp_path / place} cannot be written (")
    assert (tmp_path / "tiny.yaml").read_text() == yaml.safe_dump(TINY)


def test_values_that_are_not_finite_end_the_run_with_the_party_and_the_fix(train: Train, tmp_path: Path):
    error = train("training.optimizer.learning_rate=1e30", "--run-dir", tmp_path / "run").error
    assert "learning_rate" in error
    assert not (tmp_path / "run/summary.json").exists()
