"""FedAsync: the server takes every client's weights as they arrive.

Xie et al. 2019, "Asynchronous Federated Optimization", Algorithm 1: proximal local SGD from the version that the
client received, and a mixing weight that falls with the versions that came in between.
"""

from collections.abc import Sequence
from dataclasses import replace

from vfl.config.horizontal import FedAsyncConfig
from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Report, Vectors
from vfl.horizontal.devices import Work
from vfl.horizontal.local import LocalTask


class FedAsync(FederatedAlgorithm):
    """Per arrival w = (1 - a_s) w + a_s w_i with a_s = mixing * s(staleness)."""

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Add the proximal term, anchored at the version received."""
        return replace(task, pull=self.settings.fedasync.mu)

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return a_s (w_i - w) of the one report there is."""
        (report,) = reports
        share = mixing_weight(self.settings.fedasync, report.staleness)
        ahead_P = report.upload["delta"] + (report.start_P - state["weights"])
        return Aggregate(
            {"delta": ahead_P * share},
            {"fedasync/staleness": report.staleness, "fedasync/mixing": share},
            statistics_share=share,
        )


def mixing_weight(settings: FedAsyncConfig, staleness: int) -> float:
    """Return a_s for a client that started ``staleness`` versions ago (Section 5.2)."""
    if settings.staleness == "constant":
        return settings.mixing
    if settings.staleness == "polynomial":
        return settings.mixing * (staleness + 1) ** -settings.power
    if staleness <= settings.hinge_delay:
        return settings.mixing
    return settings.mixing / (settings.hinge_slope * (staleness - settings.hinge_delay) + 1)
