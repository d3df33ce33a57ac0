"""The rows of a round's batches, which every side derives from the seed, and the parties that take part in each.

Participation is the one notion of absence, in training, evaluation and prediction.

A party has no row for a sample (tables joined on the label owner's rows), is left out of it by
``training.party_dropout``, or is absent. The effect is always the same: it computes and sends nothing for that sample,
and in the concatenated embeddings its part of the row is `missing`, for which the head has a placeholder
(`vfl.models.mlp.PlaceholderMLP`).

Source: "Vertical Federated Learning with Missing Features During Training and Inference" (LASER-VFL; Valdeira, Wang and
Chi, ICLR 2025) trains for every set of parties; here sets are drawn, and the head fills gaps instead of averaging.

A party without any row of a batch sends an empty frame and takes no step, but keeps its momentum. Missing embeddings
are NaN in the head's input; a party cannot send NaN, as frames are checked for finiteness. Placeholders are weights of
the head: they travel, are replayed, saved and exported with it. The masks follow from the seed and from the missing
rows. The server knows them, and with ``labels: shared`` every replica does; with ``labels: server`` a party must not
learn the others' gaps, so START_ROUND carries only its own part. Multiply-accumulates, bytes and the dense baseline
count only rows that took part. Where nothing is missing and ``party_dropout`` is 0, the head has no placeholders.

Shapes: N samples, B batch, K parties, D embedding width, n the rows of a batch in which a party takes part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vfl.base.random import generator
from vfl.config import TrainingConfig
from vfl.messages.messages import Buffer, MessageError


def steps_in_round(training: TrainingConfig, samples: int) -> int:
    """Return the exchanges of a round: as configured, or one pass of full batches.

    Raises ValueError for none, or for too few to run ahead by the configured staleness.
    """
    if training.batch_size > samples:
        raise ValueError(
            f"training.batch_size: {training.batch_size} is larger than the {samples} training samples; "
            "lower it or raise data.train_samples"
        )
    steps = training.steps_per_round if training.steps_per_round is not None else samples // training.batch_size
    if training.staleness >= steps:
        raise ValueError(
            f"training.staleness: {training.staleness} needs longer rounds than {steps} exchanges; "
            "lower it or raise training.steps_per_round"
        )
    return steps


def batch_rows(seed: int, round_index: int, steps: int, samples: int, batch_size: int) -> list[Tensor]:
    """Return the sample rows [batch_size] of each of a round's exchanges.

    Each pass over the samples is a fresh permutation; its last incomplete batch is left out, so that every
    sample appears at most once in a batch and every message of a round has the same size.
    """
    per_pass = samples // batch_size
    batches: list[Tensor] = []
    for number in range(-(-steps // per_pass)):
        stream = generator(seed, "batches", round_index, owner=f"pass {number}")
        order_N = torch.randperm(samples, generator=stream)
        batches += order_N[: per_pass * batch_size].view(per_pass, batch_size).unbind()
    return batches[:steps]


@dataclass(frozen=True, eq=False)
class RowMask:
    """The samples of a batch in which a party takes part."""

    present_B: Tensor
    """bool [B], True for samples in which it takes part."""
    count: int
    """Number of these samples, n."""
    whole: bool
    """All samples of the batch are."""

    @classmethod
    def of(cls, present_B: Tensor) -> "RowMask":
        """Return the mask of the samples that are True."""
        count = int(present_B.sum())
        return cls(present_B, count, count == len(present_B))

    @classmethod
    def of_all(cls, samples: int) -> "RowMask":
        """Return the mask of all samples of a batch."""
        return cls(torch.ones(samples, dtype=torch.bool), samples, whole=True)

    def rows_of(self, tensor_BD: Tensor) -> Tensor:
        """Return the party's rows, [n, D]."""
        if self.whole:
            return tensor_BD
        return tensor_BD[self.present_B.to(tensor_BD.device)]

    def spread(self, rows_nD: Tensor, missing: float) -> Tensor:
        """Return [B, D] with a party's rows in its samples, and ``missing`` in all entries of the others."""
        if self.whole:
            return rows_nD
        spread_BD = rows_nD.new_full((len(self.present_B), rows_nD.shape[1]), missing)
        spread_BD[self.present_B.to(rows_nD.device)] = rows_nD
        return spread_BD


@dataclass(frozen=True, eq=False)
class Presence:
    """Participation in each batch of the training, as derived by all sides that know the parties' gaps."""

    held_NK: Tensor | None
    """bool [N, K], True if the party has a row for the training sample; None if all have all."""
    parties: int
    dropout: float
    """Probability with which a party is left out of a sample."""
    seed: int

    @property
    def whole(self) -> bool:
        """Return whether no embedding is ever missing."""
        return self.held_NK is None and self.dropout == 0

    def mean_shares(self) -> list[float]:
        """Return, by party, the expected share of the training samples in which it takes part."""
        held_NK = torch.ones(1, self.parties) if self.held_NK is None else self.held_NK
        # At least 1 against a division by 0: a sample that nobody has counts for nobody.
        holders_N1 = held_NK.sum(dim=1, keepdim=True, dtype=torch.float64).clamp(min=1)
        # A holder also stays where all draws of the holders are below the dropout and its own is the highest.
        stays_N1 = 1 - self.dropout + self.dropout**holders_N1 / holders_N1
        return [float(share) for share in (held_NK * stays_N1).mean(dim=0)]

    def of_round(self, round_index: int, batches: Sequence[Tensor]) -> list[list[RowMask]]:
        """Return each party's mask of each of a round's batches of rows [B].

        Of the parties that have a row for a sample at least one stays, the one with the highest draw.
        """
        if self.whole:
            return [[RowMask.of_all(len(rows_B))] * self.parties for rows_B in batches]
        # One stream a round, drawn from in the order of the batches: every side must go through all of them.
        stream = generator(self.seed, "party_dropout", round_index)
        return [[RowMask.of(own_B) for own_B in self._of_batch(rows_B, stream).unbind(1)] for rows_B in batches]

    def _of_batch(self, rows_B: Tensor, stream: torch.Generator) -> Tensor:
        held_BK = torch.ones(len(rows_B), self.parties, dtype=torch.bool)
        if self.held_NK is not None:
            held_BK = self.held_NK[rows_B]
        if self.dropout == 0:
            return held_BK
        # Drawn for holders and others alike: the stream then does not depend on who holds what. Below every draw: a
        # party without the row never has the highest.
        drawn_BK = torch.rand(len(rows_B), self.parties, generator=stream).masked_fill(~held_BK, -1.0)
        highest_BK = drawn_BK == drawn_BK.max(dim=1, keepdim=True).values
        return held_BK & ((drawn_BK >= self.dropout) | highest_BK)


def pack(masks: Sequence[RowMask]) -> bytes:
    """Return one party's masks of a round's batches as bits."""
    return np.packbits(torch.cat([mask.present_B for mask in masks]).numpy()).tobytes()


def unpack(bits: Buffer, batches: Sequence[Tensor]) -> list[RowMask]:
    """Return the masks that ``pack`` wrote. Raises MessageError for bits of another number of samples."""
    sizes = [len(rows_B) for rows_B in batches]
    if len(bits) != -(-sum(sizes) // 8):
        raise MessageError(f"presence of {8 * len(bits)} samples came, the round has {sum(sizes)}")
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=sum(sizes)).astype(bool)
    return [RowMask.of(present_B) for present_B in torch.split(torch.as_tensor(flags), sizes)]
