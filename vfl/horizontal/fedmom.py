"""FedMom.

Huo et al. 2020, "Faster On-Device Training Using New Federated Momentum Algorithm", Algorithm 3: the averaged
change is a biased gradient, and the server follows it with Nesterov's momentum.
"""

from collections.abc import Sequence

from torch import Tensor

from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Report, Vectors, combine


class FedMom(FederatedAlgorithm):
    """v' = w - eta sum_k (n_k/n)(w - w_k) with n over all N clients; w = v' + beta (v' - v)."""

    def initial_state(self, weights_P: Tensor) -> Vectors:
        """Start v at w."""
        return {"weights": weights_P, "v": weights_P}

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return eta times the pseudo-gradient's negative; clients that are absent count as unchanged."""
        own = self.settings.fedmom.learning_rate
        rate = len(self.samples_N) / self.settings.clients_per_round if own is None else own
        whole = sum(self.samples_N)
        coefficients = [rate * (self.samples_N[report.work.client] / whole) for report in reports]
        return Aggregate({"delta": combine(reports, coefficients)})

    def server_update(self, state: Vectors, aggregate: Aggregate) -> Vectors:
        """Take the step, then go on in its direction."""
        v_P = state["weights"] + aggregate.vectors["delta"]
        return {"weights": v_P + self.settings.fedmom.momentum * (v_P - state["v"]), "v": v_P}
