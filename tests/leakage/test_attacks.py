"""Attacks on planted cases, whose answer is known in closed form or by construction, and on controls that hold nothing.

Shapes: N rows, D embedding width, F features, C classes.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from shorthand import release
from sklearn.metrics import roc_auc_score
from torch import nn

from vfl.audit import embeddings
from vfl.audit.embeddings import cluster_leak, completion_gain, decode_embeddings
from vfl.audit.gradients import direction_leak, inversion_leak, inverted_labels, norm_leak
from vfl.base.estimates import auc, best_assignment, bootstrap
from vfl.models.mlp import MLP

ROWS = 400


@pytest.fixture
def stream():
    return np.random.default_rng(7)


def gradients_of(head, embeddings_ND, labels_N):
    """What an owner receives: the gradients of the summed cross-entropy at its embeddings."""
    inputs = torch.as_tensor(embeddings_ND, dtype=torch.float32).requires_grad_()
    loss = F.cross_entropy(head(inputs), torch.as_tensor(labels_N), reduction="sum")
    return torch.autograd.grad(loss, inputs)[0].numpy()


def rare_class(stream, share=0.06):
    labels_N = (stream.random(ROWS) < share).astype(np.int64)
    embeddings_ND = stream.normal(size=(ROWS, 8)) + labels_N[:, None]
    return embeddings_ND, labels_N


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auc_is_scikit_learns_ties_included(pairs):
    scores, positive = np.array([float(score) for score, _ in pairs]), np.array([label for _, label in pairs])
    if positive.all() or not positive.any():
        assert np.isnan(auc(scores, positive))
    else:
        assert auc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


def test_the_best_names_of_groups_are_found(stream):
    labels_N = stream.integers(5, size=ROWS)
    names = stream.permutation(5)
    assert (best_assignment(np.argsort(names)[labels_N], labels_N, 5) == names).all()


def test_nineteen_of_twenty_intervals_hold_the_truth():
    held = 0
    for seed in range(100):
        rows = np.random.default_rng(seed)
        sample = rows.normal(size=60)
        held += bootstrap(lambda drawn, sample=sample: float(sample[drawn].mean()), 60, rows).holds(0.0)
    assert held >= 87  # 95 % expected; 86 or fewer has probability below 0.1 %


def test_a_rare_class_shows_in_the_length_of_gradients(stream):
    embeddings_ND, labels_N = rare_class(stream)
    # A head that predicts the share of the rare class for all: |p - y| is .94 for it and .06 for the others.
    head = nn.Linear(8, 2)
    nn.init.normal_(head.weight, std=0.01, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        head.bias.copy_(torch.log(torch.tensor([0.94, 0.06])))
    leak = norm_leak(gradients_of(head, embeddings_ND, labels_N), labels_N, 2, stream)
    assert leak.value == 1.0


def test_the_sign_of_p_minus_y_shows_in_the_direction(stream):
    embeddings_ND, labels_N = rare_class(stream, share=0.3)
    gradients_ND = gradients_of(nn.Linear(8, 2), embeddings_ND, labels_N)
    assert direction_leak(gradients_ND, labels_N, 2, stream).value == 1.0


def test_clues_leave_rows_of_small_classes_to_be_told(stream):
    labels_N = np.repeat(np.arange(10), 8)
    assert direction_leak(np.eye(10)[labels_N], labels_N, 10, stream).value == 1.0


@pytest.mark.parametrize("classes", [2, 5])
def test_permuted_labels_are_not_found(stream, classes):
    labels_N = stream.integers(classes, size=ROWS)
    gradients_ND = gradients_of(nn.Linear(8, classes), stream.normal(size=(ROWS, 8)), labels_N)
    permuted_N = stream.permutation(labels_N)
    assert abs(norm_leak(gradients_ND, permuted_N, classes, stream).value - 0.5) < 0.1
    assert abs(direction_leak(gradients_ND, permuted_N, classes, stream).value - 0.5) < 0.05


@pytest.mark.release
@pytest.mark.parametrize(("hidden", "share"), [((), 0.97), release((16,), 0.65)])
def test_a_head_of_known_shape_is_inverted(stream, hidden, share):
    labels_N = stream.choice(3, size=ROWS, p=[0.5, 0.3, 0.2])
    embeddings_ND = stream.normal(size=(ROWS, 16))
    torch.manual_seed(3)
    head = MLP(16, hidden, 3)
    guesses_N = inverted_labels(
        embeddings_ND, gradients_of(head, embeddings_ND, labels_N), hidden, np.array([0.5, 0.3, 0.2]), seed=0
    )
    assert inversion_leak(guesses_N, labels_N, 3, stream).value > share


@pytest.mark.release
def test_gradients_of_other_rows_invert_to_chance(stream):
    labels_N = stream.integers(3, size=ROWS)
    embeddings_ND = stream.normal(size=(ROWS, 16))
    gradients_ND = stream.permutation(gradients_of(MLP(16, (16,), 3), embeddings_ND, labels_N))
    guesses_N = inverted_labels(embeddings_ND, gradients_ND, (16,), np.full(3, 1 / 3), seed=0)
    assert inversion_leak(guesses_N, labels_N, 3, stream).value < 0.45


@pytest.mark.release
@pytest.mark.parametrize(("kind", "low", "high"), [("linear", 0.0, 0.1), ("rare", 0.0, 0.2), ("nothing", 0.97, 1.1)])
def test_what_an_embedding_holds_is_undone_and_no_more(stream, kind, low, high):
    """Of a linear one that keeps its width all, also where a feature shows in no known row; of noise the mean."""
    features_NF = stream.normal(size=(1500, 6))
    if kind == "rare":
        features_NF[:, 5] = stream.random(1500) * 1e-3
        others = np.random.default_rng(0).permutation(1500)[500:]
        features_NF[others[:9], 5] = 5.0  # as a pixel at an image's edge
    seen_NF = features_NF[:, :5] if kind == "rare" else features_NF
    embeddings_ND = seen_NF @ stream.normal(size=(seen_NF.shape[1], 12))
    if kind == "nothing":
        embeddings_ND = stream.normal(size=(1500, 12))
    again, known = np.random.default_rng(0), 1000 if kind == "linear" else 500
    decoded = decode_embeddings(embeddings_ND, features_NF, known, table=False, stream=again, seed=0)
    assert low < decoded.error.value < high
    assert decoded.error.high < high
    assert decoded.exact is None


@pytest.mark.release
def test_a_tables_whole_numbers_are_recovered_exactly(stream):
    features_NF = stream.integers(3, size=(1500, 4)).astype(float)
    embeddings_ND = features_NF @ stream.normal(size=(4, 12))
    decoded = decode_embeddings(embeddings_ND, features_NF, 1000, table=True, stream=stream, seed=0)
    assert decoded.exact is not None
    assert decoded.exact.low > 0.9


def test_separated_groups_are_the_labels(stream):
    labels_N = stream.integers(4, size=ROWS)
    embeddings_ND = 10 * np.eye(8)[labels_N] + stream.normal(size=(ROWS, 8))
    assert cluster_leak(embeddings_ND, labels_N, 4, stream, seed=0).value == 1.0
    assert cluster_leak(embeddings_ND, stream.permutation(labels_N), 4, stream, seed=0).high < 0.4


def test_completion_gains_what_only_the_joint_model_knows(stream):
    labels_N = stream.integers(2, size=ROWS)
    noise = torch.as_tensor(stream.normal(size=(ROWS, 5)), dtype=torch.float32)

    def gain(embeddings_ND, features):
        return completion_gain(embeddings_ND, (features,), labels_N, 2, 40, lambda: nn.Linear(5, 4), seed=0)

    telling_ND = stream.normal(size=(ROWS, 8)) + 3 * labels_N[:, None]
    assert gain(telling_ND, noise).low > 0.3
    # What the features say themselves is no gain of joint training.
    assert gain(telling_ND, noise + 3 * torch.as_tensor(labels_N)[:, None]).high < 0.1
    assert gain(stream.normal(size=(ROWS, 8)), noise).holds(0.0)


@pytest.mark.release
def test_a_model_of_the_known_rows_alone_is_normalised_by_their_statistics(stream):
    # Circles, which no straight line tells apart: a fresh model does after a few steps, far from its first statistics.
    labels_N = stream.integers(2, size=ROWS)
    angles_N = stream.uniform(0, 2 * np.pi, size=ROWS)
    circles_N2 = 100 + np.stack([np.cos(angles_N), np.sin(angles_N)], axis=1) * (1 + 3 * labels_N)[:, None]
    features = torch.as_tensor(circles_N2, dtype=torch.float32)

    def fresh():
        return nn.Sequential(nn.Linear(2, 2048), nn.BatchNorm1d(2048), nn.ReLU())

    # An embedding that is the label: what is gained over a good model of 160 rows alone is little.
    embeddings_ND = np.eye(2)[labels_N]
    assert completion_gain(embeddings_ND, (features,), labels_N, 2, 160, fresh, seed=0).high < 0.2


@pytest.mark.parametrize("rows", [700, 1400])
def test_the_work_of_completion_does_not_grow_with_the_rows(stream, rows):
    passed = list[int]()

    def counted():
        model = nn.Linear(5, 4)
        model.register_forward_hook(lambda _, inputs, __: passed.append(len(inputs[0])))
        return model

    # Labels of noise are not fitted, so that all steps are done.
    labels_N, noise = stream.integers(2, size=rows), torch.randn(rows, 5)
    embeddings_ND = stream.normal(size=(rows, 8))
    completion_gain(embeddings_ND, (noise,), labels_N, 2, 160, counted, seed=0)
    trained = embeddings.SCRATCH_STEPS * embeddings.SCRATCH_BATCH
    # Besides a row that tells the width, and the pass over the known rows that refreshes statistics.
    assert sum(passed) == embeddings.REPETITIONS * (1 + trained + 160 + embeddings.SCORED_ROWS)
