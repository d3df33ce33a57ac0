"""FedAsync in the averaging form that T-SFL compares with (Section 5 of the T-SFL paper): synchronous in rounds."""

from collections.abc import Sequence

from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Report, Vectors, equal_mean


class FedAsyncAverage(FederatedAlgorithm):
    """w = gamma w + (1 - gamma) mean w_i."""

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return (1 - gamma) times the mean change."""
        share = 1 - self.settings.fedasync_average.gamma
        return Aggregate({"delta": equal_mean(reports, rate=share)}, statistics_share=share)
