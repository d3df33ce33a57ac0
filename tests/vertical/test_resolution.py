"""Smaller images in the first rounds: what is trained, evaluated and counted, and what is refused."""

import copy
import json
from typing import Any

import pytest
import torch
from refusals import refused
from shorthand import TWO, assert_models, digest, parties_of, reference_of, release, train_rounds
from tiny_training import TINY
from torch import Tensor, nn

import vfl
from vfl.core.augmentation import resize_images, shift_images
from vfl.core.party import FeatureParty
from vfl.core.presence import batch_rows
from vfl.core.server import HeadServer
from vfl.models.convolution import vgg11, vgg16
from vfl.models.features import Features, ModelSpec
from vfl.plan.plan import measured_time, plan_tables, planned_rounds

HALF_FIRST = {"resolution": {0: 0.5, 2: 1.0}}
PLAIN = {
    "feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8, "batch_norm": False},
    "head": {"hidden": [16]},
}


def mean_of_blocks(images: Tensor, side: int) -> Tensor:
    """Average blocks of side x side pixels of images [N, C, H, W]."""
    return images.unfold(2, side, side).unfold(3, side, side).mean(dim=(4, 5))


def counted(party: FeatureParty, features: Tensor) -> int:
    """Multiply-accumulates of one of these samples in a party's present model, from weights and outputs."""
    total = 0

    def add(layer: Any, inputs: Any, output: Tensor) -> None:
        nonlocal total
        fan_in = layer.weight.numel() // layer.weight.shape[0]
        total += output[0].numel() * fan_in

    model = copy.deepcopy(party.model).eval()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(add)
    with torch.no_grad():
        model(features[:1])
    return total


def shapes_seen(party: FeatureParty) -> list[tuple[int, ...]]:
    """Return a list to which every later forward pass of a party's model adds an image's sides."""
    sides: list[tuple[int, ...]] = []
    party.model.register_forward_pre_hook(lambda model, inputs: sides.append(tuple(inputs[0].shape[2:])))
    return sides


def test_images_are_averaged_over_areas():
    images = torch.randn(5000, 1, 6, 4)  # more than are resized at once
    torch.testing.assert_close(resize_images(images, 0.5), mean_of_blocks(images, 2))
    assert resize_images(images[:3], 0.3).shape == (3, 1, 2, 1)
    assert resize_images(images[:0], 0.5).shape == (0, 1, 3, 2)


@pytest.mark.parametrize("shift", [0, 2])
def test_training_is_the_algorithm_on_smaller_images(build, shift: int):
    training = {"labels": "server", "local_iterations": 2}
    data = TWO | {"augmentation": {"shift": shift}}
    server: HeadServer = build(models=PLAIN, data=data, training=training, lightweighting=HALF_FIRST)
    parties = parties_of(server)
    naive = reference_of(server)
    for round_index in range(3):
        server.train_round(round_index)
        for exchange, rows in enumerate(batch_rows(3, round_index, 3, 48, 16)):
            whole = [party.data.train.features for party in parties]
            naive.features = whole if round_index == 2 else [mean_of_blocks(each, 2) for each in whole]
            for number, party in enumerate(parties):
                assert (party.views is not None) == (shift > 0)
                if party.views is not None:
                    every = party.views.shifts(torch.arange(48), round_index, exchange)  # pixels of the smaller image
                    assert every is not None
                    naive.features[number] = shift_images(naive.features[number], every)
            naive.exchange(rows)
    assert_models(server, naive.models, naive.head, rtol=1e-4, atol=1e-5)


@pytest.mark.release
@pytest.mark.parametrize("labels", [release("shared"), "server"])
def test_costs_are_counted_and_forecast_on_the_rounds_images(build, labels: str):
    server: HeadServer = build(
        models={
            "feature": {"kind": "vgg11", "width": 0.05, "embedding_size": 8, "freeze": ["features.0"]},
            "head": {"hidden": [16]},
        },
        training={"labels": labels, "local_iterations": 2, "staleness": 1},
        lightweighting={
            "resolution": {"party_1": {0: 0.5, 2: 1.0}, "party_2": {1: 0.25, 2: 0.7, 3: 1.0}},
            "alpha": {"party_1": {1: 0.3, 2: 0.5}, "party_2": {1: 0.4}, "party_3": 0.4},
            "pruning": {"refit": labels == "server"},
        },
    )
    parties, sizes = parties_of(server), {"party_1": (0.5, 0.5, 1, 1), "party_2": (1, 0.25, 0.7, 1)}
    for round_index, forecast in enumerate(planned_rounds(server, server.price_list.forecast, parties)):
        before = copy.deepcopy(server.ledger.costs)
        metrics = server.train_round(round_index)
        for party in parties:
            resolution = sizes.get(party.name, (1,) * 4)[round_index]
            assert metrics[f"resolution/{party.name}"] == resolution
            features = party.data.train.features
            expected = counted(party, features if resolution == 1 else resize_images(features, resolution))
            assert metrics[f"macs_per_sample/{party.name}"] == expected
            now, then = server.ledger.costs[party.name], before[party.name]
            assert now.train_macs - then.train_macs == forecast[party.name].macs
            unpruned = 3 * party.unpruned_macs - party.unpruned_skipped_macs
            assert now.unpruned_train_macs - then.unpruned_train_macs == 16 * 6 * unpruned
    assert all(party.unpruned_macs > party.macs for party in parties[:3])


def test_a_plan_tells_what_smaller_images_save(build):
    fresh: HeadServer = build(models=PLAIN, lightweighting=HALF_FIRST)
    *_, total = plan_tables(fresh, parties_of(fresh))
    train_rounds(fresh, 4)
    planned, saved = str([*total.columns[2].cells][-1]), fresh.summary()["savings"]["compute"]
    assert float(planned.rstrip("%")) / 100 == pytest.approx(saved, abs=0.005)
    assert saved > 0.3


def test_a_plan_measures_exchanges_of_whole_images(build):
    server = build(lightweighting=HALF_FIRST)
    sides = shapes_seen(parties_of(server)[0])
    assert "smaller images save" in measured_time(server)
    assert set(sides) == {(16, 16)}


def test_evaluation_has_the_rounds_size_and_the_end_the_whole(build):
    settings = HALF_FIRST | {"alpha": {2: 0.3}}
    server: HeadServer = build(lightweighting=settings)
    party = parties_of(server)[0]
    sides, small = shapes_seen(party), resize_images(party.data.test.features, 0.5)
    before: dict[str, float] = {}
    for round_index, side in enumerate((8, 8, 16, 16)):
        metrics = server.train_round(round_index)
        if round_index == 2:  # both tests of the pruning are of its round's images
            assert metrics["loss/test_before_pruning"] != before["loss/test"]
        before = server.evaluate()
        assert set(sides) == {(side, side)}
        sides.clear()
        assert torch.equal(party.test.features, small) == (side == 8)
    assert party.train is party.data.train
    assert party.test is party.data.test


def test_whole_images_have_the_bits_and_bytes_of_none(build):
    servers = [build(lightweighting=each) for each in ({}, {"resolution": 1.0}, {"resolution": {"party_1": {0: 1}}})]
    rows = [server.train_round(0) for server in servers]
    digests = set(map(digest, servers))
    assert len(digests) == 1
    assert len({row["downlink_bytes/party_1"] for row in rows}) == 1
    assert not any(tag.startswith("resolution/") for row in rows[:2] for tag in row)
    other = build(lightweighting={"resolution": {0: 0.5, 1: 1.0}})
    other.train_round(0)
    assert digest(other) not in digests


@pytest.mark.parametrize("depth", [vgg11, vgg16])
@pytest.mark.parametrize("sides", [(8, 8), (12, 12), (1, 5)])
def test_vgg_embeds_images_smaller_than_those_it_was_built_for(depth, sides: tuple[int, int]):
    torch.manual_seed(0)
    model = depth(ModelSpec(Features("images", (3, 16, 16)), 8, width=0.05, batch_norm=False))
    whole, small = torch.randn(2, 3, 16, 16), torch.randn(2, 3, *sides)
    assert model(small).isfinite().all()
    assert model(small).shape == (2, 8)
    pooled = whole
    for layer in model.features:  # of today's sides a pool is PyTorch's own, bit for bit
        pooled = nn.functional.max_pool2d(pooled, 2) if isinstance(layer, nn.MaxPool2d) else layer(pooled)
    assert torch.equal(model.embedding(pooled.flatten(1)), model(whole))


def test_a_run_that_is_not_done_with_smaller_images_is_not_used_yet(tmp_path):
    class Interrupted(vfl.Callback):
        def on_round(self, loop: Any, round_index: int, metrics: Any) -> None:
            if round_index == 1:
                raise KeyboardInterrupt

    file, run = tmp_path / "tiny.yaml", tmp_path / "run"
    file.write_text(json.dumps(TINY | {"lightweighting": {"resolution": {0: 0.5, 3: 1.0}}}))
    with pytest.raises(KeyboardInterrupt):
        vfl.train(file, run_dir=run, callbacks=[Interrupted()])
    with refused("run", "party_1"):
        vfl.Run(run).predict()
    vfl.train(file, run_dir=run, resume=True)
    assert len(vfl.Run(run).predict()) == 40
