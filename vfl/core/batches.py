"""The order of the training samples, which every side derives from the seed."""

import torch
from torch import Tensor

from vfl.base.random import generator
from vfl.config import TrainingConfig


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
