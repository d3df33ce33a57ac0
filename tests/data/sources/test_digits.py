from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from shorthand import load_dataset

from vfl.data.samples import Dataset
from vfl.data.sources.images import DIGITS_TEST_SAMPLES

DIGITS = 1797


def load_digits(train: int | None = 20, test: int | None = 10, root: Path | None = None, **options: Any) -> Dataset:
    return load_dataset("digits", root, train_samples=train, test_samples=test, seed=0, **options)


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
        load_digits(5, 5, tmp_path)
