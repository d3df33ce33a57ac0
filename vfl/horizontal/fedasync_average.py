"""FedAsync in the averaging form that T-SFL compares with (Section 5 of the T-SFL paper): synchronous in rounds."""

from collections.abc import Mapping, Sequence

from vfl.config.horizontal import AlgorithmConfig, HorizontalConfig, unless_equal, without_server_rate
from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Report, Vectors, equal_mean
from vfl.settings import Fraction


class FedAsyncAverageConfig(AlgorithmConfig):
    """The synchronous averaging form of FedAsync that T-SFL compares with."""

    gamma: Fraction = 0.5
    """Weight of the old weights."""

    def ignored_beside(self, horizontal: HorizontalConfig) -> Mapping[str, str]:
        """Return the server's rate, which gamma is in another form, and other weights than equal ones."""
        own = {**without_server_rate(horizontal), **unless_equal(horizontal)}
        return {**super().ignored_beside(horizontal), **own}


class FedAsyncAverage(FederatedAlgorithm[FedAsyncAverageConfig]):
    """w = gamma w + (1 - gamma) mean w_i: with equal weights FedAvg at the server rate 1 - gamma."""

    Settings = FedAsyncAverageConfig

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return (1 - gamma) times the mean change."""
        share = 1 - self.settings.gamma
        return Aggregate({"delta": equal_mean(reports, rate=share)}, statistics_share=share)
