"""The attacks on what one owner, or the server, has seen of a round: their results, each with its control.

Shapes: N rows, D embedding width, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from vfl.leakage.embeddings import cluster_leak, completion_gain, decode_embeddings
from vfl.leakage.estimate import Estimate, Floats, Ints
from vfl.leakage.gradients import direction_leak, inversion_leak, inverted_labels, norm_leak

KNOWN_LABELS = (10, 40, 160)
"""Labelled rows that an owner has, for completion."""
KNOWN_PAIRS = 1000
"""Rows whose features whoever undoes an embedding has; at most half of all."""

Attack = Literal[
    "gradient norm",
    "gradient direction",
    "gradient inversion",
    "model completion",
    "embedding decoder",
    "embedding decoder, exact values",
    "embedding clusters",
]


@dataclass(frozen=True)
class Finding:
    """What an attack reached."""

    attack: Attack
    attacker: str
    """A party's name, or "who sees PARTY's embeddings"."""
    measure: str
    """Of what the numbers are."""
    found: Estimate
    control: Estimate
    """The same where there is nothing to find: permuted labels, or embeddings of other rows."""
    chance: float | None
    """What an attacker without anything reaches; None where the control alone says it."""
    rows: int
    """On which it was measured."""
    known: int = 0
    """Rows that the attacker knows beforehand."""

    @property
    def leaks(self) -> bool:
        """Whether the interval lies apart from the control's, on the attacker's side."""
        if self.attack == "embedding decoder":
            return self.found.high < self.control.low
        return self.found.low > self.control.high

    def as_row(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return asdict(self) | {"leaks": self.leaks}


@dataclass(frozen=True, eq=False)
class Seen:
    """What passed between a party and the server in a round, and what is true of its rows."""

    party: str
    labels_N: Ints
    classes: int
    embeddings_ND: Floats
    """As the server received them."""
    gradients_ND: Floats | None
    """As the party received them; None where labels are shared."""
    features: tuple[Tensor, ...]
    """The party's prepared samples, [N, ...] each."""
    table: bool
    fresh: Callable[[], nn.Module]
    """Makes an untrained feature model of the party."""
    hidden: Sequence[int]
    """The head's hidden widths, which are agreed and so known to all."""


def attacks_with_gradients(seen: Seen, seed: int) -> list[Finding]:
    """Return what a party's gradients tell it of the labels; nothing where it received none."""
    if seen.gradients_ND is None:
        return []
    labels_N, classes, rows = seen.labels_N, seen.classes, len(seen.labels_N)
    stream = np.random.default_rng(seed)
    permuted_N = stream.permutation(labels_N)
    findings: list[Finding] = []
    leaks: tuple[tuple[Attack, Callable[..., Estimate]], ...] = (
        ("gradient norm", norm_leak),
        ("gradient direction", direction_leak),
    )
    for attack, leak in leaks:
        found = leak(seen.gradients_ND, labels_N, classes, stream)
        control = leak(seen.gradients_ND, permuted_N, classes, stream)
        findings.append(Finding(attack, seen.party, "AUC", found, control, 0.5, rows, int(attack != "gradient norm")))
    prior_C = np.bincount(labels_N, minlength=classes) / rows
    guesses_N = inverted_labels(seen.embeddings_ND, seen.gradients_ND, seen.hidden, prior_C, seed)
    found = inversion_leak(guesses_N, labels_N, classes, stream)
    control = inversion_leak(guesses_N, permuted_N, classes, stream)
    findings.append(Finding("gradient inversion", seen.party, "labels right", found, control, None, rows))
    return findings


def attacks_with_embeddings(seen: Seen, seed: int) -> list[Finding]:
    """Return what a party's own model tells it of the labels, and its embeddings tell others of labels and features."""
    labels_N, classes, rows = seen.labels_N, seen.classes, len(seen.labels_N)
    stream = np.random.default_rng(seed)
    permuted_N = stream.permutation(labels_N)
    findings: list[Finding] = []
    for known in KNOWN_LABELS:
        if 2 * known > rows:
            break
        own = seen.embeddings_ND, seen.features
        found = completion_gain(*own, labels_N, classes, known, seen.fresh, seed)
        control = completion_gain(*own, permuted_N, classes, known, seen.fresh, seed)
        findings.append(
            Finding("model completion", seen.party, "accuracy gained", found, control, 0.0, rows - known, known)
        )
    who = f"who sees {seen.party}'s embeddings"
    known = min(KNOWN_PAIRS, rows // 2)
    flat_NF = np.concatenate([tensor.float().flatten(1).numpy() for tensor in seen.features], axis=1)
    others_ND = stream.permutation(seen.embeddings_ND)
    decoded, control = (
        decode_embeddings(embeddings_ND, flat_NF, known, table=seen.table, stream=stream, seed=seed)
        for embeddings_ND in (seen.embeddings_ND, others_ND)
    )
    left = rows - known
    findings.append(Finding("embedding decoder", who, "error left", decoded.error, control.error, 1.0, left, known))
    if decoded.exact is not None and control.exact is not None:
        findings.append(
            Finding(
                "embedding decoder, exact values", who, "values right", decoded.exact, control.exact, None, left, known
            )
        )
    clusters = [cluster_leak(seen.embeddings_ND, each_N, classes, stream, seed) for each_N in (labels_N, permuted_N)]
    findings.append(Finding("embedding clusters", who, "labels right", clusters[0], clusters[1], None, rows))
    return findings
