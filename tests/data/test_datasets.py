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
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.datasets import CIFAR10

from vfl.data import datasets
from vfl.data.datasets import DIGITS_TEST_SAMPLES, TEST_ID_START, Dataset, load_dataset

DIGITS = 1797


def load_digits(train: int | None = 20, test: int | None = 10, seed: int = 0, **options: Any) -> Dataset:
    return load_dataset("digits", None, train_samples=train, test_samples=test, seed=seed, **options)


def load(kind: str, root: Path | None, train: int | None = None, test: int | None = None, **options: Any) -> Dataset:
    return load_dataset(kind, root, train_samples=train, test_samples=test, seed=0, **options)


# Choice of samples, the same for all kinds


@settings(deadline=None, max_examples=15)
@given(train=st.integers(1, 1400), test=st.integers(1, 397), seed=st.integers(0, 2**40))
def test_ids_are_unique_ascending_and_as_many_as_asked_for(train: int, test: int, seed: int):
    dataset = load_digits(train, test, seed, image_size=8)
    assert (len(dataset.train), len(dataset.test)) == (train, test)
    assert dataset.train.ids.max() < TEST_ID_START <= dataset.test.ids.min()
    for samples in (dataset.train, dataset.test):
        assert (samples.ids.diff() > 0).all()


def test_the_seed_chooses_training_samples_and_never_test_samples():
    first, again, other = load_digits(seed=1), load_digits(seed=1), load_digits(seed=2)
    assert first.train.ids_digest() == again.train.ids_digest() != other.train.ids_digest()
    assert torch.equal(first.train.features, again.train.features)
    assert first.test.ids_digest() == other.test.ids_digest()
    assert torch.equal(first.test.features, other.test.features)


def test_the_number_of_training_samples_does_not_change_the_test_samples():
    few, many = load_digits(train=5), load_digits(train=None)
    assert torch.equal(few.test.features, many.test.features)


def test_a_larger_draw_contains_the_smaller():
    few, many = load_digits(train=50), load_digits(train=200)
    assert set(few.train.ids.tolist()) < set(many.train.ids.tolist())


def test_an_id_means_the_same_sample_in_every_draw():
    drawn, everything = load_digits(train=30, test=7), load_digits(train=None, test=None)
    for few, all_of_them in ((drawn.train, everything.train), (drawn.test, everything.test)):
        rows = torch.searchsorted(all_of_them.ids, few.ids)
        same = all_of_them.take(rows)
        assert torch.equal(same.ids, few.ids)
        assert torch.equal(same.features, few.features)
        assert same.labels is not None
        assert few.labels is not None
        assert torch.equal(same.labels, few.labels)


def test_asking_for_all_by_number_is_asking_for_all():
    assert load_digits(train=1400).train.ids_digest() == load_digits(train=None).train.ids_digest()


@pytest.mark.parametrize("count", [0, -1, 1401])
def test_impossible_numbers_of_training_samples_are_refused(count: int):
    with pytest.raises(ValueError, match=rf"data\.train_samples: {count} asked for; choose from 1 to 1400"):
        load_digits(train=count)


def test_more_test_samples_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"data\.test_samples: 398 asked for; choose from 1 to 397"):
        load_digits(test=398)


def test_an_unknown_kind_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"data\.dataset\.kind: .*'cifar' \(did you mean 'cifar10'\?\).*digits"):
        load("cifar", None)
    with pytest.raises(ValueError, match=r"there is no 'xyz'; choose one of cifar10, digits, image_folder"):
        load("xyz", None)


def test_an_impossible_image_size_is_refused():
    with pytest.raises(ValueError, match=r"data\.dataset\.image_size: must be at least 1 pixel, got 0"):
        load("digits", None, image_size=0)


# digits


def test_digits_are_all_there_split_once_and_never_on_both_sides():
    dataset = load_digits(train=None, test=None, image_size=8)
    assert (len(dataset.train), len(dataset.test)) == (DIGITS - DIGITS_TEST_SAMPLES, DIGITS_TEST_SAMPLES)
    both = torch.cat([dataset.train.features, dataset.test.features])
    assert len(both.flatten(1).unique(dim=0)) == DIGITS  # no two digits are drawn alike


def test_digits_are_grey_from_0_to_255_and_carry_their_labels():
    from sklearn.datasets import load_digits as original

    images, target = original(return_X_y=True)
    labelled = {tuple(image): label for image, label in zip(images.tolist(), target.tolist(), strict=True)}
    dataset = load_digits(image_size=8)
    assert dataset.train.features.shape == (20, 1, 8, 8)
    assert dataset.train.features.dtype == torch.uint8
    assert dataset.train.labels is not None
    levels = (dataset.train.features.double() * 16 / 255).round().flatten(1)
    assert [labelled[tuple(image)] for image in levels.tolist()] == dataset.train.labels.tolist()
    assert dataset.classes == tuple("0123456789")
    assert load_digits(train=None).train.features.max() == 255


@pytest.mark.parametrize(("image_size", "side"), [(None, 32), (17, 17), (5, 5), (8, 8)])
def test_digits_are_resized_as_pil_does_by_default_to_32_pixels(image_size: int | None, side: int):
    drawn = load_digits(image_size=8).train.features[:, 0].numpy()
    resized = load_digits(image_size=image_size).train.features
    images = [Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR) for image in drawn]
    assert resized.shape == (20, 1, side, side)
    difference = resized[:, 0].numpy().astype(int) - np.stack([np.asarray(image) for image in images]).astype(int)
    assert np.abs(difference).max() <= 1  # PIL rounds between its two passes
    assert np.abs(difference.mean()) < 0.1


def test_digits_say_that_they_ignore_a_root(tmp_path: Path):
    with pytest.warns(UserWarning, match=r"data\.dataset\.root is ignored"):
        load("digits", tmp_path, 5, 5)


# image_folder


def write_image(path: Path, size: tuple[int, int] = (6, 4), mode: str = "RGB", seed: int = 0) -> np.ndarray:
    """Write random pixels; size is (width, height). Return them as uint8 [H, W, 3]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    image.save(path)
    return np.asarray(image.convert("RGB"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Classes cat and dog: three training images and one test image each."""
    for label, name in enumerate(("cat", "dog")):
        for index in range(3):
            write_image(tmp_path / "train" / name / f"{index}.png", seed=10 * label + index)
        write_image(tmp_path / "test" / name / "0.png", seed=10 * label + 9)
    return tmp_path


def test_image_folder_reads_every_pixel_and_label(folder: Path):
    dataset = load("image_folder", folder)
    assert dataset.classes == ("cat", "dog")
    assert dataset.train.features.shape == (6, 3, 4, 6)
    assert dataset.train.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.test.ids.tolist() == [TEST_ID_START, TEST_ID_START + 1]
    assert dataset.train.labels is not None
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    for row, path in enumerate(sorted((folder / "train").rglob("*.png"))):
        written = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
        assert torch.equal(dataset.train.features[row], written)


def test_image_folder_decodes_only_the_chosen_images(folder: Path, monkeypatch: pytest.MonkeyPatch):
    chosen = load("image_folder", folder, 2, 1)
    for split, ids in (("train", chosen.train.ids), ("test", chosen.test.ids - TEST_ID_START)):
        for row, path in enumerate(sorted((folder / split).rglob("*.png"))):
            if row not in ids.tolist():
                path.write_bytes(b"damaged")
    again = load("image_folder", folder, 2, 1)
    assert torch.equal(again.train.features, chosen.train.features)
    with pytest.raises(ValueError, match="cannot read"):
        load("image_folder", folder)


def test_image_folder_turns_grey_and_palette_images_into_rgb(folder: Path):
    grey = write_image(folder / "train/cat/0.png", mode="L")
    palette = write_image(folder / "train/cat/1.png", mode="P")
    features = load("image_folder", folder).train.features
    for row, written in enumerate((grey, palette)):
        assert np.array_equal(features[row].permute(1, 2, 0).numpy(), written)


def test_image_folder_resizes_images_of_any_size_when_asked_to(folder: Path):
    write_image(folder / "test/dog/0.png", size=(30, 20))
    dataset = load("image_folder", folder, image_size=5)
    assert dataset.train.features.shape == (6, 3, 5, 5)
    assert dataset.test.features.shape == (2, 3, 5, 5)


def test_image_folder_names_the_image_of_another_size(folder: Path):
    write_image(folder / "train/dog/1.png", size=(6, 5))
    with pytest.raises(ValueError, match=r"data\.dataset\.root: .*dog/1\.png' has 6 x 5 .*6 x 4; set .*image_size"):
        load("image_folder", folder)


def test_image_folder_refuses_test_images_of_another_size_than_training_images(folder: Path):
    for name in ("cat", "dog"):
        write_image(folder / "test" / name / "0.png", size=(6, 5))
    with pytest.raises(ValueError, match=r"\[3, 4, 6\] and test images \[3, 5, 6\]; set data\.dataset\.image_size"):
        load("image_folder", folder)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tiff"])
@pytest.mark.parametrize("damage", ["empty", "text", "cut"])
def test_image_folder_names_the_damaged_image(folder: Path, suffix: str, damage: str):
    path = folder / "train/dog" / f"bad{suffix}"
    write_image(path, size=(64, 64))
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "text": b"not an image", "cut": whole[: len(whole) * 3 // 4]}[damage])
    with pytest.raises(ValueError, match=rf"data\.dataset\.root: cannot read '.*bad\{suffix}'") as raised:
        load("image_folder", folder, image_size=4)
    assert "\n" not in str(raised.value)
    assert "BytesIO" not in str(raised.value)


def test_image_folder_refuses_pixels_of_more_than_8_bits(folder: Path):
    Image.fromarray(np.full((4, 6), 40_000, dtype=np.uint16)).save(folder / "train/cat/0.png")
    with pytest.raises(ValueError, match=r"cat/0\.png': more than 8 bits per channel"):
        load("image_folder", folder)


def test_image_folder_names_the_classes_that_are_in_one_split_only(folder: Path):
    write_image(folder / "train/eel/0.png")
    write_image(folder / "test/ant/0.png")
    with pytest.raises(ValueError, match=r"data\.dataset\.root: .*eel only in train; ant only in test"):
        load("image_folder", folder)


def test_image_folder_needs_a_root():
    with pytest.raises(ValueError, match=r"data\.dataset\.root: image_folder needs a folder"):
        load("image_folder", None)


@pytest.mark.parametrize("missing", ["everything", "test folder", "classes", "images"])
def test_image_folder_says_what_it_does_not_find(folder: Path, missing: str):
    (folder / "train/cat/nothing").mkdir()
    root = {"everything": folder / "nowhere", "test folder": folder / "train", "classes": folder / "empty"}.get(
        missing, folder
    )
    if missing == "classes":
        (root / "train").mkdir(parents=True)
    if missing == "images":
        (folder / "test/cat/0.png").unlink()
    with pytest.raises(ValueError, match=r"^data\.dataset\.root: no images as '.*/<class>/\*': ") as raised:
        load("image_folder", root)
    assert "\n" not in str(raised.value)


# cifar10: files in the published format but with few images, and torchvision's list of checksums made to fit them

PER_BATCH = 4


def write_batch(path: Path, content: dict[str, Any]) -> str:
    """Write one file of CIFAR-10; return its md5."""
    path.write_bytes(pickle.dumps(content, protocol=2))
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def cifar_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    batches = tmp_path / "cifar" / CIFAR10.base_folder
    batches.mkdir(parents=True)
    draw = np.random.default_rng(0)
    checksums: dict[str, str] = {}
    for file, (name, _) in enumerate(CIFAR10.train_list + CIFAR10.test_list):
        pixels = draw.integers(0, 256, (PER_BATCH, 3072), dtype=np.uint8)
        labels = [(file + row) % 10 for row in range(PER_BATCH)]
        checksums[name] = write_batch(batches / name, {"data": pixels, "labels": labels})
    names = [f"class {index}" for index in range(10)]
    meta_md5 = write_batch(batches / "batches.meta", {"label_names": names})
    for attribute in ("train_list", "test_list"):
        monkeypatch.setattr(CIFAR10, attribute, [[name, checksums[name]] for name, _ in getattr(CIFAR10, attribute)])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": meta_md5})
    return tmp_path / "cifar"


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


def test_cifar10_draws_and_resizes(cifar_root: Path):
    everything, drawn = load("cifar10", cifar_root), load("cifar10", cifar_root, 5, 2)
    assert torch.equal(drawn.train.features, everything.train.features[drawn.train.ids])
    assert load("cifar10", cifar_root, 5, 2, image_size=16).train.features.shape == (5, 3, 16, 16)


def test_cifar10_is_looked_for_in_the_folder_data_by_default(cifar_root: Path, monkeypatch: pytest.MonkeyPatch):
    cifar_root.rename(cifar_root.parent / "data")
    monkeypatch.chdir(cifar_root.parent)
    assert len(load("cifar10", None).train) == 5 * PER_BATCH


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_cifar10_offline_is_one_line_that_says_what_to_do(
    cifar_root: Path, offline: list[float | None], state: str, capfd: pytest.CaptureFixture[str]
):
    batch = cifar_root / CIFAR10.base_folder / "data_batch_3"
    if state == "missing":
        batch.unlink()
    else:
        batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(
        ValueError, match=r"^data\.dataset\.root: .*no route to host.*cifar-10-python\.tar\.gz"
    ) as raised:
        load("cifar10", cifar_root)
    message = str(raised.value)
    assert "\n" not in message
    assert str(cifar_root) in message
    assert "cifar-10-batches-py" in message
    assert "data.dataset.kind=digits" in message
    assert raised.value.__suppress_context__
    assert capfd.readouterr() == ("", "")
    assert set(offline) == {datasets.DOWNLOAD_TIMEOUT_S}
    assert socket.getdefaulttimeout() is None
