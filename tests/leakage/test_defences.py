"""Defences against their formulas, written out again; noise that follows from secret and values alone.

Shapes: B rows, D embedding width, F features.
"""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm
from shorthand import at_every_run, build_here, examples
from torch import nn
from torch.nn import functional

from vfl.config import ConfigError, OptimizerConfig
from vfl.core.head import HeadTrainer
from vfl.core.label_protocol import Batch, Received, ReturnGradients, gradient_scale
from vfl.core.losses import AmountLoss
from vfl.core.presence import RowMask, batch_rows
from vfl.core.privacy.defences import (
    Gaussian,
    MaxNorm,
    Noise,
    distance_correlation,
    secret_of,
)
from vfl.core.privacy.epsilon import epsilon_of, guarantees, movers
from vfl.core.tasks import Classification, Regression
from vfl.messages.control import EvaluatedModel, SampleRange
from vfl.messages.messages import Part, PartKind
from vfl.models.auxiliary import AuxiliaryHead
from vfl.models.mlp import MLP, MemberHeads, PlaceholderMLP
from vfl.runs.runtime import Runtime

NOISE = Noise(b"secret")


class Ones(Noise):
    """Noise of which every number is 1, so that formulas can be read off."""

    def of(self, values, *shape):
        return torch.ones(shape)


def rows(seed, count=5, width=3):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 1000), st.floats(0.1, 4))
@examples(25)
def test_max_norm_scales_rows_as_the_paper_says(seed, strength):
    gradients_BD = rows(seed)
    noisy_BD = MaxNorm(strength, Ones(b"")).apply(gradients_BD)
    longest = max(float(row.norm()) for row in gradients_BD)
    for before, after in zip(gradients_BD, noisy_BD, strict=True):
        factor = 1 + strength * math.sqrt(max(longest**2 / float(before.norm()) ** 2 - 1, 0))
        assert torch.allclose(after, before * factor, rtol=1e-4)


def test_after_max_norm_rows_are_expected_to_be_equally_long():
    gradients_BD = torch.tensor([[0.1, 0.0], [0.0, 2.0], [0.3, 0.4]])
    squares_B = torch.zeros(3)
    for draw in range(4000):
        squares_B += MaxNorm(1.0, Noise(secret_of(draw, "noise"))).apply(gradients_BD).square().sum(dim=1)
    assert torch.allclose(squares_B / 4000, torch.full((3,), 4.0), rtol=0.1)


def test_max_norm_leaves_rows_without_a_direction_alone():
    assert MaxNorm(1.0, NOISE).apply(torch.zeros(2, 3)).equal(torch.zeros(2, 3))
    assert MaxNorm(1.0, NOISE).apply(torch.zeros(0, 3)).shape == (0, 3)


@given(st.integers(0, 1000), st.floats(0.1, 4), st.floats(0.1, 10))
@examples(25)
def test_gaussian_clips_each_row_and_adds_noise_of_its_strength(seed, strength, clip):
    values_BD = rows(seed)
    noisy_BD = Gaussian(strength, clip, Ones(b"")).apply(values_BD)
    for before, after in zip(values_BD, noisy_BD, strict=True):
        clipped = before * min(1.0, clip / float(before.norm()))
        assert torch.allclose(after, clipped + strength * clip, rtol=1e-4, atol=1e-5)


def test_noise_is_standard_normal_and_follows_from_secret_and_values():
    values_BD = rows(0)
    drawn = NOISE.of(values_BD, 100_000)
    assert abs(float(drawn.mean())) < 0.02
    assert abs(float(drawn.std()) - 1) < 0.02
    assert drawn[:5].equal(NOISE.of(values_BD.clone(), 5))
    assert not drawn[:5].equal(Noise(b"another").of(values_BD, 5))
    assert not drawn[:5].equal(NOISE.of(values_BD + 1e-6, 5))


def reference_correlation(first, second):
    """Székely, Rizzo and Bakirov (2007), entry by entry."""

    def centred(points):
        n = len(points)
        a = [[math.dist(p, q) for q in points] for p in points]
        row = [sum(line) / n for line in a]
        column = [sum(a[i][j] for i in range(n)) / n for j in range(n)]
        total = sum(row) / n
        return [[a[i][j] - row[i] - column[j] + total for j in range(n)] for i in range(n)]

    a, b = centred(first), centred(second)
    n = len(first)
    pairs = [(a[i][j], b[i][j]) for i in range(n) for j in range(n)]
    covariance = sum(x * y for x, y in pairs)
    return math.sqrt(covariance / math.sqrt(sum(x * x for x, _ in pairs) * sum(y * y for _, y in pairs)))


@given(st.integers(0, 1000), st.integers(3, 8))
@examples(25)
def test_distance_correlation_is_the_definitions(seed, count):
    first, second = rows(seed, count).double(), rows(seed + 1, count, 2).double()
    expected = reference_correlation(first.tolist(), second.tolist())
    assert float(distance_correlation(first, second)) == pytest.approx(expected, rel=1e-6)


def test_distance_correlation_is_one_of_equals_and_has_the_slope_of_its_differences():
    first, second = rows(0, 6).double(), rows(1, 6, 2).double().requires_grad_()
    assert float(distance_correlation(first, first * 3 + 1)) == pytest.approx(1.0)
    assert torch.autograd.gradcheck(lambda moved: distance_correlation(first, moved), second)
    assert distance_correlation(first, torch.ones(6, 2)).isfinite()


@pytest.mark.parametrize(("strength", "releases"), [(4.0, 10), (20.0, 100), (0.5, 40)])
def test_epsilon_is_that_of_the_closed_form(strength, releases):
    # Gaussian differential privacy (Dong, Roth and Su, 2022): k releases of sensitivity 2 compose to mu = 2 sqrt(k)/s
    mu, delta = 2 * np.sqrt(releases) / strength, 1e-5

    def excess(epsilon):
        return norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2) - delta

    assert epsilon_of(strength, releases, delta) == pytest.approx(brentq(excess, 0, 700), rel=1e-6)
    assert epsilon_of(1e6, 1, delta) == 0


GAUSSIAN = {"privacy": {"embeddings": "gaussian"}}
ALONE = {"models": {"feature": {"kind": "mlp", "width": 0.2, "embedding_size": 8, "batch_norm": False}}}


def noisy_party(configure, **sections):
    return build_here(configure(**GAUSSIAN, **sections)).parties[0]


@pytest.mark.parametrize("model", ["new rows", "finished", "pruned"])
@pytest.mark.parametrize("normed", at_every_run([True, False], True))
def test_a_row_asked_in_many_companies_gets_the_same_noise(configure, model, normed: bool):
    party = noisy_party(configure, **({} if normed else ALONE))
    row, draw, answers = 7, torch.Generator().manual_seed(0), set()
    for size in range(1, 24):
        if model == "new rows":
            others = torch.randperm(40, generator=draw)[:size]
            company = torch.cat([others[others != row], torch.tensor([row])]).roll(size)
            place, embedding_nD = company.tolist().index(row), party.embed_new(party.test, company)
        else:
            kind: EvaluatedModel = model
            first = max(0, row - size % 8)
            place = row - first
            embedding_nD = party.evaluate(SampleRange(start=first, stop=row + size, model=kind), party.test)
        answers.add(embedding_nD[place].numpy().tobytes())
    assert len(answers) == 1
    exact_1D = party.evaluated.embed("finished", party.batch(party.test, torch.tensor([row])), 0.0)
    (answer,) = answers
    assert np.abs(np.frombuffer(answer, np.float32) - exact_1D[0].numpy()).max() > 1  # of a clip of 10


@pytest.mark.parametrize(
    ("samples", "batch_size", "steps", "rounds"), [(398, 200, 10, 2), (100, 32, 7, 3), (64, 16, 4, 5), (48, 16, 5, 4)]
)
def test_epsilon_counts_no_fewer_releases_than_a_row_has(configure, samples, batch_size, steps, rounds):
    config = configure(**GAUSSIAN, **ALONE, training={"batch_size": batch_size}, data={"train_samples": samples})
    told = guarantees(config, rounds, steps, samples)["embeddings"]["releases"]
    most = rounds * max(
        int(torch.cat(batch_rows(seed, 0, steps, samples, batch_size)).bincount().max()) for seed in range(20)
    )
    assert most == told  # some row in each round; whether it is the same one in all, chance decides


def test_rounds_that_parties_train_alone_release_no_embedding(configure):
    told = []
    for local_rounds in (0, 1, 2):
        config = configure(**GAUSSIAN, **ALONE, training={"rounds": 2, "batch_size": 16, "local_rounds": local_rounds})
        server = build_here(config).server
        for number in range(2):
            server.train_round(number)
        told.append(server.summary().get("privacy", {}).get("embeddings", {"releases": 0})["releases"])
    assert told == [2, 1, 0]


def test_by_batch_norm_a_row_moves_its_whole_batch_and_epsilon_says_so(configure):
    batch_size, clip = 16, 10.0
    normed, alone = configure(**GAUSSIAN), configure(**GAUSSIAN, **ALONE)
    told = [guarantees(config, 1, 3, 48)["embeddings"]["epsilon"] for config in (normed, alone)]
    assert told == [epsilon_of(1 / math.sqrt(batch_size), 1, 1 / 480), epsilon_of(1, 1, 1 / 480)]
    assert guarantees(normed, 1, 3, 48).keys() == {"embeddings"}
    assert any("by BatchNorm a row moves its whole batch" in line for line in normed.warnings())
    assert not any("BatchNorm" in line for line in alone.warnings())
    party = noisy_party(configure)
    defence = Gaussian(0.0, clip, NOISE)
    (images_B,) = party.batch(party.train, torch.arange(batch_size))
    party.model.train()
    replaced_B = torch.cat([1000 * images_B[1:2], images_B[1:]])
    moved = [defence.apply(1e3 * party.model(images).detach()) for images in (images_B, replaced_B)]
    assert 2 * clip < float((moved[0] - moved[1]).norm()) <= 2 * clip * math.sqrt(batch_size)


class Centred(nn.Module):
    """Subtracts the batch's mean in training, and nothing else."""

    def forward(self, values_BD):
        return values_BD - values_BD.mean(dim=0) if self.training else values_BD


@pytest.mark.parametrize("mixing", [nn.BatchNorm1d(8), Centred()])
@pytest.mark.parametrize("noisy", ["embeddings", "gradients"])
def test_a_model_with_batch_norm_that_its_settings_deny_is_refused(configure, monkeypatch, mixing, noisy):
    built = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.Dropout(0.5), mixing)
    monkeypatch.setattr("vfl.core.build.build_feature_model", lambda *_: built)
    config = configure(privacy={noisy: "gaussian"}, training={"labels": "server"}, **ALONE)
    with pytest.raises(ConfigError, match=r"models: party_1's model has BatchNorm.*set its batch_norm to true"):
        build_here(config)
    monkeypatch.setattr("vfl.core.build.build_feature_model", lambda *_: built[:3])
    assert build_here(config).parties


BATCH, WIDTH, CLIP = 16, 4, 0.05


def uneven(outputs_BC, targets_B):
    """A loss of the user's own that is no mean over rows."""
    return outputs_BC.mean(dim=0).square().sum() + functional.cross_entropy(outputs_BC, targets_B)


def head_of(*layers):
    return nn.Sequential(nn.Linear(2 * WIDTH, 8), *layers, nn.Linear(8, 3))


TASKS = {
    "cross-entropy": {},
    "smoothing": {"task": Classification(3, smoothing=0.2)},
    "focal": {"task": Classification(3, gamma=2.0)},
    "regression": {"task": Regression(1.0, 2.0)},
    "huber": {"task": Regression(1.0, 2.0, by=AmountLoss("huber", 0.5))},
    "pinball": {"task": Regression(1.0, 2.0, by=AmountLoss("pinball", quantile=0.2))},
    "members": {"head": MemberHeads([MLP(WIDTH, [8], 3) for _ in range(2)], [WIDTH, WIDTH])},
    "placeholders": {"head": PlaceholderMLP(2 * WIDTH, [8], 3), "missing": 0.3},
    "classifiers": {"head": AuxiliaryHead(MLP(2 * WIDTH, [8], 3), [WIDTH, WIDTH], 3), "missing": 0.3},
    "classifiers of members": {
        "head": AuxiliaryHead(MemberHeads([MLP(WIDTH, [8], 3) for _ in range(2)], [WIDTH] * 2), [WIDTH] * 2, 3, 2)
    },
    "classifiers and class weights": {
        "head": AuxiliaryHead(MLP(2 * WIDTH, [8], 3), [WIDTH, WIDTH], 3),
        "task": Classification(3, weights=(1.0, 9.0, 0.1)),
        "moved": True,
    },
    "own head": {"head": head_of(nn.LayerNorm(8), nn.GELU())},
    "weights": {"weights": 30.0, "moved": True},
    "weighted amounts": {"task": Regression(1.0, 2.0), "weights": 300.0, "moved": True},
    "class weights": {"task": Classification(3, weights=(1.0, 9.0, 0.1)), "moved": True},
    "focal with class weights": {"task": Classification(3, weights=(1.0, 9.0, 0.1), gamma=1.0), "moved": True},
    "normalising head": {"head": head_of(nn.BatchNorm1d(8)), "moved": True},
    "centring head": {"head": head_of(Centred()), "moved": True},
    "own loss": {"own_loss": uneven, "moved": True},
}
"""What decides a row's gradient: heads, losses and weights. ``moved``: one row moves those of others, too."""


def gradients_of(trainer, embeddings, labels_B, weights_B, masks):
    """Return all gradients that the server returns, before the noise, in units of the clipping length."""
    trainer = copy.deepcopy(trainer)
    sent = []

    class Sender:
        def send(self, gradient_nD, rows_n):
            sent.append((rows_n, gradient_nD / gradient_scale(BATCH) * BATCH / CLIP))
            return Part(PartKind.GRADIENT, b"")

    received = [
        Received(Part(PartKind.EMBEDDING, b""), mask.spread(mask.rows_of(each_BD), trainer.missing), mask)
        for each_BD, mask in zip(embeddings, masks, strict=True)
    ]
    senders: Any = [Sender(), Sender()]
    protocol = ReturnGradients(senders, Gaussian(0.0, CLIP, NOISE))
    protocol.begin(
        trainer, Batch(torch.arange(BATCH), labels_B, received, [each.embedding_BD for each in received], weights_B)
    )
    return [torch.zeros(BATCH, WIDTH).index_copy(0, *each) for each in sent]


def moves(configure, kind, seed):
    """Replace a batch's first row; return the ``movers``, and how far each row of either party's gradient moves."""
    made, draw = TASKS[kind], torch.Generator().manual_seed(seed)
    config = configure(privacy={"gradients": "gaussian"}, training={"labels": "server"}, **ALONE)
    task = made.get("task", Classification(3))
    torch.manual_seed(seed)
    head = made.get("head", head_of(nn.ReLU()) if isinstance(task, Classification) else MLP(2 * WIDTH, [8], 1))
    runtime = Runtime(torch.device("cpu"))
    trainer = HeadTrainer(head, task, OptimizerConfig(), runtime, own_loss=made.get("own_loss"), auxiliary=1.0)
    masks = [RowMask.of(torch.rand(BATCH, generator=draw) >= made.get("missing", 0.0)) for _ in range(2)]
    first, second = ([torch.randn(BATCH, WIDTH, generator=draw) for _ in range(2)] for _ in range(2))
    replaced = [torch.cat([10 * other[:1], own[1:]]) for own, other in zip(first, second, strict=True)]
    labels_B, weights_B = torch.randint(3, (BATCH,), generator=draw), torch.ones(BATCH, dtype=torch.float64)
    others_B = torch.cat([(labels_B[:1] + 1) % 3, labels_B[1:]])
    heavy_B = torch.cat([weights_B[:1] * made.get("weights", 1.0), weights_B[1:]])
    batches = [(first, labels_B, weights_B), (replaced, others_B, heavy_B)]
    then, now = (
        gradients_of(trainer, embeddings, task_labels(task, labels), weights if "weights" in made else None, masks)
        for embeddings, labels, weights in batches
    )
    moved = [(after - before).norm(dim=1) for before, after in zip(then, now, strict=True)]
    return movers(config, trainer, weighted="weights" in made), moved


def task_labels(task, labels_B):
    return labels_B if isinstance(task, Classification) else labels_B.double()


@pytest.mark.parametrize("kind", TASKS)
@given(seed=st.integers(0, 1000))
@examples(20)
def test_a_replaced_row_moves_the_gradients_no_farther_than_epsilon_counts(configure, kind, seed):
    """By two clips its own gradient, and where epsilon counts the whole batch each other one."""
    moved_by, moved = moves(configure, kind, seed)
    assert bool(moved_by) == ("moved" in TASKS[kind])
    for moved_B in moved:
        assert moved_B.max() <= 2.001
        assert moved_by or moved_B[1:].max() <= 1e-4


@pytest.mark.parametrize("kind", [kind for kind in TASKS if "moved" in TASKS[kind]])
def test_a_row_does_move_its_batch_where_epsilon_counts_it(configure, kind):
    _, moved = moves(configure, kind, 0)
    assert max(float(moved_B[1:].norm()) for moved_B in moved) > 0.05


def test_epsilon_of_gradients_counts_the_whole_batch_where_a_row_moves_it(configure):
    config = configure(privacy={"gradients": "gaussian"}, training={"labels": "server"}, **ALONE)
    alone, moved = (guarantees(config, 1, 3, 48, by)["gradients"]["epsilon"] for by in ([], ["weights"]))
    assert [alone, moved] == [epsilon_of(1, 1, 1 / 480), epsilon_of(1 / 4, 1, 1 / 480)]
