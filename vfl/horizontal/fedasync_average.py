"""FedAsync in the averaging form that T-SFL compares with (Section 5 of the T-SFL paper): synchronous in rounds."""

from collections.abc import Sequence

from vfl.config.horizontal import AlgorithmConfig
from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Report, Vectors, equal_mean
from vfl.settings import Fraction


class FedAsyncAverageConfig(AlgorithmConfig):
    """The synchronous averaging form of FedAsync that T-SFL compares with."""

    averages_equally, has_server_rate = True, False  # of which gamma is another form
    gamma: Fraction = 0.5
    """Weight of the old weights."""


class FedAsyncAverage(FederatedAlgorithm[FedAsyncAverageConfig]):
    """w = gamma w + (1 - gamma) mean w_i: with equal weights FedAvg at the server rate 1 - gamma."""

    Settings = FedAsyncAverageConfig

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return (1 - gamma) times the mean change."""
        share = 1 - self.settings.gamma
        return Aggregate({"delta": equal_mean(reports, rate=share)}, statistics_share=share)
