"""Costs of an experiment's exchanges: message sizes from the codec by a probe, model costs from the parties.

Shapes: B batch, D embedding width.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from vfl.base.macs import count_macs, count_parameters
from vfl.base.modules import copy_model
from vfl.compression.party_pruner import PartyPruner
from vfl.config import ExperimentConfig
from vfl.config.schedules import PartySchedule, named_parties, schedule_of, values_of
from vfl.core.compressors import gradient_compressor
from vfl.core.costs.forecast import ALPHAS, ByAlpha, Forecast, Workload
from vfl.core.embeddings import EmbeddingReceiver
from vfl.core.head import HeadTrainer
from vfl.messages.control import AskedRatios, Prices
from vfl.messages.messages import Message, Part, PartKind


def build_forecast(
    config: ExperimentConfig,
    work: Workload,
    rows: Mapping[str, float],
    macs: Mapping[str, ByAlpha],
    smaller: Mapping[str, Mapping[float, ByAlpha]],
    parameters: Mapping[str, ByAlpha],
    receiver_of: Mapping[str, EmbeddingReceiver],
    trainer: HeadTrainer,
) -> Forecast:
    """Return the cost forecast of all parties, which take part in ``rows`` of a batch and told their models' costs."""
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

    head_once = 0 if broadcast else head_bytes
    return Forecast(work, rows, macs, parameters, frame_bytes, answer_bytes, shared, head_once, smaller)


def model_costs(
    model: nn.Module,
    pruner: PartyPruner,
    example: tuple[Tensor, ...],
    smaller: Sequence[tuple[Tensor, ...]],
    alphas: Sequence[float],
) -> Prices:
    """Return the cost of a party's model at each of some ascending ratios, by pruning a copy of it.

    ``example`` is a batch of one sample, ``smaller`` the same at each resolution asked about.
    """
    prunable = any(alphas) and pruner.can_prune()
    # One copy for all ratios: they ascend, and pruned filters never return. In one call, so that the pruner's model is
    # the copy.
    model, pruner = copy_model((model, pruner))
    macs: list[list[int]] = []
    parameters: list[int] = []
    for alpha in alphas:
        if prunable:
            pruner.prune_to(alpha)
        macs.append([count_macs(model, *each) for each in (example, *smaller)])
        parameters.append(count_parameters(model))
    whole, *others = zip(*macs, strict=True) if macs else ((),)
    return Prices(macs_per_sample=whole, parameters=tuple(parameters), smaller=tuple(others) or None)


def checked_prices(asked: AskedRatios, reply: Message) -> Prices:
    """Return a party's prices. Raises MessageError if they are not those asked for."""
    prices = Prices.of(reply)
    prices.check(asked.alphas, asked.resolutions or ())
    return prices


def scheduled_alphas(alpha: PartySchedule) -> tuple[float, ...]:
    """Return the ratios to ask the parties about, ascending: the grid, and those of the configuration."""
    by_party = named_parties(alpha)
    schedules = [schedule_of(alpha, "")] if by_party is None else by_party.values()
    return tuple(sorted({*ALPHAS, *(value for schedule in schedules for value in values_of(schedule))}))


def _probe(rows: int, width: int) -> Tensor:
    """Return a random embedding [n, D]: sizes of packed frames depend only on the number of zeros."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
