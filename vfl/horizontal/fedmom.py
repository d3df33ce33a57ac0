"""FedMom.

Huo et al. 2020, "Faster On-Device Training Using New Federated Momentum Algorithm", Algorithm 3: the averaged
change is a biased gradient, and the server follows it with Nesterov's momentum. Its weights are n_i over all N
clients and its eta is N / K, as printed. With ``weights: reporting`` or ``equal`` the weights sum to 1, and eta is 1.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vfl.config import ConfigError
from vfl.config.settings import AboveZero, Fraction
from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Federation, Report, Vectors, combine
from vfl.horizontal.config import AlgorithmConfig
from vfl.runs.checkpoint import CheckpointStore


class FedMomConfig(AlgorithmConfig):
    """FedMom."""

    has_server_rate = False  # its own is below
    learning_rate: AboveZero | None = None
    """eta; null is N / K with weights: all, else 1."""
    momentum: Fraction = 0.9
    """beta"""
    reference: Path | None = None
    """Run with the weights w* of the diagnostic <g, w - w*>."""

    @classmethod
    def defaults(cls) -> Mapping[str, object]:
        """Return the paper's weights: n_k over all N clients."""
        return {"weights": "all"}


class FedMom(FederatedAlgorithm[FedMomConfig]):
    """v' = w - eta sum_k p_k (w - w_k); w = v' + beta (v' - v), with p_k = n_k/n over all N clients unless set.

    With ``horizontal.fedmom.reference`` it reports how well the biased gradient g = sum_k p_k (w - w_k) points to
    that run's last weights w*: <g, w - w*>, above 0 where the step leads there (Figure 3; with momentum 0 and learning
    rate 1 it is FedAvg's).
    """

    Settings = FedMomConfig

    def __init__(self, settings: FedMomConfig, federation: Federation) -> None:
        super().__init__(settings, federation)
        usual = len(self.samples_N) / self.horizontal.clients_per_round if self.horizontal.weights == "all" else 1.0
        self.rate = usual if settings.learning_rate is None else settings.learning_rate
        self.reference_P: Tensor | None = None

    def initial_state(self, weights_P: Tensor) -> Vectors:
        """Start v at w."""
        if self.settings.reference is not None:
            self.reference_P = load_reference(self.settings.reference, weights_P)
        return {"weights": weights_P, "v": weights_P}

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return -eta times the pseudo-gradient; with weights over all clients, absent ones count as unchanged."""
        coefficients = [self.rate * weight for weight in self.weights(reports)]
        delta_P = combine(reports, coefficients)
        if self.reference_P is None:
            return Aggregate({"delta": delta_P})
        # delta = -eta g and towards = w* - w: two signs that cancel in <g, w - w*>, and eta is divided out.
        towards_P = self.reference_P - state["weights"]
        return Aggregate({"delta": delta_P}, {"fedmom/alignment": float(torch.dot(delta_P, towards_P)) / self.rate})

    def server_update(self, state: Vectors, aggregate: Aggregate) -> Vectors:
        """Take the step, then go on in its direction (Algorithm 3, lines 9 and 10)."""
        v_P = state["weights"] + aggregate.vectors["delta"]
        return {"weights": v_P + self.settings.momentum * (v_P - state["v"]), "v": v_P}


def load_reference(run_dir: Path, like_P: Tensor) -> Tensor:
    """Return the weights of a horizontal run's last checkpoint, on the device of ``like_P``.

    Raises ConfigError if there are none, or their number of entries differs.
    """
    field = "horizontal.fedmom.reference"
    loaded = CheckpointStore(run_dir / "checkpoints").load_latest()
    if loaded is None:
        raise ConfigError(f"{field}: {run_dir} holds no checkpoint; name the folder of a finished horizontal run")
    vectors = loaded[1].get("server", {}).get("vectors", {})
    if "weights" not in vectors:
        raise ConfigError(f"{field}: {run_dir} is no horizontal run; name the folder of one")
    weights_P: Tensor = vectors["weights"]
    if weights_P.shape != like_P.shape:
        raise ConfigError(
            f"{field}: the weights of {run_dir} have {weights_P.numel()} entries, this model's {like_P.numel()}; "
            "name a run of the same models.classifier and data"
        )
    return weights_P.to(like_P.device)
