"""The guarantee of clipping and Gaussian noise, as (epsilon, delta) of differential privacy.

The neighbouring relation is the replacement of one sample: its gradients may move from any point of the ball of radius
``clip`` to any other, so a release moves by at most 2 clip, and the noise multiplier is half the strength. The
guarantee holds towards the side that receives the noisy rows, for the rows themselves: the steps that head and feature
model take on the exact values are not covered. By BatchNorm a sample moves the embeddings of its whole batch, each by
at most 2 clip: together by the root of the batch size as much.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# dp_accounting is untyped.

import importlib.util
import math
from typing import Any, cast

from vfl.base.errors import ConfigError
from vfl.config import ExperimentConfig


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


def guarantees(config: ExperimentConfig, rounds: int, steps: int, samples: int) -> dict[str, dict[str, float]]:
    """Return the releases of a row, delta and epsilon for each noisy quantity; empty if there is none.

    ``steps``: exchanges of a round; ``samples``: number of training samples, n, with delta = 1 / (10 n).
    """
    privacy = config.privacy
    strengths = {
        kind: strength
        for kind, defence, strength in (
            ("gradients", privacy.gradients, privacy.gradient_strength),
            ("embeddings", privacy.embeddings, privacy.embedding_strength),
        )
        if defence == "gaussian"
    }
    batch_size = config.training.batch_size
    # A pass over the samples leaves its incomplete batch out (`batch_rows`): a sample may be in every pass.
    releases = rounds * math.ceil(steps / (samples // batch_size))
    if "embeddings" in strengths and config.normalises_by_batch:
        strengths["embeddings"] /= math.sqrt(batch_size)
    delta = 1 / (10 * samples)
    return {
        kind: {"releases": releases, "delta": delta, "epsilon": epsilon_of(strength, releases, delta)}
        for kind, strength in strengths.items()
    }


def check_installed(config: ExperimentConfig) -> None:
    """Raise ConfigError if epsilon is needed and cannot be computed."""
    wanted = "gaussian" in (config.privacy.gradients, config.privacy.embeddings)
    if wanted and importlib.util.find_spec("dp_accounting") is None:
        raise ConfigError('privacy: gaussian needs dp-accounting for epsilon; pip install "lvfl[privacy]"')
