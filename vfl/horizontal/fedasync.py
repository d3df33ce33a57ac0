"""FedAsync: the server takes every client's weights as they arrive.

Xie et al. 2019, "Asynchronous Federated Optimization", Algorithm 1: proximal local SGD from the version that the
client received, and a mixing weight that falls with the versions that came in between. The T-SFL paper (section 5)
compares with an averaging form, synchronous in rounds. Clients are drawn at random among the idle ones; running
statistics are mixed in like weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from vfl.config.settings import AboveZero, Fraction, NotNegative, Number, UsedWith
from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Report, Vectors, equal_mean
from vfl.horizontal.config import AlgorithmConfig, HorizontalConfig
from vfl.horizontal.devices import Work
from vfl.horizontal.local import LocalTask


class FedAsyncConfig(AlgorithmConfig):
    """FedAsync."""

    has_server_rate = False
    mixing: Annotated[Number, Field(gt=0, le=1)] = 0.6
    """alpha: weight of a fresh client."""
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    """How the mixing weight falls with staleness s."""
    power: Annotated[NotNegative, UsedWith("staleness", "polynomial")] = 0.5
    """p of polynomial, (s + 1)^-p."""
    hinge_slope: Annotated[AboveZero, UsedWith("staleness", "hinge")] = 10.0
    """q of hinge, 1 / (q (s - b) + 1) above b."""
    hinge_delay: Annotated[NotNegative, UsedWith("staleness", "hinge")] = 4.0
    """b of hinge."""
    mu: NotNegative = 0.005
    """Proximal term of the clients (rho of the paper)."""

    def ignored_beside(self, horizontal: HorizontalConfig) -> Mapping[str, str]:
        """Return the settings that only rounds of several clients use."""
        own = {"weights": "fedasync mixes one client at a time"}
        own["selection.group_weights"] = "fedasync draws idle clients one at a time, all alike"
        return {**super().ignored_beside(horizontal), **own}


class FedAsync(FederatedAlgorithm[FedAsyncConfig]):
    """FedAsync: at each arrival w = (1 - a_s) w + a_s w_i with a_s = mixing * s(staleness)."""

    Settings = FedAsyncConfig
    asynchronous = True

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Add the proximal term, anchored at the version received."""
        return replace(task, pull=self.settings.mu)

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return a_s (w_i - w) of the only report."""
        (report,) = reports
        share = mixing_weight(self.settings, report.staleness)
        # w_i = start + delta: the server has moved on since the client started.
        ahead_P = report.upload["delta"] + (report.start_P - state["weights"])
        return Aggregate(
            {"delta": ahead_P * share},
            {"fedasync/staleness": report.staleness, "fedasync/mixing": share},
            statistics_share=share,
        )


class FedAsyncAverageConfig(AlgorithmConfig):
    """The synchronous averaging form of FedAsync that T-SFL compares with."""

    averages_equally, has_server_rate = True, False  # gamma is another form of it
    gamma: Fraction = 0.5
    """Weight of the old weights."""


class FedAsyncAverage(FederatedAlgorithm[FedAsyncAverageConfig]):
    """w = gamma w + (1 - gamma) mean w_i: with equal weights FedAvg at the server rate 1 - gamma."""

    Settings = FedAsyncAverageConfig

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return (1 - gamma) times the mean change."""
        share = 1 - self.settings.gamma
        return Aggregate({"delta": equal_mean(reports, rate=share)}, statistics_share=share)


def mixing_weight(settings: FedAsyncConfig, staleness: int) -> float:
    """Return a_s for a client that started ``staleness`` versions ago (Section 5.2)."""
    if settings.staleness == "constant":
        return settings.mixing
    if settings.staleness == "polynomial":
        return settings.mixing * (staleness + 1) ** -settings.power
    if staleness <= settings.hinge_delay:
        return settings.mixing
    return settings.mixing / (settings.hinge_slope * (staleness - settings.hinge_delay) + 1)
