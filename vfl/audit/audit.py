"""The attacks on the messages of a round that one owner, or the server, has seen: results, each with its control.

Shapes: N rows, D embedding width, C classes.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from vfl.audit.embeddings import SCORED_ROWS, cluster_leak, completion_gain, decode_embeddings, flat_features
from vfl.audit.gradients import direction_leak, inversion_leak, inverted_labels, norm_leak
from vfl.base.estimates import Estimate, Floats, Ints

KNOWN_LABELS = (10, 40, 160)
"""Numbers of labelled rows that an owner has, for completion."""
KNOWN_PAIRS = 1000
"""Rows whose features the attacker on embeddings knows; at most half of all."""
INVERTED_ROWS = 1000
"""Most rows whose gradients are inverted, all at once: the work grows with them and with the head."""

Attack = Literal[
    "gradient norm",
    "gradient direction",
    "gradient inversion",
    "model completion",
    "embedding decoder",
    "embedding clusters",
]
NORM: Attack = "gradient norm"
DIRECTION: Attack = "gradient direction"
INVERSION: Attack = "gradient inversion"
DECODER: Attack = "embedding decoder"


@dataclass(frozen=True)
class Finding:
    """Result of an attack."""

    attack: Attack
    attacker: str
    """A party's name, or "who sees PARTY's embeddings"."""
    measure: str
    """Name of the measured quantity."""
    found: Estimate
    control: Estimate
    """The same measure with nothing to find: permuted labels, or embeddings of other rows."""
    rows: int
    """Number of rows on which it was measured."""
    known: int = 0
    """Rows that the attacker knows beforehand."""

    @property
    def leaks(self) -> bool:
        """Return whether the interval lies apart from the control's, on the attacker's side.

        An AUC below the control's reveals as much as one above: whoever knows the defence reads it the other way round.
        """
        if self.measure == "AUC" and self.found.high < self.control.low:
            return True
        if self.measure == "error left":
            return self.found.high < self.control.low
        return self.found.low > self.control.high

    def as_row(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return asdict(self) | {"leaks": self.leaks}


@dataclass(frozen=True, eq=False)
class ObservedMessages:
    """Messages between a party and the server in a round, and the true data of their rows."""

    party: str
    labels_N: Ints
    classes: int
    embeddings_ND: Floats
    """Embeddings as the server received them."""
    gradients_ND: Floats | None
    """Gradients as the party received them; None if labels are shared."""
    features: tuple[Tensor, ...]
    """The party's prepared samples, [N, ...] each."""
    table: bool
    fresh: Callable[[], nn.Module]
    """Function that makes an untrained feature model of the party."""
    hidden: Sequence[int]
    """Hidden widths of the head, which all sides know."""

    @property
    def onlooker(self) -> str:
        """Attacker who has the party's embeddings: the server, and with shared labels every other party."""
        return f"who sees {self.party}'s embeddings"


def attacks_with_gradients(
    messages: ObservedMessages, seed: int, only: Collection[Attack] = (NORM, DIRECTION, INVERSION)
) -> list[Finding]:
    """Return the findings of attacks on labels with a party's gradients."""
    assert messages.gradients_ND is not None, "labels are at the server"
    labels_N, classes, rows = messages.labels_N, messages.classes, len(messages.labels_N)
    stream = np.random.default_rng(seed)
    permuted_N = stream.permutation(labels_N)
    leaks: tuple[tuple[Attack, Callable[..., Estimate], int], ...] = (
        (NORM, norm_leak, 0),
        (DIRECTION, direction_leak, 1),
    )
    findings = list[Finding]()
    for attack, leak, known in leaks:
        if attack in only:
            found, control = (leak(messages.gradients_ND, each_N, classes, stream) for each_N in (labels_N, permuted_N))
            findings.append(Finding(attack, messages.party, "AUC", found, control, rows, known))
    if INVERSION in only:
        prior_C, some = np.bincount(labels_N, minlength=classes) / rows, slice(INVERTED_ROWS)
        seen = messages.embeddings_ND[some], messages.gradients_ND[some]
        guesses_n = inverted_labels(*seen, messages.hidden, prior_C, seed)
        found, control = (inversion_leak(guesses_n, each_N[some], classes, stream) for each_N in (labels_N, permuted_N))
        findings.append(Finding(INVERSION, messages.party, "labels right", found, control, len(guesses_n)))
    return findings


def attacks_on_labels(messages: ObservedMessages, seed: int) -> list[Finding]:
    """Return the findings of attacks on labels, by a party with its own model and by others with its embeddings."""
    labels_N, classes, rows = messages.labels_N, messages.classes, len(messages.labels_N)
    stream = np.random.default_rng(seed)
    permuted_N = stream.permutation(labels_N)
    embeddings_ND, findings = messages.embeddings_ND, list[Finding]()
    for known in (each for each in KNOWN_LABELS if 2 * each <= rows):
        found, control = (
            completion_gain(embeddings_ND, messages.features, each_N, classes, known, messages.fresh, seed)
            for each_N in (labels_N, permuted_N)
        )
        scored = min(rows - known, SCORED_ROWS)
        findings.append(Finding("model completion", messages.party, "accuracy gained", found, control, scored, known))
    found, control = (cluster_leak(embeddings_ND, each_N, classes, stream, seed) for each_N in (labels_N, permuted_N))
    return [*findings, Finding("embedding clusters", messages.onlooker, "labels right", found, control, rows)]


def attacks_on_features(messages: ObservedMessages, seed: int) -> list[Finding]:
    """Return the findings of attacks by others on a party's features, with its embeddings."""
    rows = len(messages.labels_N)
    known = min(KNOWN_PAIRS, rows // 2)
    stream = np.random.default_rng(seed)
    flat_NF = flat_features(messages.features)
    decoded, control = (
        decode_embeddings(embeddings_ND, flat_NF, known, table=messages.table, stream=stream, seed=seed)
        for embeddings_ND in (messages.embeddings_ND, stream.permutation(messages.embeddings_ND))
    )
    measured = {"error left": (decoded.error, control.error)}
    if decoded.exact is not None and control.exact is not None:
        measured["values right"] = decoded.exact, control.exact
    return [
        Finding(DECODER, messages.onlooker, measure, *pair, rows - known, known) for measure, pair in measured.items()
    ]
