"""SCAFFOLD.

Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", Algorithm 1: control
variates estimate how far a client's gradient is from everybody's, and take that out of its steps.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from vfl.config import OptimizerConfig
from vfl.horizontal.algorithm import (
    Aggregate,
    ClientUpdate,
    FederatedAlgorithm,
    Federation,
    Report,
    Vectors,
    combine,
    equal_mean,
)
from vfl.horizontal.config import AlgorithmConfig, HorizontalConfig
from vfl.horizontal.devices import Work
from vfl.horizontal.local import LocalResult, LocalTask


class ScaffoldConfig(AlgorithmConfig):
    """SCAFFOLD."""

    averages_equally = True
    option: Literal[1, 2] = 2
    """Control variate: 1 the full gradient at the received weights, 2 the mean step."""

    def check(self, horizontal: HorizontalConfig, optimizer: OptimizerConfig) -> None:
        """Raise ValueError for settings under which a step is not a gradient step, with option 2."""
        if self.option == 2 and not optimizer.plain:
            raise ValueError(
                "training.optimizer: SCAFFOLD's option 2 takes the step for the gradient and needs plain SGD; "
                "set momentum and weight_decay to 0, or horizontal.scaffold.option=1"
            )


class Scaffold(FederatedAlgorithm[ScaffoldConfig]):
    """y -= eta_l (g - c_i + c); w += eta_g mean(dy); c += sum(dc) / N.

    Invariant: c is the mean of all clients' c_i, which are zero before a client's first round.
    """

    Settings = ScaffoldConfig
    downloads = ("weights", "control_variate")
    uploads = ("delta", "control_variate")

    def __init__(self, settings: ScaffoldConfig, federation: Federation) -> None:
        super().__init__(settings, federation)
        self.extra_passes = 1 if settings.option == 1 else 0

    def initial_state(self, weights_P: Tensor) -> Vectors:
        """Start the server's control variate c at zero."""
        return {"weights": weights_P, "control_variate": torch.zeros_like(weights_P)}

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Shift every gradient by c - c_i; option 1 also requests the full gradient at w."""
        control_P = own.get("control_variate")
        # A client that never took part has c_i = 0.
        shift_P = state["control_variate"] if control_P is None else state["control_variate"] - control_P
        return replace(task, shift_P=shift_P, full_gradient="start" if self.settings.option == 1 else None)

    def client_update(self, result: LocalResult, own: Vectors, state: Vectors) -> ClientUpdate:
        """Update the client's control variate: option 1 to the gradient at w, option 2 to the mean step taken."""
        before_P = own.get("control_variate", torch.zeros_like(result.delta_P))
        if self.settings.option == 1:
            assert result.full_gradient_P is not None
            after_P = result.full_gradient_P
        else:
            # delta = y - w, so the minus makes it Algorithm 1's (w - y) / (tau eta_l). The steps were shifted by
            # c - c_i, which is taken out again: what is left is the mean gradient.
            mean_step_P = result.delta_P / (-result.steps * result.learning_rate)
            after_P = before_P - state["control_variate"] + mean_step_P
        return ClientUpdate(
            {"delta": result.delta_P, "control_variate": after_P - before_P}, {"control_variate": after_P}
        )

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return the mean change of the weights, and the change of c over all N clients, including absent ones."""
        clients = len(self.samples_N)
        return Aggregate(
            {
                "delta": equal_mean(reports, rate=self.horizontal.server_learning_rate),
                "control_variate": combine(reports, [1 / clients] * len(reports), "control_variate"),
            }
        )

    def server_update(self, state: Vectors, aggregate: Aggregate) -> Vectors:
        """Update weights and control variate."""
        return {
            "weights": state["weights"] + aggregate.vectors["delta"],
            "control_variate": state["control_variate"] + aggregate.vectors["control_variate"],
        }
