"""Settings of the defences against leakage: ``privacy``."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from vfl.config.agreement import OWN
from vfl.config.settings import AboveZero, Section, UsedWith, strict_int


class PrivacyConfig(Section):
    """Defences that each side applies to its own messages. Never a promise of safety: see `lvfl audit`."""

    gradients: Annotated[Literal["max_norm", "gaussian"] | None, OWN] = None
    """Server's defence of gradients (training.labels=server). max_norm: noise along each gradient makes all as long as
    the longest (Li et al., ICLR 2022); gaussian: clipped by row, with noise."""
    gradient_strength: Annotated[AboveZero, OWN, UsedWith("gradients", "max_norm", "gaussian")] = 1.0
    """max_norm: factor of the noise; gaussian: standard deviation in units of gradient_clip."""
    gradient_clip: Annotated[AboveZero, OWN, UsedWith("gradients", "gaussian")] = 1.0
    """gaussian: largest length of a row's gradient, in units of the mean loss's gradient times the batch size."""
    embeddings: Annotated[Literal["gaussian", "distance_correlation"] | None, OWN] = None
    """Party's defence of its embeddings. gaussian: clipped by row, with noise, in training, evaluation and predictions;
    distance_correlation: trained to depend less on the features."""
    embedding_strength: Annotated[AboveZero, OWN, UsedWith("embeddings", "gaussian", "distance_correlation")] = 1.0
    """gaussian: standard deviation in units of embedding_clip; distance_correlation: its weight beside the loss."""
    embedding_clip: Annotated[AboveZero, OWN, UsedWith("embeddings", "gaussian")] = 10.0
    """gaussian: largest length of a row's embedding."""
    noise_seed: Annotated[Annotated[int, BeforeValidator(strict_int), Field(ge=0)] | None, OWN] = None
    """Seed of the noise. null: in one process the experiment's seed, in a separate process a secret. A number makes
    processes repeat one process, and must be kept from the others."""

    record: Annotated[bool, OWN] = False
    """A party process keeps the embeddings that it sent and the gradients that it got in its last round
    (seen.safetensors), for lvfl audit --processes. Remove the file afterwards: it is personal data."""
