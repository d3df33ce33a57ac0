"""Reasons of scores: what each owner moved, and at each owner what each of its columns moved.

The score is the log odds of a class, in which evidence adds up, or the value of a regression. What an owner moved is
its Shapley value: the mean, over all orders in which the owners could come, of what its embedding changes. Until it
comes, what replaces a missing row stands there. The values sum to the score minus the score without any owner.

What a column moved is computed at its owner, by integrated gradients from the owner's reference row
(`vfl.core.column_paths`). The head returns the mean slope of that row's score on each step of the path: the gradient in
the step's middle, corrected along the step so that it gives the step's own change of the score (a discrete gradient;
Gonzalez, "Time integration and discrete Hamiltonian systems", 1996). The amounts sum to the score minus the score with
the owner's reference; what the owner's own steps missed before is reported as its error.

Shapes: B batch, N samples, K owners, S steps, n samples of a batch for which an owner has a row, D embedding width.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's own signatures are partly untyped.

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vfl.base.errors import Argument, Choice, ConfigError, ConfigWarning, Diverged, WhenAbsent, nearest_name
from vfl.compression.codec import encode
from vfl.core.embeddings import EmbeddingReceiver, decode_finite
from vfl.core.joint_model import JointModel
from vfl.core.parties import PartyProxy
from vfl.core.tasks import Classification, Task
from vfl.messages.control import MOST_POINTS, MOST_STEPS, Completeness, Explained, ReasonsOffer
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.models.auxiliary import AuxiliaryHead
from vfl.models.mlp import has_placeholders

EXACT_OWNERS = 8
"""Most owners whose sets are all tried; for more, `ORDERS` orders and their reverses are drawn."""
ORDERS = 64
MOST_VALUES = 1 << 20
"""Values of the embeddings of paths at once."""
SHORTEST = 1e-12
"""Square of the length of a step from which its own change of the score counts: below, it is rounding."""


@dataclass(frozen=True)
class ReasonsWanted:
    """Which reasons to compute. Raises ConfigError for a number out of range."""

    of: str | None = None
    """Class whose log odds are explained; None: the positive one of two, of more the one predicted for the row."""
    steps: int = 16
    """Points of the path of a row."""
    most: int = 0
    """Number of columns to name that lowered the score most; 0: all amounts."""

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MOST_STEPS:
            raise ConfigError(f"--reasons-steps: {self.steps}: choose from 1 to {MOST_STEPS}")
        if self.most < 0:
            raise ConfigError(f"--reasons: {self.most}: name how many columns to show, or leave the number out for all")


@dataclass(frozen=True, eq=False)
class ColumnReasons:
    """What an owner discloses of its columns."""

    names: tuple[str, ...]
    """Names of its columns; empty if it keeps the reasons to itself."""
    ranked: bool
    """Places instead of amounts: -1 for the column that lowered the score most, 1 for the one that raised it
    most, and so on."""
    moved_NC: Tensor
    """Amounts or places, float64; NaN for a sample that the owner has no row for."""
    reference_N: Tensor
    """Score with the owner's reference in place of its row; amounts sum to the score minus this one. NaN likewise."""
    error_N: Tensor
    """Completeness error: how far the sum was off before the difference was spread over the columns. NaN likewise."""

    def take(self, rows_M: Tensor) -> "ColumnReasons":
        """Return those of some samples."""
        return replace(
            self, moved_NC=self.moved_NC[rows_M], reference_N=self.reference_N[rows_M], error_N=self.error_N[rows_M]
        )


@dataclass(frozen=True, eq=False)
class Reasons:
    """Reasons of the scores of some samples."""

    classes: tuple[str, ...]
    """Names of the classes; empty for values."""
    of_N: Tensor
    """Class whose log odds are explained; zeros for values."""
    score_N: Tensor
    """Log odds of that class, or value; float64."""
    without_N: Tensor
    """Score without any owner."""
    owners: tuple[str, ...]
    moved_NK: Tensor
    """What each owner moved, float64."""
    predictions_NC: Tensor
    """Predictions of the samples, as without reasons."""
    columns: Mapping[str, ColumnReasons] = field(default_factory=dict[str, ColumnReasons])
    """By owner; without those that disclosed nothing."""
    most: int = 0
    """Number of columns to name in `cells`; 0: all amounts."""

    def take(self, rows_M: Tensor) -> "Reasons":
        """Return the reasons of some samples, in the order given."""
        parts = {
            name: getattr(self, name)[rows_M] for name in ("of_N", "score_N", "without_N", "moved_NK", "predictions_NC")
        }
        return replace(self, **parts, columns={owner: own.take(rows_M) for owner, own in self.columns.items()})

    def lowered(self, row: int, most: int) -> list[str]:
        """Return the columns that lowered a sample's score most, worst first, as ``owner.column``, at most ``most``.

        Where an owner discloses places only, its columns follow the others', owners that lowered the score most first.
        """
        found: list[tuple[tuple[float, ...], str]] = []
        for place, owner in enumerate(self.owners):
            own = self.columns.get(owner)
            if own is None or not own.names:
                continue
            for name, moved in zip(own.names, own.moved_NC[row].tolist(), strict=True):
                if moved < 0:  # NaN is not
                    order = (1.0, float(self.moved_NK[row, place]), -moved) if own.ranked else (0.0, moved, 0.0)
                    found.append((order, f"{owner}.{name}"))
        return [name for _, name in sorted(found, key=lambda each: each[0])[:most]]

    @property
    def _tellers(self) -> list[str]:
        """The owners that disclosed something, those with amounts first."""
        return sorted((owner for owner in self.owners if owner in self.columns), key=lambda o: self.columns[o].ranked)

    def heading(self) -> list[str]:
        """Return the names of the columns of `cells`."""
        own = [f"reason_{place}" for place in range(1, self.most + 1)]
        if not self.most:
            told = [(owner, self.columns[owner]) for owner in self._tellers]
            by_kind = [(f"{'rank_' * each.ranked}{owner}", each) for owner, each in told]
            own = [f"{owner}.{name}" for owner, each in by_kind for name in each.names]
            own += [f"{what}_{owner}" for owner, _ in told for what in ("reference", "error")]
        score = ["reasons_of", "log_odds"] if self.classes else ["score"]
        return [*score, "without_owners", *self.owners, *own]

    def cells(self, row: int) -> list[Any]:
        """Return a sample's score, the score without any owner, what each owner moved, and the columns' reasons.

        With ``most`` the names of the columns that lowered the score most; empty where fewer did.
        """
        score = [self.classes[int(self.of_N[row])]] if self.classes else []
        numbers = [self.score_N[row], self.without_N[row], *self.moved_NK[row]]
        named: list[str] = []
        if self.most:
            named = self.lowered(row, self.most)
            named += [""] * (self.most - len(named))
        else:
            told = [self.columns[owner] for owner in self._tellers]
            numbers += [value for each in told for value in each.moved_NC[row]]
            numbers += [value for each in told for value in (each.reference_N[row], each.error_N[row])]
        return [*score, *("" if value.isnan() else f"{float(value):.6g}" for value in numbers), *named]


def explain(joint: JointModel, wanted: ReasonsWanted, when_absent: WhenAbsent = "refuse") -> Reasons:
    """Return the reasons of the scores of a joint model's samples, wherever its parties are.

    ``joint`` is as for the prediction, with what replaces missing embeddings (``with_replacements``), and
    ``when_absent`` says what that is; it stands for every owner who has not come. Raises ConfigError for a class that
    the task does not have, PeerLost for a party that is lost.
    """
    one_class = class_of(joint.task, wanted.of)
    present = joint.present
    instead = replacements(joint, when_absent)
    asked = [(party, party.ask(Message(Kind.OFFER))) for party in present]
    offers = {party.name: offer for party, reply in asked if (offer := reply.read(ReasonsOffer.of)) is not None}
    pieces: list[tuple[Tensor, ...]] = []
    own: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {
        name: [] for name, each in offers.items() if each.tells != "nothing"
    }
    for start, stop in joint.batches():
        embeddings = joint.embeddings(start, stop)
        outputs_BC = joint.outputs(embeddings)
        predictions_BC, outputs_BC = joint.task.predictions(outputs_BC).cpu(), outputs_BC.cpu()
        of_B = explained_classes(joint.task, outputs_BC, one_class)
        without_B, score_B, moved_BK = owners_of(joint, embeddings, instead, outputs_BC, of_B)
        pieces.append((of_B, score_B, without_B, moved_BK, predictions_BC))
        for party in present:
            if party.name in own:
                own[party.name] += _columns_in(
                    joint, party, offers[party.name], embeddings, (start, of_B, score_B), wanted
                )
    of_N, score_N, without_N, moved_NK, predictions_NC = (torch.cat(each) for each in zip(*pieces, strict=True))
    columns = {
        name: ColumnReasons(
            offers[name].columns,
            offers[name].tells == "ranks",
            *(torch.cat(pieces) for pieces in zip(*each, strict=True)),
        )
        for name, each in own.items()
    }
    return Reasons(
        joint.task.names, of_N, score_N, without_N, joint.names, moved_NK, predictions_NC, columns, wanted.most
    )


def owners_of(
    joint: JointModel,
    embeddings: Mapping[str, Tensor],
    instead: Mapping[str, Tensor],
    outputs_BC: Tensor,
    of_B: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores without any owner [B], the scores [B], and what each owner moved [B, K], float64.

    ``outputs_BC`` are the head's of all ``embeddings`` [B, D], ``instead`` as for `owner_values`, and ``of_B`` the
    classes to explain.
    """

    def score(came: Mapping[str, Tensor]) -> Tensor:
        return score_of(joint.task, joint.outputs(came).cpu(), of_B)

    score_B = score_of(joint.task, outputs_BC, of_B)
    moved_BK, without_B = owner_values(score, score_B, embeddings, instead, joint.missing)
    return without_B, score_B, moved_BK


def replacements(joint: JointModel, when_absent: WhenAbsent) -> Mapping[str, Tensor]:
    """Return what stands for an owner who has not come, [D] by name; the head's placeholder for all others."""
    names, head = joint.names, joint.head.head
    match when_absent:
        case "mean":
            return dict(joint.instead) | dict(joint.replacing_means(names))
        case "zeros":
            return {party.name: torch.zeros(party.receiver.width) for party in joint.parties}
        case "own":
            return {}
        case _:
            if not (has_placeholders(head) or (isinstance(head, AuxiliaryHead) and head.averages)):
                what = "--reasons: no placeholder was learned, so an owner is compared with zeros in its place"
                mean = Choice(Argument.WHEN_ABSENT, ("mean",), "compares with its mean embedding")
                warnings.warn(ConfigWarning(what, mean), stacklevel=3)
            return {}


def owner_values(
    score: Callable[[Mapping[str, Tensor]], Tensor],
    score_B: Tensor,
    embeddings: Mapping[str, Tensor],
    instead: Mapping[str, Tensor],
    missing: Callable[[int, int], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return what each owner moved [B, K], and the score without any [B], float64.

    Args:
        score: of all owners' embeddings [B, D], by name.
        score_B: that of the batch's.
        embeddings: the batch's.
        instead: what stands for an owner who has not come, [D]; ``missing`` values for others.
    """
    names, known = [*embeddings], {frozenset(embeddings): score_B}
    away = {
        name: instead[name].expand_as(own_BD) if name in instead else missing(*own_BD.shape)
        for name, own_BD in embeddings.items()
    }

    def value(came: frozenset[str]) -> Tensor:
        if came not in known:
            known[came] = score({name: (embeddings if name in came else away)[name] for name in names})
        return known[came]

    moved = {name: torch.zeros_like(value(frozenset())) for name in names}
    if len(names) <= EXACT_OWNERS:
        for size in range(len(names)):
            share = 1 / (len(names) * math.comb(len(names) - 1, size))
            for came in map(frozenset, itertools.combinations(names, size)):
                for name in names:
                    if name not in came:
                        moved[name] += share * (value(came | {name}) - value(came))
    else:
        for order in drawn_orders(names):
            for place, name in enumerate(order):
                came = frozenset(order[:place])
                moved[name] += (value(came | {name}) - value(came)) / (2 * ORDERS)
    return torch.stack([moved[name] for name in names], dim=1), value(frozenset())


def drawn_orders(names: Sequence[str]) -> list[Sequence[str]]:
    """Return orders of many owners, the same every time, and their reverses."""
    draw = torch.Generator().manual_seed(0)
    drawn: list[Sequence[str]] = [
        [names[int(place)] for place in torch.randperm(len(names), generator=draw).tolist()] for _ in range(ORDERS)
    ]
    return drawn + [order[::-1] for order in drawn]


def score_of(task: Task, outputs_BC: Tensor, of_B: Tensor) -> Tensor:
    """Return the log odds float64 [B] of each row's class ``of_B``, or the values; differentiable."""
    merged_BC = task.merged(outputs_BC.double())
    if not isinstance(task, Classification):
        return merged_BC[:, 0] * task.std + task.mean
    chosen_BC = torch.nn.functional.one_hot(of_B, merged_BC.shape[1]).bool()
    others_B = merged_BC.masked_fill(chosen_BC, -math.inf).logsumexp(dim=1)
    return merged_BC.gather(1, of_B[:, None])[:, 0] - others_B


def class_of(task: Task, name: str | None) -> int | None:
    """Return the class to explain, None for the one predicted for each row. Raises ConfigError for an unknown one."""
    if not isinstance(task, Classification):
        if name is not None:
            raise ConfigError(f"--reasons-of: {name!r}: the run predicts a value and no class; leave it out")
        return 0
    if name is None:
        return 1 if task.classes == 2 else None
    if name not in task.names:
        raise ConfigError(f"--reasons-of: no class is called {name!r}{nearest_name(name, task.names)}")
    return task.names.index(name)


def explained_classes(task: Task, outputs_BC: Tensor, one_class: int | None) -> Tensor:
    """Return the class to explain of each row [B]: ``one_class``, or with None the one predicted."""
    if one_class is None:
        return task.predicted(task.predictions(outputs_BC)).long()
    return torch.full((len(outputs_BC),), one_class)


def _columns_in(
    joint: JointModel,
    party: PartyProxy,
    offer: ReasonsOffer,
    embeddings: Mapping[str, Tensor],
    scored: tuple[int, Tensor, Tensor],
    wanted: ReasonsWanted,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return what one owner's columns moved [B, C], the scores with its reference [B] and the errors [B], in pieces.

    ``scored``: the batch's first sample, the classes and the scores [B].
    """
    first, of_B, score_B = scored
    pieces: list[tuple[Tensor, Tensor, Tensor]] = []
    for piece in pieces_of(len(of_B), wanted.steps, party.receiver.width):
        start = first + int(piece[0])
        asked = Explained(start=start, stop=start + len(piece), steps=wanted.steps)
        mask = joint.masks(asked.start, asked.stop)[party.name]
        moved_BC = torch.full((len(piece), len(offer.columns)), math.nan, dtype=torch.float64)
        reference_B, error_B = (torch.full((len(piece),), math.nan, dtype=torch.float64) for _ in range(2))
        pieces.append((moved_BC, reference_B, error_B))
        if not mask.count:
            continue
        rows_n = piece[mask.present_B]
        request = Message(Kind.EXPLAIN, parts=(asked.part(),))
        path = party.ask(request).read(partial(read_path, party.receiver, len(rows_n), wanted.steps))
        if path is None:
            continue
        others = {name: own_BD[rows_n] for name, own_BD in embeddings.items()}
        brought, reference_n = slopes_part(joint, party.name, path, others, of_B[rows_n], score_B[rows_n], asked)
        told = party.ask(Message(Kind.ATTRIBUTE, parts=brought)).read(partial(read_told, offer, len(rows_n)))
        if told is not None:
            moved_BC[mask.present_B], error_B[mask.present_B] = told
            reference_B[mask.present_B] = reference_n
    return pieces


def pieces_of(rows: int, steps: int, width: int) -> Sequence[Tensor]:
    """Return the places of rows, as many together as fit into a message with their paths of D = ``width``."""
    return torch.arange(rows).split(max(1, min(MOST_POINTS, MOST_VALUES // width) // steps))


def read_path(receiver: EmbeddingReceiver, rows: int, steps: int, reply: Message) -> Tensor:
    """Return the embeddings [1 + n S, D] of PATHS. Raises MessageError for others."""
    shape, what = (1 + rows * steps, receiver.width), f"{receiver.sender}'s path"
    return decode_finite(reply.only(PartKind.EMBEDDING), shape, "float32", what)


def slopes_part(
    joint: JointModel,
    name: str,
    path: Tensor,
    embeddings: Mapping[str, Tensor],
    of_n: Tensor,
    score_n: Tensor,
    asked: Explained,
) -> tuple[tuple[Part, ...], Tensor]:
    """Return the parts of ATTRIBUTE for one owner's path, and the scores [n] at its reference.

    ``embeddings`` [n, D] of all owners, by name, and the scores are those of the rows that ``asked`` names. Raises
    Diverged for slopes that are not finite.
    """
    slope_nSD, reference_n = _slopes(joint, name, path, embeddings, of_n, asked.steps)
    if not bool(slope_nSD.isfinite().all() and reference_n.isfinite().all()):
        raise Diverged(f"the slopes of the score along {name}'s paths are not finite")
    gained = tuple((score_n - reference_n).tolist())
    return (asked.model_copy(update={"gained": gained}).part(), Part(PartKind.GRADIENT, encode(slope_nSD))), reference_n


def _slopes(
    joint: JointModel, name: str, path: Tensor, others: Mapping[str, Tensor], of_n: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Return the scores' mean slopes [n S, D] on the steps of one owner's paths, and the scores [n] at its reference.

    ``path`` [1 + n S, D] is the reference and each row's end of each step.
    """
    device, rows = joint.head.runtime.device, len(of_n)

    def scores(own: Tensor, times: int, of: Tensor) -> Tensor:
        parts = [own if each == name else other.repeat_interleave(times, dim=0) for each, other in others.items()]
        return score_of(joint.task, joint.head.forward(torch.cat(parts, dim=1).to(device)).cpu(), of)

    ends_nSD = path[1:].view(rows, steps, -1)
    points_nPD = torch.cat([path[:1].expand(rows, 1, -1), ends_nSD], dim=1)
    starts_nSD = points_nPD[:, :-1]
    with torch.no_grad():
        score_nP = scores(points_nPD.flatten(0, 1), 1 + steps, of_n.repeat_interleave(1 + steps)).view(rows, -1)
    with torch.enable_grad():
        middle = ((starts_nSD + ends_nSD) / 2).flatten(0, 1).requires_grad_()
        (slope,) = torch.autograd.grad(scores(middle, steps, of_n.repeat_interleave(steps)).sum(), middle)
    step = (ends_nSD - starts_nSD).flatten(0, 1).double()
    gained = score_nP.diff(dim=1).flatten()
    length = step.square().sum(dim=1)
    missed = torch.where(length > SHORTEST, gained - (slope * step).sum(dim=1), 0.0)
    return (slope + (missed / length.clamp(min=SHORTEST))[:, None] * step).float(), score_nP[:, 0]


def read_told(offer: ReasonsOffer, rows: int, reply: Message) -> tuple[Tensor, Tensor]:
    """Return amounts or places [n, C] and errors [n] of a reply. Raises MessageError for others than were offered."""
    errors, frame = Completeness.of(reply).errors, reply.only(PartKind.REASONS)
    if len(errors) != rows:
        raise MessageError(f"the errors of {len(errors)} samples came, {rows} were explained")
    error_n, columns = torch.tensor(errors, dtype=torch.float64), len(offer.columns)
    if offer.tells == "itself":
        if len(frame):
            raise MessageError("reasons came that the owner keeps to itself")
        return torch.empty(rows, 0, dtype=torch.float64), error_n
    moved_nC = decode_finite(frame, (rows, columns), "float32", "the columns' reasons").double()
    if offer.tells == "ranks" and not bool((moved_nC.abs() <= columns).all() and (moved_nC == moved_nC.round()).all()):
        raise MessageError(f"places beyond {columns} columns came")
    return moved_nC, error_n
