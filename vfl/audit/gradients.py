"""Labels from the gradients that an owner receives (``training.labels: server``).

The gradient of the cross-entropy at an embedding is J^T (p - y), with J the head's derivative at that row. Its length
grows with the error p - y, which is larger for a rare class; its direction depends on y.

- norm, direction: Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022, section 3.
- inversion: Kariyappa and Qureshi, "ExPLoit: Extracting Private Labels in Split Learning", SaTML 2023: a surrogate head
  and surrogate labels are trained until their gradients are those that came. Fu et al., "Label Inference Attacks
  Against Vertical Federated Learning", USENIX Security 2022, section 4.3, is its case without a head, where the sign is
  enough.

Shapes: N rows, D embedding width, C classes.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's own signatures are partly untyped.

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vfl.base.estimates import Estimate, Floats, Ints, auc, best_assignment, bootstrap
from vfl.base.random import generator, seeded
from vfl.models.mlp import MLP

CLUES = 8
"""Rows of each class with known label; a direction attack uses one at a time."""
STEPS = 400
STARTS = 3
"""Number of starts; the one that explains the gradients best is kept, as the attacker can do."""
LEARNING_RATE = 0.02
PRIOR_WEIGHT = 1.0
"""Weight of the surrogate labels' mean against the known shares of the classes."""


def norm_leak(gradients_ND: Floats, labels_N: Ints, classes: int, stream: np.random.Generator) -> Estimate:
    """Return the AUC with which the length of a row's gradient predicts its class.

    With two classes the AUC of the rarer one; with more the mean over each against the rest.
    """
    norms_N = np.linalg.norm(gradients_ND, axis=1)
    target_classes = [int(labels_N.mean() < 0.5)] if classes == 2 else range(classes)  # of two the rarer one

    def leak(rows: Ints) -> float:
        return _mean_estimate([auc(norms_N[rows], labels_N[rows] == label) for label in target_classes])

    return bootstrap(leak, len(labels_N), stream)


def direction_leak(gradients_ND: Floats, labels_N: Ints, classes: int, stream: np.random.Generator) -> Estimate:
    """Return the AUC with which the cosine to one row of a known class predicts which rows have that class.

    The mean is over up to `CLUES` known rows of each class, at most half of it, which are not scored themselves.
    """
    unit_ND = gradients_ND / np.maximum(np.linalg.norm(gradients_ND, axis=1, keepdims=True), 1e-30)
    clues = [
        (label, clue)
        for label in range(classes)
        for clue in stream.permutation(np.flatnonzero(labels_N == label))[
            : min(CLUES, int((labels_N == label).sum()) // 2)
        ]
    ]
    test_rows = np.setdiff1d(np.arange(len(labels_N)), [clue for _, clue in clues])
    cosines = [(label, unit_ND[test_rows] @ unit_ND[clue]) for label, clue in clues]

    def leak(rows: Ints) -> float:
        return _mean_estimate([auc(cosine[rows], labels_N[test_rows][rows] == label) for label, cosine in cosines])

    return bootstrap(leak, len(test_rows), stream)


def inverted_labels(
    embeddings_ND: Floats, gradients_ND: Floats, hidden: Sequence[int], prior_C: Floats, seed: int
) -> Ints:
    """Return the class [N] of each row, up to the classes' names, under which a head explains the gradients.

    The attacker has the embeddings that it sent, the gradients that came back, the head's hidden widths and the shares
    of the classes. A surrogate head sees only its own embedding, as the attacker does.
    """
    standard_ND = (embeddings_ND - embeddings_ND.mean(axis=0)) / (embeddings_ND.std() or 1.0)
    embeddings, shares_C = (torch.as_tensor(np.asarray(each, dtype=np.float32)) for each in (standard_ND, prior_C))
    gradients = torch.as_tensor(np.asarray(gradients_ND, dtype=np.float32))
    gradients = gradients / gradients.norm(dim=1).mean().clamp(min=1e-30)
    starts = [_invert_gradients(embeddings, gradients, hidden, shares_C, seed + start) for start in range(STARTS)]
    return min(starts, key=lambda fit: fit[0])[1]


def _invert_gradients(
    embeddings: Tensor, gradients: Tensor, hidden: Sequence[int], prior_C: Tensor, seed: int
) -> tuple[float, Ints]:
    """Return a surrogate head's final error in explaining the gradients, and its labels."""
    with seeded(seed, "surrogate head"):
        head = MLP(embeddings.shape[1], list(hidden), len(prior_C))
    # Not zero: all classes would stay alike, as nothing tells one from another.
    start = torch.randn(len(embeddings), len(prior_C), generator=generator(seed, "surrogate labels"))
    guesses_NC = (0.1 * start).requires_grad_()
    scale = torch.zeros((), requires_grad=True)  # logarithm of the factor between the two heads' gradients
    optimizer = torch.optim.Adam([*head.parameters(), guesses_NC, scale], lr=LEARNING_RATE)
    objective = torch.zeros(())
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = embeddings.clone().requires_grad_()
        labels_NC = guesses_NC.softmax(dim=1)
        loss = F.cross_entropy(head(inputs), labels_NC, reduction="sum")
        # With a graph of its own: the error is a function of this gradient, and is descended itself.
        (explained,) = torch.autograd.grad(loss, inputs, create_graph=True)
        error = (explained * scale.exp() - gradients).square().sum(dim=1).mean()
        off_prior = (prior_C * (prior_C.clamp(min=1e-9) / labels_NC.mean(dim=0).clamp(min=1e-9)).log()).sum()
        objective = error + PRIOR_WEIGHT * off_prior
        objective.backward()
        optimizer.step()
    return float(objective.detach()), guesses_NC.detach().argmax(dim=1).numpy()


def inversion_leak(guesses_N: Ints, labels_N: Ints, classes: int, stream: np.random.Generator) -> Estimate:
    """Return the share of labels that guessed groups predict, under the best naming of the groups."""
    right_N = best_assignment(guesses_N, labels_N, classes)[guesses_N] == labels_N
    return bootstrap(lambda rows: float(right_N[rows].mean()), len(labels_N), stream)


def _mean_estimate(values: Sequence[float]) -> float:
    defined = [value for value in values if value == value]
    return float(np.mean(defined)) if defined else float("nan")
