"""Samples that are drawn by their number and seed, and the embedded digits among them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refused, refuses
from shorthand import examples, load_dataset

from vfl.config import parse_config
from vfl.config.components import SOURCES
from vfl.config.data import DataConfig
from vfl.data.samples import Dataset
from vfl.data.source import Source
from vfl.data.sources.images import DIGITS_TEST_SAMPLES
from vfl.data.sources.pooled import TEST_ID_START


def load_digits(train: int | None = 20, test: int | None = 10, seed: int = 0, **options: Any) -> Dataset:
    return load_dataset("digits", None, train_samples=train, test_samples=test, seed=seed, **options)


def load(kind: str, root: Path | None, train: int | None = None, test: int | None = None, **options: Any) -> Dataset:
    return load_dataset(kind, root, train_samples=train, test_samples=test, seed=0, **options)


@examples(15)
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


def test_more_samples_than_there_are_is_refused():
    refuses("data.train_samples", lambda: load_digits(train=1401), "1401", "1400")
    refuses("data.test_samples", lambda: load_digits(test=398), "398", "397")


def test_every_kind_of_ours_is_a_source_and_an_unknown_one_is_refused_with_the_nearest():
    kinds = "digits mnist fashion_mnist cifar10 cifar100 svhn image_folder leaf text tables breast_cancer"
    assert [kind for kind in SOURCES.built_in if kind != "objects"] == kinds.split()
    data = DataConfig.model_validate({"tables": {"bank": {"file": "bank.csv", "key": "id", "label": "late"}}})
    assert all(isinstance(SOURCES.load(kind)(data, 0), Source) for kind in SOURCES.built_in if kind != "objects")
    with refused("data.dataset.kind", "'cifar'", "'cifar10'"):
        parse_config({"name": "x", "data": {"dataset": {"kind": "cifar"}}})


DIGITS = 1797


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
