from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused, refuses
from shorthand import load_dataset

from vfl.data.samples import Dataset
from vfl.data.sources.pooled import TEST_ID_START


def load(root: Path | None, train: int | None = None, test: int | None = None, **options: Any) -> Dataset:
    return load_dataset("image_folder", root, train_samples=train, test_samples=test, seed=0, **options)


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
    dataset = load(folder)
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
    chosen = load(folder, 2, 1)
    for split, ids in (("train", chosen.train.ids), ("test", chosen.test.ids - TEST_ID_START)):
        for row, path in enumerate(sorted((folder / split).rglob("*.png"))):
            if row not in ids.tolist():
                path.write_bytes(b"damaged")
    again = load(folder, 2, 1)
    assert torch.equal(again.train.features, chosen.train.features)
    refuses("data.dataset.root", lambda: load(folder), "read")


def test_image_folder_turns_grey_and_palette_images_into_rgb(folder: Path):
    grey = write_image(folder / "train/cat/0.png", mode="L")
    palette = write_image(folder / "train/cat/1.png", mode="P")
    features = load(folder).train.features
    for row, written in enumerate((grey, palette)):
        assert np.array_equal(features[row].permute(1, 2, 0).numpy(), written)


def test_image_folder_resizes_images_of_any_size_when_asked_to(folder: Path):
    write_image(folder / "test/dog/0.png", size=(30, 20))
    dataset = load(folder, image_size=5)
    assert dataset.train.features.shape == (6, 3, 5, 5)
    assert dataset.test.features.shape == (2, 3, 5, 5)


def test_image_folder_names_the_image_of_another_size(folder: Path):
    write_image(folder / "train/dog/1.png", size=(6, 5))
    refuses("data.dataset.root", lambda: load(folder), "dog/1.png", "image_size")


def test_image_folder_refuses_test_images_of_another_size_than_training_images(folder: Path):
    for name in ("cat", "dog"):
        write_image(folder / "test" / name / "0.png", size=(6, 5))
    refuses("data.dataset.root", lambda: load(folder), "[3, 4, 6]", "[3, 5, 6]", "data.dataset.image_size")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tiff"])
@pytest.mark.parametrize("damage", ["empty", "text", "cut"])
def test_image_folder_names_the_damaged_image(folder: Path, suffix: str, damage: str):
    path = folder / "train/dog" / f"bad{suffix}"
    write_image(path, size=(64, 64))
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "text": b"not an image", "cut": whole[: len(whole) * 3 // 4]}[damage])
    with refused("data.dataset.root", suffix) as raised:
        load(folder, image_size=4)
    assert "BytesIO" not in str(raised.value)


def test_image_folder_refuses_pixels_of_more_than_8_bits(folder: Path):
    Image.fromarray(np.full((4, 6), 40_000, dtype=np.uint16)).save(folder / "train/cat/0.png")
    refuses("data.dataset.root", lambda: load(folder), "cat/0.png")


def test_image_folder_names_the_classes_that_are_in_one_split_only(folder: Path):
    write_image(folder / "train/eel/0.png")
    write_image(folder / "test/ant/0.png")
    refuses("data.dataset.root", lambda: load(folder), "ant", "eel")


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
    above = missing in ("everything", "test folder")  # one level off: the folder that is meant is named
    refuses("data.dataset.root", lambda: load(root), root, f"'{folder}'" if above else "/<class>/*")
    refuses("data.dataset.root", lambda: load(None), "image_folder")


@pytest.mark.parametrize("hidden", [".ipynb_checkpoints", "@eaDir", "__MACOSX"])
def test_hidden_folders_and_files_are_no_class_and_no_image(folder: Path, hidden: str):
    expected = load(folder)
    for split in ("train", "test"):
        write_image(folder / split / hidden / "0.png")
        write_image(folder / split / "cat" / hidden / "0.png")
        (folder / split / "dog" / "._0.png").write_bytes(b"resource fork")
    found = load(folder)
    assert found.classes == expected.classes
    assert torch.equal(found.train.features, expected.train.features)
    assert found.test.labels is not None
    assert expected.test.labels is not None
    assert torch.equal(found.test.labels, expected.test.labels)


def test_files_of_other_formats_are_counted_in_one_line(folder: Path):
    for name in ("a.heic", "b.HEIC", "c.gif", ".hidden.gif"):
        (folder / "train" / "cat" / name).write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"3 files .*2 \.heic, 1 \.gif") as told:
        assert len(load(folder).train.ids) == 6
    assert len(told) == 1
