"""What the exchanges of an experiment will cost: the codec is asked with a probe, the parties about their models.

Shapes: B batch, D embedding width.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from vfl.config import ExperimentConfig
from vfl.lightweighting.forecast import ALPHAS, Curve, Forecast, Work
from vfl.schedules import PartySchedule, named_parties, schedule_of, values_of
from vfl.vertical.compressors import gradient_compressor
from vfl.vertical.embeddings import EmbeddingReceiver
from vfl.vertical.head import HeadTrainer
from vfl.wire.messages import Part, PartKind


def build_forecast(
    config: ExperimentConfig,
    work: Work,
    rows: Mapping[str, float],
    curves: Mapping[str, Curve],
    receivers: Sequence[EmbeddingReceiver],
    trainer: HeadTrainer,
) -> Forecast:
    """Return the costs of all parties, which take part in ``rows`` of a batch and of whose models ``curves`` tell."""
    receiver_of = {receiver.sender: receiver for receiver in receivers}
    shared = config.training.labels == "shared"
    head_bytes = sum(part.size for part in trainer.parts()) if shared else 0
    broadcast = config.training.head_sync == "broadcast"

    # A search over ratios asks for the same frames again and again, and each is really encoded.
    @cache
    def frame_bytes(name: str, beta: float) -> int:
        receiver = receiver_of[name]
        frame = receiver.compressor.compress(_probe(round(rows[name]), receiver.width), beta)
        return Part(PartKind.EMBEDDING, frame).size

    @cache
    def answer_bytes(name: str) -> int:
        if shared:
            return head_bytes if broadcast else 0
        gradient_BD = _probe(round(rows[name]), receiver_of[name].width)
        frame = gradient_compressor(config.wire).compress(gradient_BD, config.wire.gradients.beta)
        return Part(PartKind.GRADIENT, frame).size

    return Forecast(work, rows, curves, frame_bytes, answer_bytes, shared, 0 if broadcast else head_bytes)


def scheduled_alphas(alpha: PartySchedule) -> tuple[float, ...]:
    """Return the ratios to ask the parties about, ascending: the grid, and what the configuration has."""
    by_party = named_parties(alpha)
    schedules = [schedule_of(alpha, "")] if by_party is None else by_party.values()
    return tuple(sorted({*ALPHAS, *(value for schedule in schedules for value in values_of(schedule))}))


def _probe(rows: int, width: int) -> Tensor:
    """Return an embedding [n, D] as any other: sizes of frames depend on no value, but on how many are zero."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
