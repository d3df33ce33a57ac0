"""FedAvg and FedSGD.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data": clients train
locally, the server averages. FedSGD is its special case of one gradient over all of a client's samples.
"""

from collections.abc import Mapping

from vfl.config import OptimizerConfig
from vfl.horizontal.algorithm import FederatedAlgorithm
from vfl.horizontal.config import AlgorithmConfig, HorizontalConfig


class FedAvg(FederatedAlgorithm[AlgorithmConfig]):
    """w += eta_g sum_i p_i (w_i - w), with p_i = n_i / n over the reporting clients, over all, or equal."""


class FedSGDConfig(AlgorithmConfig):
    """FedSGD has no settings."""

    def check(self, horizontal: HorizontalConfig, optimizer: OptimizerConfig) -> None:
        """Raise ValueError for Nesterov's momentum."""
        if optimizer.nesterov:
            raise ValueError(
                "training.optimizer.nesterov: FedSGD takes one step, which it only lengthens; set it to false"
            )

    def ignored_beside(self, horizontal: HorizontalConfig) -> Mapping[str, str]:
        """Return the settings of local work, which is always one gradient."""
        work = ("local_epochs", "local_steps", "work")
        return {**super().ignored_beside(horizontal), **dict.fromkeys(work, "fedsgd takes one step over all samples")}


class FedSGD(FederatedAlgorithm[FedSGDConfig]):
    """One full-batch gradient g_i per client and w -= eta sum_i p_i g_i, for a server rate of 1.

    The client takes the step and sends the difference -eta g_i: the same numbers on the wire, and the learning
    rate's schedule stays where it is for all others.
    """

    Settings = FedSGDConfig
    one_step_full_batch = True
