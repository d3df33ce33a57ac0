import gzip
import hashlib
import pickle  # noqa: TID251  # CIFAR-10 is published as pickles; nothing is unpickled here
import socket
import sys
import tarfile
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from refusals import refused, refuses
from shorthand import load_dataset
from torchvision.datasets import CIFAR10, CIFAR100, MNIST, SVHN, FashionMNIST

from vfl.data.samples import Dataset
from vfl.data.sources import published


def load(kind: str, root: Path | None, train: int | None = None, test: int | None = None, **options: Any) -> Dataset:
    return load_dataset(kind, root, train_samples=train, test_samples=test, seed=0, **options)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """No test reaches the network. Returns the socket timeouts of the attempts."""
    timeouts: list[float | None] = []

    def refuse(*_: Any, **__: Any) -> None:
        timeouts.append(socket.getdefaulttimeout())
        print("progress 0%", file=sys.stderr)  # noqa: T201  # as torchvision does
        raise urllib.error.URLError("no route\nto host")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return timeouts


# CIFAR: files in the published format but with few images, and torchvision's list of checksums made to fit them

PER_BATCH = 4


def write_batch(path: Path, content: dict[str, Any]) -> str:
    """Write one file of CIFAR-10; return its md5."""
    path.write_bytes(pickle.dumps(content, protocol=2))
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_cifar(root: Path, source: type[CIFAR10], labels_key: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    batches = root / source.base_folder
    batches.mkdir(parents=True)
    draw = np.random.default_rng(0)
    checksums: dict[str, str] = {}
    for file, (name, _) in enumerate(source.train_list + source.test_list):
        pixels = draw.integers(0, 256, (PER_BATCH, 3072), dtype=np.uint8)
        labels = [(file + row) % 10 for row in range(PER_BATCH)]
        checksums[name] = write_batch(batches / name, {"data": pixels, labels_key: labels})
    names = [f"class {index}" for index in range(10)]
    meta_md5 = write_batch(batches / source.meta["filename"], {source.meta["key"]: names})
    for attribute in ("train_list", "test_list"):
        monkeypatch.setattr(source, attribute, [[name, checksums[name]] for name, _ in getattr(source, attribute)])
    monkeypatch.setattr(source, "meta", source.meta | {"md5": meta_md5})
    return root


@pytest.fixture
def cifar_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_cifar(tmp_path / "cifar", CIFAR10, "labels", monkeypatch)


def test_cifar100_is_read_with_its_fine_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = load("cifar100", write_cifar(tmp_path, CIFAR100, "fine_labels", monkeypatch))
    assert dataset.train.features.shape == (PER_BATCH, 3, 32, 32)
    assert dataset.test.labels is not None
    assert dataset.test.labels.tolist() == [1, 2, 3, 4]
    assert dataset.classes[3] == "class 3"


def test_cifar10_in_its_published_format_is_read_from_disk_without_network_or_noise(
    cifar_root: Path, offline: list[float | None], capfd: pytest.CaptureFixture[str]
):
    dataset = load("cifar10", cifar_root)
    assert dataset.train.features.shape == (5 * PER_BATCH, 3, 32, 32)
    assert dataset.test.features.shape == (PER_BATCH, 3, 32, 32)
    assert dataset.train.features.is_contiguous()
    assert dataset.classes[3] == "class 3"
    assert dataset.test.labels is not None
    assert dataset.test.labels.tolist() == [5, 6, 7, 8]
    # A row of the file is 1024 red, then 1024 green, then 1024 blue values.
    first = np.random.default_rng(0).integers(0, 256, (PER_BATCH, 3072), dtype=np.uint8)
    assert torch.equal(dataset.train.features[:PER_BATCH].flatten(1), torch.from_numpy(first))
    assert offline == []
    assert capfd.readouterr() == ("", "")


def test_what_torchvision_prints_and_warns_of_is_not_passed_on(
    cifar_root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    load_meta = CIFAR10._load_meta  # pyright: ignore[reportPrivateUsage]

    def noisy(self: CIFAR10) -> None:
        warnings.warn("old pickle", stacklevel=2)  # as NumPy 2.4.0 to 2.4.4 does for these files
        print("verified")  # noqa: T201
        load_meta(self)

    monkeypatch.setattr(CIFAR10, "_load_meta", noisy)
    load("cifar10", cifar_root)  # a warning would be an error
    assert capfd.readouterr() == ("", "")


def test_cifar10_is_unpacked_from_the_archive(cifar_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = tmp_path / "packed"
    root.mkdir()
    with tarfile.open(root / CIFAR10.filename, "w:gz") as archive:
        archive.add(cifar_root / CIFAR10.base_folder, CIFAR10.base_folder)
    checksum = hashlib.md5((root / CIFAR10.filename).read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR10, "tgz_md5", checksum)
    assert torch.equal(load("cifar10", root).train.features, load("cifar10", cifar_root).train.features)


def test_cifar10_is_looked_for_in_the_folder_data_by_default(cifar_root: Path, monkeypatch: pytest.MonkeyPatch):
    cifar_root.rename(cifar_root.parent / "data")
    monkeypatch.chdir(cifar_root.parent)
    assert len(load("cifar10", None).train) == 5 * PER_BATCH


def test_cifar10_offline_is_one_line_that_says_what_to_do(
    cifar_root: Path, offline: list[float | None], capfd: pytest.CaptureFixture[str]
):
    batch = cifar_root / CIFAR10.base_folder / "data_batch_3"
    batch.write_bytes(batch.read_bytes()[:-1])
    with refused("data.dataset.root", "cifar-10-python.tar.gz") as raised:
        load("cifar10", cifar_root)
    message = str(raised.value)
    assert "\n" not in message
    assert str(cifar_root) in message
    assert "cifar-10-batches-py" in message
    assert "data.dataset.kind=digits" in message
    assert raised.value.__suppress_context__
    assert capfd.readouterr() == ("", "")
    assert set(offline) == {published.DOWNLOAD_TIMEOUT_S}
    assert socket.getdefaulttimeout() is None


# MNIST and Fashion-MNIST: the original IDX files, unpacked or not


def write_mnist(root: Path, folder: str = "MNIST", counts: tuple[int, int] = (6, 4)) -> dict[str, np.ndarray]:
    """Write random images and labels; return the images by split."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    written: dict[str, np.ndarray] = {}
    for seed, (split, count) in enumerate(zip(("train", "t10k"), counts, strict=True)):
        images = np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        header = b"".join(number.to_bytes(4, "big") for number in (0x803, *images.shape))
        (raw / f"{split}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = b"".join(number.to_bytes(4, "big") for number in (0x801, count))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(header + bytes(range(count)))
        written[split] = images
    return written


@pytest.mark.parametrize(
    ("kind", "folder", "classes"),
    [("mnist", "MNIST", tuple("0123456789")), ("fashion_mnist", "FashionMNIST", tuple(FashionMNIST.classes))],
)
def test_idx_files_are_read_from_disk_without_network_or_noise(
    tmp_path: Path, kind: str, folder: str, classes: tuple[str, ...], offline: list[float | None], capfd: Any
):
    written = write_mnist(tmp_path, folder)
    dataset = load(kind, tmp_path)
    assert torch.equal(dataset.train.features, torch.from_numpy(written["train"])[:, None])
    assert torch.equal(dataset.test.features, torch.from_numpy(written["t10k"])[:, None])
    assert dataset.train.labels is not None
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.classes == classes
    assert dataset.owners is None
    assert offline == []
    assert capfd.readouterr() == ("", "")
    assert load(kind, tmp_path, 3, 2, image_size=32).train.features.shape == (3, 1, 32, 32)


def test_packed_idx_files_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: list[float | None]):
    written = write_mnist(tmp_path)
    resources: list[tuple[str, str]] = []
    for name, _ in MNIST.resources:
        path = tmp_path / "MNIST/raw" / name
        unpacked = path.with_suffix("")
        path.write_bytes(gzip.compress(unpacked.read_bytes()))
        unpacked.unlink()
        resources.append((name, hashlib.md5(path.read_bytes()).hexdigest()))
    monkeypatch.setattr(MNIST, "resources", resources)
    assert torch.equal(load("mnist", tmp_path).train.features[:, 0], torch.from_numpy(written["train"]))
    assert offline == []


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("damage", ["empty", "text", "cut", "missing"])
def test_damaged_idx_files_are_one_line_that_says_what_to_do(tmp_path: Path, file: str, damage: str):
    write_mnist(tmp_path)
    path = tmp_path / "MNIST/raw" / file
    path.write_bytes({"empty": b"", "text": b"not an IDX file", "cut": path.read_bytes()[:-1]}.get(damage, b""))
    if damage == "missing":
        path.unlink()
    with refused("data.dataset.root", "MNIST/raw", "kind=digits"):
        load("mnist", tmp_path)


def test_labels_of_other_images_are_refused(tmp_path: Path):
    write_mnist(tmp_path)
    labels = tmp_path / "MNIST/raw/train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:7] + bytes([5, 0, 1, 2, 3, 4]))  # five of six
    refuses("data.dataset.root", lambda: load("mnist", tmp_path), "MNIST")


# SVHN: MATLAB files


@pytest.fixture
def svhn_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    splits = dict(SVHN.split_list)
    for split, count in (("train", 11), ("test", 3)):
        path = tmp_path / f"{split}_32x32.mat"
        pixels = np.random.default_rng(count).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        scipy.io.savemat(path, {"X": pixels, "y": np.arange(1, count + 1, dtype=np.uint8)[:, None]})
        splits[split] = [splits[split][0], path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    splits["train"][2] = hashlib.md5((tmp_path / "train_32x32.mat").read_bytes()).hexdigest()
    monkeypatch.setattr(SVHN, "split_list", splits)
    return tmp_path


def test_svhn_is_read_with_class_10_as_the_digit_0(svhn_root: Path, offline: list[float | None]):
    dataset = load("svhn", svhn_root)
    pixels = scipy.io.loadmat(svhn_root / "train_32x32.mat")["X"]
    assert torch.equal(dataset.train.features, torch.from_numpy(pixels).permute(3, 2, 0, 1))
    assert dataset.train.features.is_contiguous()
    assert dataset.train.labels is not None
    assert dataset.train.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 11]
    assert len(dataset.test) == 3
    assert dataset.classes == tuple("0123456789")
    assert offline == []


# Offline


@pytest.mark.parametrize(
    ("kind", "title", "place"),
    [
        ("mnist", r"MNIST \(12 MB\)", "MNIST/raw"),
        ("fashion_mnist", r"Fashion-MNIST \(31 MB\)", "FashionMNIST/raw"),
        ("cifar10", r"CIFAR-10 \(170 MB\)", "cifar-10-python.tar.gz or cifar-10-batches-py"),
        ("cifar100", r"CIFAR-100 \(169 MB\)", "cifar-100-python.tar.gz or cifar-100-python"),
        ("svhn", r"SVHN \(246 MB\)", "train_32x32.mat and test_32x32.mat"),
    ],
)
def test_a_download_is_announced_and_offline_says_where_to_put_what(
    tmp_path: Path, kind: str, title: str, place: str, offline: list[float | None], capfd: pytest.CaptureFixture[str]
):
    for _ in range(2):  # what the first attempt leaves behind is not taken for the data
        with (
            pytest.warns(UserWarning, match=f"downloading {title} to"),
            pytest.raises(ValueError, match=r"^data\.dataset\.root: no intact .*no route to host") as raised,
        ):
            load(kind, tmp_path)
        message = str(raised.value)
        assert f"put {place} there, or use data.dataset.kind=digits" in message
        assert "\n" not in message
    assert set(offline) == {published.DOWNLOAD_TIMEOUT_S}
    assert capfd.readouterr() == ("", "")
