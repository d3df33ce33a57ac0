"""Defences: changes of gradients and embeddings before they leave, so that they reveal less.

Noise is a function of a secret and of the values that it is added to: it needs no state, a resumed run draws the same,
and nobody without the secret can subtract it.

Shapes: B rows of a batch, D embedding width, F features.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's own signatures are partly untyped.

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vfl.config.wire import Decorrelation, MaxNormNoise, NoisyGradients, NoisyRows, PrivacyConfig

SHORTEST = 1e-30
"""Length up to which a gradient stays unchanged, as it has no direction along which to add noise."""


@dataclass(frozen=True)
class Noise:
    """Standard normal numbers, a function of a secret and of values."""

    secret: bytes
    """Secret of up to 64 bytes that only one side knows."""

    def of(self, values: Tensor, *shape: int) -> Tensor:
        """Return noise [*shape] for some float32 values; equal values always give the same noise."""
        digest = hashlib.blake2b(
            values.detach().float().contiguous().cpu().numpy().tobytes(), key=self.secret, digest_size=16
        ).digest()
        # A key of 128 bits: torch's generator starts from 32, which could be tried out.
        stream = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        return torch.from_numpy(stream.standard_normal(shape, dtype=np.float32)).to(values.device)


def secret_of(seed: int, owner: str) -> bytes:
    """Return an owner's secret derived from a seed; it hides nothing from anybody who knows the seed."""
    return hashlib.blake2b(f"{owner} {seed}".encode(), digest_size=32).digest()


@dataclass(frozen=True)
class MaxNorm:
    """Noise along each row, so that all rows are expected to be as long as the batch's longest.

    A row g of length n becomes g (1 + s sqrt(m^2 / n^2 - 1) e), e standard normal, m the greatest length, s the
    strength. Source: Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022, section 4.1.
    """

    strength: float
    noise: Noise

    def apply(self, values_BD: Tensor) -> Tensor:
        """Return the rows with noise."""
        lengths_B1 = values_BD.norm(dim=1, keepdim=True)
        if not len(values_BD):
            return values_BD
        excess_B1 = (lengths_B1.max() / lengths_B1.clamp(min=SHORTEST)).square() - 1
        spread_B1 = torch.where(lengths_B1 > SHORTEST, excess_B1.clamp(min=0).sqrt(), 0.0)
        noisy_BD: Tensor = values_BD * (1 + self.strength * spread_B1 * self.noise.of(values_BD, len(values_BD), 1))
        return noisy_BD


@dataclass(frozen=True)
class Gaussian:
    """Rows clipped to a length, with normal noise whose standard deviation is ``strength`` times that length.

    Source: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, for clipping and noise by example.
    """

    strength: float
    clip: float
    noise: Noise

    def apply(self, values_BD: Tensor) -> Tensor:
        """Return the rows, clipped and with noise."""
        lengths_B1 = values_BD.norm(dim=1, keepdim=True)
        clipped_BD: Tensor = values_BD * (self.clip / lengths_B1.clamp(min=self.clip))
        return clipped_BD + self.strength * self.clip * self.noise.of(values_BD, *values_BD.shape)


Defence = MaxNorm | Gaussian
"""Defence that changes the rows of a batch before they leave."""


class PartyDefence:
    """A party's defence against leakage; this base class changes nothing."""

    def add_noise(self, embedding_nD: Tensor) -> Tensor:
        """Return the embeddings of a batch as they may leave the party, with their graph."""
        return embedding_nD

    @property
    def embeds_alone(self) -> bool:
        """Each row outside of training must be embedded alone, for ``add_row_noise``."""
        return False

    def add_row_noise(self, embedding_nD: Tensor) -> Tensor:
        """Return embeddings outside of training as they may leave the party, each regardless of those beside it."""
        return embedding_nD

    def gradient(self, inputs: Sequence[Tensor], embedding_nD: Tensor, gradient_nD: Tensor) -> Tensor:
        """Return the gradient with which the party trains, given that of the joint loss."""
        return gradient_nD


@dataclass(frozen=True)
class NoisyEmbeddings(PartyDefence):
    """A party that sends noisy embeddings."""

    defence: Gaussian

    def add_noise(self, embedding_nD: Tensor) -> Tensor:
        """Return the clipped embeddings with noise."""
        return self.defence.apply(embedding_nD)

    @property
    def embeds_alone(self) -> bool:
        """Return True: a row's last bits, and so its noise, would depend on the rows beside it."""
        return True

    def add_row_noise(self, embedding_nD: Tensor) -> Tensor:
        """Return the clipped embeddings with noise that follows from the secret and the row's embedding.

        Whoever asks for a row again, beside others, gets the same numbers: there is nothing to average.
        """
        return torch.cat([self.defence.apply(embedding_1D) for embedding_1D in embedding_nD.split(1)])


@dataclass(frozen=True)
class Decorrelated(PartyDefence):
    """A party that also trains its embeddings to depend less on its features."""

    weight: float
    """Weight of the distance correlation relative to the joint loss."""

    def gradient(self, inputs: Sequence[Tensor], embedding_nD: Tensor, gradient_nD: Tensor) -> Tensor:
        """Return the gradient of the joint loss plus the weighted distance correlation."""
        if len(embedding_nD) < 2:  # one row has no distances
            return gradient_nD
        features_nF = torch.cat([tensor.float().flatten(1) for tensor in inputs], dim=1)
        moved_nD = embedding_nD.detach().float().requires_grad_()
        (slope_nD,) = torch.autograd.grad(distance_correlation(features_nF, moved_nD), moved_nD)
        return gradient_nD + self.weight * slope_nD


def party_defence(privacy: PrivacyConfig, secret: bytes) -> PartyDefence | None:
    """Return a party's defence of its embeddings; None if they leave unchanged."""
    match privacy.embeddings:
        case NoisyRows(strength=strength, clip=clip):
            return NoisyEmbeddings(Gaussian(strength, clip, Noise(secret)))
        case Decorrelation(strength=strength):
            return Decorrelated(strength)
        case None:
            return None


def server_defence(privacy: PrivacyConfig, secret: bytes) -> Defence | None:
    """Return the server's defence of a gradient's rows, None if it returns them unchanged."""
    match privacy.gradients:
        case MaxNormNoise(strength=strength):
            return MaxNorm(strength, Noise(secret))
        case NoisyGradients(strength=strength, clip=clip):
            return Gaussian(strength, clip, Noise(secret))
        case None:
            return None


def distance_correlation(first_BF: Tensor, second_BD: Tensor) -> Tensor:
    """Return the distance correlation of two sets of rows, 0 (independent) to 1; differentiable.

    Source: Székely, Rizzo and Bakirov, "Measuring and Testing Dependence by Correlation of Distances", 2007, eq. 2.8
    to 2.10; as a defence Vepakomma et al., "NoPeek: Information Leakage Reduction to Share Activations in Distributed
    Deep Learning", 2020.
    """
    first_BB, second_BB = _centred(first_BF), _centred(second_BD)
    covariance = (first_BB * second_BB).mean()
    variances = first_BB.square().mean() * second_BB.square().mean()
    # Without the small number constant rows would divide by 0, and the root has no slope at 0.
    return (covariance.clamp(min=0) / (variances.sqrt() + 1e-12) + 1e-12).sqrt()


def _centred(rows_BF: Tensor) -> Tensor:
    # Not by a matrix product, which is inexact for near rows; the slope at distance 0 is 0.
    distances_BB = torch.cdist(rows_BF, rows_BF, compute_mode="donot_use_mm_for_euclid_dist")
    means_B1 = distances_BB.mean(dim=1, keepdim=True)
    return distances_BB - means_B1 - means_B1.T + distances_BB.mean()
