"""Which parties take part in which samples: the one notion of absence, in training, evaluation and prediction.

A party has no row for a sample (tables joined on the label owner's rows), is left out of it by
``training.party_dropout``, or is away. Each time the same happens: it computes and sends nothing for that sample, and
where embeddings are put side by side a row of `missing` is its own, for which the head has a placeholder
(`models.mlp.PlaceholderMLP`).

Source: "Vertical Federated Learning with Missing Features During Training and Inference" (LASER-VFL; Valdeira, Wang and
Chi, ICLR 2025) trains for every set of parties; here sets are drawn, and the head fills gaps instead of averaging.

Shapes: N samples, B batch, K parties, D embedding width, n the rows of a batch in which a party takes part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vfl.random import generator
from vfl.wire.messages import Buffer, MessageError


@dataclass(frozen=True, eq=False)
class Presence:
    """Who takes part in each batch of the training, as all sides that know the parties' gaps derive it."""

    held_NK: Tensor | None
    """Whether each party, in the parties' order, has a row for each training sample, bool; None where all have all."""
    parties: int
    dropout: float
    """Probability with which a party is left out of a sample."""
    seed: int

    @property
    def whole(self) -> bool:
        """Whether no embedding is ever missing."""
        return self.held_NK is None and self.dropout == 0

    def of_round(self, round_index: int, batches: Sequence[Tensor]) -> list[Tensor]:
        """Return who takes part in each of a round's batches of rows [B]: bool [B, K].

        Of the parties that have a row for a sample at least one stays, the one with the highest draw.
        """
        stream = generator(self.seed, "party_dropout", round_index)
        return [self._of_batch(rows_B, stream) for rows_B in batches]

    def _of_batch(self, rows_B: Tensor, stream: torch.Generator) -> Tensor:
        held_BK = torch.ones(len(rows_B), self.parties, dtype=torch.bool)
        if self.held_NK is not None:
            held_BK = self.held_NK[rows_B]
        if self.dropout == 0:
            return held_BK
        drawn_BK = torch.rand(len(rows_B), self.parties, generator=stream).masked_fill(~held_BK, -1.0)
        highest_BK = drawn_BK == drawn_BK.max(dim=1, keepdim=True).values
        return held_BK & ((drawn_BK >= self.dropout) | highest_BK)


def spread(rows_nD: Tensor, present_B: Tensor, missing: float) -> Tensor:
    """Return [B, D] with a party's embeddings where it takes part, and ``missing`` in all entries where it does not."""
    if len(rows_nD) == len(present_B):
        return rows_nD
    spread_BD = rows_nD.new_full((len(present_B), rows_nD.shape[1]), missing)
    spread_BD[present_B.to(rows_nD.device)] = rows_nD
    return spread_BD


def rows_of(tensor_BD: Tensor, present_B: Tensor) -> Tensor:
    """Return [n, D], what ``spread`` was made of."""
    return tensor_BD if bool(present_B.all()) else tensor_BD[present_B.to(tensor_BD.device)]


def pack(present: Sequence[Tensor]) -> bytes:
    """Return one party's part in a round's batches, bool [B] each, as bits."""
    return np.packbits(torch.cat(list(present)).numpy()).tobytes()


def unpack(bits: Buffer, batches: Sequence[Tensor]) -> list[Tensor]:
    """Read what ``pack`` wrote. Raises MessageError for bits of another number of samples."""
    sizes = [len(rows_B) for rows_B in batches]
    if len(bits) != -(-sum(sizes) // 8):
        raise MessageError(f"presence of {8 * len(bits)} samples came, the round has {sum(sizes)}")
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=sum(sizes)).astype(bool)
    return list(torch.split(torch.as_tensor(flags), sizes))
