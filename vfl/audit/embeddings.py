"""Labels and features from embeddings.

- completion: an owner turns its own feature model into a classifier with a few labelled rows. Fu et al., "Label
  Inference Attacks Against Vertical Federated Learning", USENIX Security 2022, section 4.1 (without its
  semi-supervised step, so that this is a lower bound of it).
- decoding: the server or a peer who knows some rows learns to undo an embedding. He, Zhang and Lee, "Attacking and
  Protecting Data Privacy in Edge-Cloud Collaborative Inference Systems", ACSAC 2019, the inverse network.
- clusters: labels without a single labelled row, by the groups that embeddings form (arXiv:2603.03777).

Shapes: N rows, D embedding width, F features of a row, C classes, m known rows.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's and scikit-learn's own signatures are partly untyped.

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vfl.base.estimates import Estimate, Floats, Ints, best_assignment, bootstrap, over_seeds
from vfl.base.random import generator, seeded
from vfl.models.mlp import MLP

REPETITIONS = 5
"""Draws of the known rows."""
SCORED_ROWS = 500
"""Most rows on which models are scored in each draw: each is a pass of a fresh feature model."""
SCRATCH_STEPS = 60
FITTED = 0.05
"""A model trained only on the known rows is finished below this loss."""
SCRATCH_BATCH = 64
DECODER_HIDDEN = (256, 256)
DECODER_STEPS = 600
DECODER_BATCH = 128
CHECK_EVERY = 20
"""Steps between evaluations on held-out rows; the best decoder is kept."""
LEARNING_RATE = 1e-3
LEAST_SPREAD = 0.1
"""Least standard deviation of a feature that is decoded, as a share of the largest."""


def completion_gain(
    embeddings_ND: Floats,
    features: tuple[Tensor, ...],
    labels_N: Ints,
    classes: int,
    known: int,
    fresh: Callable[[], nn.Module],
    seed: int,
) -> Estimate:
    """Return by how much a completed model beats one trained on the same known rows, in accuracy on other rows.

    Completed: logistic regression on the embeddings of the owner's trained model. From scratch: the better of a
    ``fresh`` feature model trained on the known rows and logistic regression on their features, so that the gain is due
    to joint training alone. The interval is over draws of the known rows.
    """
    flat_NF = flat_features(features)
    gains = list[float]()
    for repetition in range(REPETITIONS):
        m, other_rows = _known_rows(labels_N, known, seed + repetition)
        scored_rows = other_rows[:SCORED_ROWS]
        completed = _probe_accuracy(embeddings_ND, labels_N, m, scored_rows)
        linear = _probe_accuracy(flat_NF, labels_N, m, scored_rows)
        trained = _from_scratch(fresh, features, labels_N, classes, m, scored_rows, seed + repetition)
        gains.append(completed - max(linear, trained))
    return over_seeds(gains)


@dataclass(frozen=True)
class Decoded:
    """Errors of a decoder on the embeddings of unseen rows."""

    error: Estimate
    """Mean squared error relative to that of predicting the known rows' mean; 1 means that nothing was learned."""
    exact: Estimate | None
    """Share of a table's values that are hit exactly, given the known rows' values; None for images."""


def decode_embeddings(
    embeddings_ND: Floats, features_NF: Floats, known: int, *, table: bool, stream: np.random.Generator, seed: int
) -> Decoded:
    """Train a decoder on ``known`` pairs of embedding and features; measure it on the other rows.

    Features count alike, whatever their unit. Those that hardly vary among the known pairs are left out: in units of
    their own spread there, other rows would be so far off that nothing else counted.
    """
    order = stream.permutation(len(embeddings_ND))
    m, test_rows = order[:known], order[known:]
    mean_F, std_F = features_NF[m].mean(axis=0), features_NF[m].std(axis=0)
    varies_F = std_F > LEAST_SPREAD * std_F.max()
    targets = torch.as_tensor(((features_NF[:, varies_F] - mean_F[varies_F]) / std_F[varies_F]).astype(np.float32))
    centre_D, scale = embeddings_ND[m].mean(axis=0), embeddings_ND[m].std() or 1.0
    inputs = torch.as_tensor(((embeddings_ND - centre_D) / scale).astype(np.float32))
    decoder = _train_decoder(inputs[m], targets[m], seed)
    with torch.inference_mode():
        decoded_nF = decoder(inputs[test_rows]).numpy()
    truth_nF = targets[test_rows].numpy()
    errors_n, spread_n = ((decoded_nF - truth_nF) ** 2).sum(axis=1), (truth_nF**2).sum(axis=1)
    error = bootstrap(lambda rows: float(errors_n[rows].sum() / spread_n[rows].sum()), len(test_rows), stream)
    if not table:
        return Decoded(error, None)
    hit_nF = np.stack(
        [_nearest_centres(targets[m, f].numpy(), decoded_nF[:, f]) == truth_nF[:, f] for f in range(truth_nF.shape[1])],
        axis=1,
    )
    hits_n = hit_nF.mean(axis=1)
    return Decoded(error, bootstrap(lambda rows: float(hits_n[rows].mean()), len(test_rows), stream))


def cluster_leak(
    embeddings_ND: Floats, labels_N: Ints, classes: int, stream: np.random.Generator, seed: int
) -> Estimate:
    """Return the share of labels that clusters of the embeddings predict, under the best naming of the clusters."""
    from sklearn.cluster import KMeans  # pyright: ignore[reportMissingTypeStubs]  # slow to import

    norms_N1 = np.linalg.norm(embeddings_ND, axis=1, keepdims=True)
    library: Any = KMeans
    clusters_N = library(classes, n_init=4, random_state=seed).fit_predict(embeddings_ND / np.maximum(norms_N1, 1e-30))
    right_N = best_assignment(clusters_N, labels_N, classes)[clusters_N] == labels_N
    return bootstrap(lambda rows: float(right_N[rows].mean()), len(labels_N), stream)


def _known_rows(labels_N: Ints, known: int, seed: int) -> tuple[Ints, Ints]:
    """Return ``known`` rows, at least one of each class if possible, and all others."""
    order = np.random.default_rng(seed).permutation(len(labels_N))
    first = [order[labels_N[order] == label][0] for label in np.unique(labels_N)][:known]
    remaining = order[~np.isin(order, first)]
    return np.concatenate([first, remaining[: known - len(first)]]), remaining[known - len(first) :]


def _probe_accuracy(inputs_NF: Floats, labels_N: Ints, m: Ints, test_rows: Ints) -> float:
    """Return the accuracy on the other rows of logistic regression on the known ones."""
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingTypeStubs]  # slow to import

    mean_F, std_F = inputs_NF[m].mean(axis=0), inputs_NF[m].std(axis=0)
    standard_NF = (inputs_NF - mean_F) / np.where(std_F > 1e-9, std_F, 1.0)
    if len(np.unique(labels_N[m])) == 1:
        return float((labels_N[test_rows] == labels_N[m[0]]).mean())
    model: Any = LogisticRegression(max_iter=1000).fit(standard_NF[m], labels_N[m])
    return float(model.score(standard_NF[test_rows], labels_N[test_rows]))


def _from_scratch(
    fresh: Callable[[], nn.Module],
    features: tuple[Tensor, ...],
    labels_N: Ints,
    classes: int,
    m: Ints,
    test_rows: Ints,
    seed: int,
) -> float:
    """Return the accuracy on the other rows of a fresh feature model and a linear layer trained on the known ones."""
    known_features, labels_m = [tensor[m] for tensor in features], torch.as_tensor(labels_N[m])
    with seeded(seed, "from scratch"):
        model = fresh()
        with torch.inference_mode():
            width = model.eval()(*[tensor[:1] for tensor in known_features]).shape[1]
        network = nn.ModuleList([model, nn.Linear(width, classes)]).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=True)
        for _ in range(SCRATCH_STEPS):
            rows = torch.randperm(len(labels_m))[:SCRATCH_BATCH]
            optimizer.zero_grad()
            loss = F.cross_entropy(network[1](network[0](*[tensor[rows] for tensor in known_features])), labels_m[rows])
            loss.backward()
            optimizer.step()
            if loss.item() < FITTED:
                break
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                layer.momentum = 1.0  # so few steps hardly refresh the statistics: one pass over all rows does
        with torch.no_grad():
            model(*known_features)
    network.eval()
    right = 0
    with torch.inference_mode():
        for rows in torch.as_tensor(test_rows).split(512):
            predicted = network[1](network[0](*[tensor[rows] for tensor in features])).argmax(dim=1)
            right += int((predicted == torch.as_tensor(labels_N)[rows]).sum())
    return right / len(test_rows)


def _train_decoder(inputs_mD: Tensor, targets_mF: Tensor, seed: int) -> nn.Module:
    held_out = max(1, len(inputs_mD) // 5)
    with seeded(seed, "decoder"):
        decoder = MLP(inputs_mD.shape[1], DECODER_HIDDEN, targets_mF.shape[1])
    # It begins as the mean, and is that again if nothing can be learned.
    nn.init.zeros_(decoder.output.weight)
    nn.init.zeros_(decoder.output.bias)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=LEARNING_RATE)
    stream = generator(seed, "decoder batches")
    # Clones, as a state_dict shares the weights' memory.
    best, best_weights = float("inf"), {name: weight.clone() for name, weight in decoder.state_dict().items()}
    for step in range(DECODER_STEPS):
        if step % CHECK_EVERY == 0:
            with torch.inference_mode():
                error = float(F.mse_loss(decoder(inputs_mD[:held_out]), targets_mF[:held_out]))
            if error < best:
                best, best_weights = error, {name: weight.clone() for name, weight in decoder.state_dict().items()}
        rows = torch.randint(held_out, len(inputs_mD), (DECODER_BATCH,), generator=stream)
        optimizer.zero_grad()
        F.mse_loss(decoder(inputs_mD[rows]), targets_mF[rows]).backward()
        optimizer.step()
    decoder.load_state_dict(best_weights)
    return decoder


def _nearest_centres(known_m: Floats, guesses_n: Floats) -> Floats:
    """Return, for each guess, the nearest of the known values."""
    values = np.unique(known_m)
    above = np.clip(np.searchsorted(values, guesses_n), 1, max(len(values) - 1, 1))
    if len(values) == 1:
        return np.full_like(guesses_n, values[0])
    lower, upper = values[above - 1], values[above]
    return np.where(guesses_n - lower <= upper - guesses_n, lower, upper)


def flat_features(features: tuple[Tensor, ...]) -> Floats:
    """Return a sample's tensors [N, ...] as one row of numbers, [N, F]."""
    return np.concatenate([tensor.float().flatten(1).numpy() for tensor in features], axis=1)
