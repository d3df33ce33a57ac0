"""Shifted views of an owner's own training images, learning rates by name, label smoothing."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from shorthand import assert_models, digest, parties_of, reference_of
from torch import Tensor

from vfl.base.random import generator
from vfl.config import ConfigError, OptimizerConfig, parse_experiment
from vfl.config.optimizer import Course
from vfl.core.augmentation import shift_images
from vfl.core.presence import batch_rows
from vfl.core.privacy import defences
from vfl.core.privacy.message_recorder import MessageRecorder
from vfl.core.server import HeadServer

PLAIN = {
    "feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8, "batch_norm": False},
    "head": {"hidden": [16]},
}
SHIFT = {"augmentation": {"shift": {1: 2}}}


def training(**changes):
    return {"steps_per_round": 4} | changes


def moved(image: Tensor, down: int, right: int) -> Tensor:
    """Shift an image [C, H, W]."""
    _, height, width = image.shape
    top, left = max(height, width) - down, max(height, width) - right
    return F.pad(image, (max(height, width),) * 4)[:, top : top + height, left : left + width]


def views(images: Tensor, round_index: int, number: int, party: str) -> Tensor:
    """All of a party's images as a pass of a round shows them, with shifts of up to 2 from round 1 on."""
    if round_index < 1:
        return images
    stream = generator(3, "augmentation", round_index, f"{party} pass {number}")
    shifts = torch.randint(-2, 3, (len(images), 2), generator=stream).tolist()
    return torch.stack([moved(image, *shift) for image, shift in zip(images, shifts, strict=True)])


def test_every_pixel_moves_with_its_own_row():
    images = torch.randn(5, 3, 4, 6)
    shifts = torch.tensor([[0, 0], [1, -2], [-3, 3], [2, 0], [0, 1]])
    expected = torch.stack([moved(image, *shift) for image, shift in zip(images, shifts.tolist(), strict=True)])
    assert torch.equal(shift_images(images, shifts), expected)
    last = shift_images(images.contiguous(memory_format=torch.channels_last), shifts)
    assert torch.equal(last, expected)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert shift_images(images[:0], shifts[:0]).shape == (0, 3, 4, 6)


@pytest.mark.parametrize("labels", ["shared", "server"])
def test_all_local_iterations_of_a_batch_see_one_picture(build, labels: str):
    # Four exchanges of a round are two passes over 48 rows, the second of which draws anew.
    server: HeadServer = build(data=SHIFT, models=PLAIN, training=training(labels=labels, local_iterations=2))
    parties = parties_of(server)
    naive = reference_of(server)
    for round_index in range(2):
        server.train_round(round_index)
        for exchange, rows in enumerate(batch_rows(3, round_index, 4, 48, 16)):
            naive.features = [views(party.train.features, round_index, exchange // 3, party.name) for party in parties]
            naive.exchange(rows)
    assert_models(server, naive.models, naive.head, rtol=2e-5, atol=1e-6)


def test_nothing_but_training_sees_them(build):
    shown, plain = build(data={"augmentation": {"shift": 2}}), build()
    assert shown.evaluate() == plain.evaluate()  # with statistics of training rows
    assert [party.macs for party in parties_of(shown)] == [party.macs for party in parties_of(plain)]
    metrics = shown.train_round(0), plain.train_round(0)
    costs = [{name: value for name, value in each.items() if "macs" in name or "bytes" in name} for each in metrics]
    assert costs[0] == costs[1]
    assert digest(shown) != digest(plain)
    for party, other in zip(parties_of(shown), parties_of(plain), strict=True):
        assert torch.equal(party.train.features, other.train.features)
        other.model.load_state_dict(party.model.state_dict())
        other.evaluated.forget()
    plain.trainer.head.load_state_dict(shown.trainer.head.state_dict())
    assert shown.evaluate() == plain.evaluate()


def test_an_audit_attacks_the_pictures_that_were_embedded(build):
    server = build(data={"augmentation": {"shift": 2}}, training=training())
    party = parties_of(server)[1]
    party.recorder = recorder = MessageRecorder(party.views)
    seen: list[Tensor] = []
    embed = party.passes.embed
    party.passes.embed = lambda inputs, weights: (seen.append(inputs[0]), embed(inputs, weights))[1]
    server.train_round(0)
    recorded = recorder.recording(party.name)
    assert recorded.shifts_N2 is not None
    assert torch.equal(shift_images(party.train.features[recorded.rows_N], recorded.shifts_N2), torch.cat(seen))


def test_distance_correlation_is_that_of_the_pictures_that_were_embedded(build, monkeypatch):
    privacy = {"embeddings": {"kind": "distance_correlation", "strength": 0.5}}
    server = build(data={"augmentation": {"shift": 2}}, training=training(local_iterations=2), privacy=privacy)
    party = parties_of(server)[0]
    seen: list[Tensor] = []
    correlated: list[Tensor] = []
    embed, correlation = party.passes.embed, defences.distance_correlation
    party.passes.embed = lambda inputs, weights: (seen.append(inputs[0]), embed(inputs, weights))[1]

    def watched(first: Tensor, second: Tensor) -> Tensor:
        correlated.append(first)
        return correlation(first, second)

    monkeypatch.setattr(defences, "distance_correlation", watched)
    server.train_round(0)
    own = [features for features in correlated if any(torch.equal(features, each.flatten(1)) for each in seen)]
    assert len(seen) == len(own) == 2 * 4


def rates(config: OptimizerConfig, rounds: int, steps: int) -> list[float]:
    return [config.rate_at(each, exchange, steps) for each in range(rounds) for exchange in range(steps)]


def test_rates_by_name_have_their_courses():
    steps = OptimizerConfig(learning_rate={0: 0.2, 1: 0.1}, warm_up=3)
    assert rates(steps, 2, 4) == pytest.approx([0.2 / 3, 0.4 / 3, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1])
    cosine = OptimizerConfig(learning_rate=0.2, schedule=Course(kind="cosine")).with_rounds(2)
    assert rates(cosine, 3, 2) == pytest.approx([0.2, 0.1 + 0.1 * 0.5**0.5, 0.1, 0.1 - 0.1 * 0.5**0.5, 0.0, 0.0])
    one_cycle = OptimizerConfig(learning_rate=0.2, schedule=Course(kind="one_cycle")).with_rounds(2)
    assert rates(one_cycle, 2, 5) == pytest.approx(
        [0.2 / 3, 0.4 / 3, 0.2, *(0.2 * left / 7 for left in range(7, 0, -1))]
    )
    assert OptimizerConfig(learning_rate=0.2, schedule=Course(kind="one_cycle", rounds=9)).with_rounds(
        2
    ).schedule == Course(kind="one_cycle", rounds=9)


@pytest.mark.parametrize("labels", ["shared", "server"])
def test_every_exchange_has_its_rate_on_both_sides(build, labels: str):
    # The replicas stay the server's head only if both step at the same rates, whatever the rounds ahead.
    named = {"learning_rate": 0.05, "schedule": "one_cycle"}
    server = build(training=training(labels=labels, staleness=1, local_iterations=2, optimizer=named), models=PLAIN)
    found: list[float] = []
    for holder in (server.trainer, parties_of(server)[0]):
        optimizer: Any = holder.optimizer
        step = optimizer.step
        optimizer.step = lambda step=step, own=optimizer: (found.append(own.param_groups[0]["lr"]), step())[1]
    for round_index in range(4):
        metrics = server.train_round(round_index)
        assert metrics.get("head_drift/party_1", 0.0) == 0.0
    expected = rates(server.config.training.optimizer, 4, 4)
    assert server.config.training.optimizer.schedule == Course(kind="one_cycle", rounds=4)
    assert sorted(found) == sorted(expected * 4)


def test_images_that_are_small_before_they_are_shifted_are_taken(build):
    data = {"augmentation": {"shift": {2: 2}}}
    server = build(data=data, lightweighting={"resolution": {0: 0.12, 2: 1.0}}, models=PLAIN)
    assert "resolution/party_1" in server.train_round(0)


def test_smoothed_labels_are_those_of_torch(build):
    server = build(training=training(label_smoothing=0.1))
    outputs, labels = torch.randn(6, 10), torch.arange(6)
    assert torch.equal(server.trainer.task.loss(outputs, labels), F.cross_entropy(outputs, labels, label_smoothing=0.1))
    assert server.trainer.task.test_loss(outputs, labels) == float(F.cross_entropy(outputs, labels, reduction="sum"))


def test_a_named_rate_needs_exchanges():
    for named, field in (({"schedule": "cosine"}, "schedule"), ({"warm_up": 5}, "warm_up")):
        clients = {"name": "x", "mode": "horizontal", "training": {"optimizer": {"learning_rate": 0.1} | named}}
        with pytest.raises(ConfigError, match=rf"training\.optimizer\.{field}: counts exchanges"):
            parse_experiment(clients)
