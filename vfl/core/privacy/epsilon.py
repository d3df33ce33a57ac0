"""The guarantee of clipping and Gaussian noise, as (epsilon, delta) of differential privacy.

The neighbouring relation is the replacement of one sample: its gradients may move from any point of the ball of radius
``clip`` to any other, so a release moves by at most 2 clip, and the noise multiplier is half the strength. The
guarantee holds towards the side that receives the noisy rows, for the rows themselves: the steps that head and feature
model take on the exact values are not covered, nor what is computed from all rows before (the scale of amounts,
balanced weights of classes, preparations), nor which owners have the row.

Some settings let a sample move all rows of its batch: BatchNorm, weights (a loss is divided by their sum), a head or a
loss of the user's own. Each row then moves by at most 2 clip: together by the root of the batch size as much.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# dp_accounting is untyped.

import importlib.util
import math
import warnings
from collections.abc import Sequence
from typing import Any, cast

from torch import nn

from vfl.base.errors import ConfigError
from vfl.config import ExperimentConfig
from vfl.core.head import HeadTrainer
from vfl.core.tasks import Classification
from vfl.models.auxiliary import AuxiliaryHead
from vfl.models.mlp import MLP, MemberHeads, PlaceholderMLP

ACTIVATIONS = nn.Identity, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid
ROW_BY_ROW = (
    *(MLP, PlaceholderMLP, MemberHeads, AuxiliaryHead, nn.ModuleList, nn.Sequential),
    *(nn.Linear, nn.LayerNorm, nn.Dropout, *ACTIVATIONS),
)
"""Modules whose output for a row depends only on that row."""


def epsilon_of(strength: float, releases: int, delta: float) -> float:
    """Return epsilon of ``releases`` releases of a row with noise of ``strength`` times the clipping length."""
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss  # an extra, and slow to import
    from scipy.optimize import brentq

    # So many releases compose to one with noise divided by the root of their number, exactly (Dong, Roth and Su,
    # "Gaussian differential privacy", 2022, corollary 3.3); composing their distributions took minutes.
    loss: Any = GaussianPrivacyLoss(strength / 2 / math.sqrt(releases))
    if loss.get_delta_for_epsilon(0.0) <= delta:
        return 0.0
    above = 1.0
    while loss.get_delta_for_epsilon(above) > delta:
        above *= 2

    def excess(epsilon: float) -> float:
        return float(loss.get_delta_for_epsilon(epsilon)) - delta

    return cast(float, brentq(excess, 0, above))


def movers(config: ExperimentConfig, trainer: HeadTrainer, *, weighted: bool) -> list[str]:
    """Return what lets a sample move all gradients of its batch; empty if it moves its own only.

    ``weighted``: the samples have weights.
    """
    task = trainer.task
    by = {
        # A single party learns nothing of others' features, and knows its own.
        "BatchNorm (batch_norm of a party's model)": config.normalises_by_batch and len(config.parties) > 1,
        "a head of other modules than row by row": any(type(each) not in ROW_BY_ROW for each in trainer.head.modules()),
        "an own loss": trainer.own_loss is not None,
        "training.class_weights": isinstance(task, Classification) and task.weights is not None,
        "the rows' weights": weighted,
    }
    return [what for what, moves in by.items() if moves]


def guarantees(
    config: ExperimentConfig, rounds: int, steps: int, samples: int, moved_by: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """Return the releases of a row, delta and epsilon for each noisy quantity; empty if there is none, or no release.

    ``rounds``: those with exchanges.
    ``steps``: exchanges of a round; ``samples``: number of training samples, n, with delta = 1 / (10 n); ``moved_by``:
    the ``movers`` of gradients.
    """
    if not rounds:
        return {}
    privacy = config.privacy
    strengths: dict[str, float] = {side: getattr(privacy, side).strength for side in privacy.noisy}
    batch_size = config.training.batch_size
    # A pass over the samples leaves its incomplete batch out (`batch_rows`): a sample may be in every pass.
    releases = rounds * math.ceil(steps / (samples // batch_size))
    whole_batch = {"gradients": bool(moved_by), "embeddings": config.normalises_by_batch}
    strengths = {
        kind: strength / math.sqrt(batch_size) if whole_batch[kind] else strength
        for kind, strength in strengths.items()
    }
    delta = 1 / (10 * samples)
    return {
        kind: {"releases": releases, "delta": delta, "epsilon": epsilon_of(strength, releases, delta)}
        for kind, strength in strengths.items()
    }


def tell_moved(moved_by: Sequence[str]) -> None:
    """Warn of what makes epsilon of gradients larger."""
    if moved_by:
        warnings.warn(
            f"privacy.gradients: a row moves its whole batch by {', '.join(moved_by)}: epsilon is that of a strength "
            "divided by the root of training.batch_size",
            stacklevel=2,
        )


def check_installed(config: ExperimentConfig) -> None:
    """Raise ConfigError if epsilon is needed and cannot be computed."""
    if config.privacy.noisy and importlib.util.find_spec("dp_accounting") is None:
        raise ConfigError('privacy: gaussian needs dp-accounting for epsilon; pip install "lvfl[privacy]"')
