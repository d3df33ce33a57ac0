"""lvfl train with bad input: one line, and nothing is left."""

import math
import shutil
import socket
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from shorthand import release
from tiny_training import CLIENTS, QUICK, TINY, Train
from torch import nn

from vfl.horizontal.components import CLASSIFIERS
from vfl.models.features import ClassifierSpec


def test_a_command_line_that_is_none_is_one_line(train: Train, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        train("--run-dirs", "here")
    said = capsys.readouterr()
    assert end.value.code == 2
    assert (
        said.err == "error: unrecognized arguments: --run-dirs here; did you mean '--run-dir'?; see train.py --help\n"
    )


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
def test_too_little_memory_is_one_line_and_may_pass(train: Train, tmp_path: Path):
    ended = train("models.feature.embedding_size=1000000000000", "--run-dir", tmp_path / "run")
    assert ended.code == 75
    assert ended.err.startswith("error: not enough memory: lower training.batch_size, or the")
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.parametrize("named", [True, release(False)], ids=["--run-dir", "default folder"])
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


@pytest.mark.parametrize(
    ("place", "why"), [("tiny.yaml", "is a file; name a folder"), ("tiny.yaml/run", "cannot be written (")]
)
def test_a_run_folder_that_cannot_be_made_is_refused(train: Train, tmp_path: Path, place: str, why: str):
    error = train(*QUICK, "--run-dir", tmp_path / place).error
    assert error.startswith(f"--run-dir: {tmp_path / place} {why}")
    assert (tmp_path / "tiny.yaml").read_text() == yaml.safe_dump(TINY)


def test_values_that_are_not_finite_end_the_run_with_the_party_and_the_fix(train: Train, tmp_path: Path):
    error = train("training.optimizer.learning_rate=1e30", "--run-dir", tmp_path / "run").error
    assert "learning_rate" in error
    assert not (tmp_path / "run/summary.json").exists()


@pytest.mark.filterwarnings("always:client_1 has 9 samples")
def test_a_client_with_a_batch_of_one_sample_is_named_before_training(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def normalised(spec: ClassifierSpec) -> nn.Module:
        hidden = nn.Linear(math.prod(spec.input_shape), 8)
        return nn.Sequential(nn.Flatten(), hidden, nn.BatchNorm1d(8), nn.Linear(8, spec.classes))

    monkeypatch.setitem(CLASSIFIERS.added, "normalised", normalised)
    (tmp_path / "clients.yaml").write_text(yaml.safe_dump(CLIENTS))
    config = tmp_path / "clients.yaml"
    settings = ["data.train_samples=36", "models.classifier.kind=normalised", "training.batch_size=8"]
    ended = train(*settings, "--run-dir", tmp_path / "run", config=config)
    assert ended.code == 2
    assert "warning: client_1 has 9 samples: batches of 8 leave a last one of one sample, on which" in ended.out
    assert "so the run ends when it meets that batch; change training.batch_size, or use GroupNorm" in ended.out
    for otherwise in ("horizontal.algorithm=fedsgd", "training.batch_size=9", "models.classifier.kind=mlp"):
        ended = train(*settings, otherwise, "--run-dir", tmp_path / otherwise, config=config)
        assert ended.code == 0
        assert "GroupNorm" not in ended.out
