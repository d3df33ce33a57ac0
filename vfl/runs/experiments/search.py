"""The search for the cheapest alpha and beta that lose at most a given number of points, by Optuna's TPE sampler.

The cost of a pair is a weighted mean of the remaining shares of multiply-accumulates and of bytes. Trials are requested
in batches of as many as run at once, and their results are reported in order. A search that was killed therefore
requests the same trials again: finished runs are kept, and only the rest is trained.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vfl.config import ConfigError
from vfl.metrics import points_lost, reached, shown, title
from vfl.runs.experiments.sweep_plan import ALPHA, BETA, SearchConfig, Settings, folder_name
from vfl.runs.experiments.sweep_table import score

if TYPE_CHECKING:
    import optuna

EXCESS = "excess_points"
Summaries = Mapping[str, Mapping[str, Any]]


class Search:
    """One search. Raises ConfigError if Optuna is not installed."""

    def __init__(self, config: SearchConfig) -> None:
        try:
            import optuna  # an extra: only who searches needs it
        except ImportError:
            raise ConfigError("search: needs Optuna; install it with: pip install 'lvfl[search]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.config = config
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=5))

    @property
    def most_runs(self) -> int:
        """Number of runs of all trials and of the baseline; fewer are trained if a pair is chosen twice."""
        return (1 + self.config.trials) * len(self.config.seeds)

    def batches(self, summaries: Summaries, jobs: int) -> Iterator[list[Settings]]:
        """Yield the settings of runs to be trained next; ``summaries`` must hold their results when it continues.

        Ends at once if the runs to compare with have failed.
        """
        # `summaries` belongs to the caller, who fills it between two yields. All of a batch are asked for before one is
        # told, and told in that order, whichever ended first: what is asked for next depends on the results alone.
        yield self._runs(0.0, 0.0)
        told = 0
        while self._means(0.0, 0.0, summaries) is not None and told < self.config.trials:
            trials = [self.study.ask() for _ in range(min(jobs, self.config.trials - told))]
            pairs = [self._choose(trial) for trial in trials]
            yield [run for pair in pairs for run in self._runs(*pair)]
            for trial, pair in zip(trials, pairs, strict=True):
                self._tell(trial, pair, summaries)
            told += len(trials)

    def conclusion(self, summaries: Summaries) -> str:
        """Return a line about the cheapest pair found that keeps the score."""
        reference = self._means(0.0, 0.0, summaries)
        if reference is None:
            return "nothing was tried: the run without lightweighting, which all are compared with, failed"
        metric = _metric(summaries)
        kept = [
            trial
            for trial in self.study.trials
            if trial.values is not None and all(excess <= 0.0 for excess in trial.constraints.values())
        ]
        if not kept:
            pairs, points = len({_pair(trial.params) for trial in self.study.trials}), f"{self.config.points:g} points"
            return f"no alpha and beta of {pairs} keep the {title(metric)} within {points}"
        best = min(kept, key=lambda trial: trial.values[0])
        alpha, beta = _pair(best.params)
        means = self._means(alpha, beta, summaries)
        assert means is not None
        return (
            f"cheapest with at most {self.config.points:g} points lost: alpha {alpha:g}, beta {beta:g}; "
            f"test {title(metric)} {shown(metric, means[0])} (without lightweighting {shown(metric, reference[0])}), "
            f"cost {means[1]:.1%}"
        )

    def _choose(self, trial: "optuna.Trial") -> tuple[float, float]:
        for name, ratio in (("alpha", self.config.alpha), ("beta", self.config.beta)):  # each draws: the order matters
            trial.suggest_float(name, ratio.low, ratio.high, step=ratio.step)
        return _pair(trial.params)

    def _tell(self, trial: "optuna.Trial", pair: tuple[float, float], summaries: Summaries) -> None:
        import optuna

        reference, means = self._means(0.0, 0.0, summaries), self._means(*pair, summaries)
        if reference is None or means is None:  # a run failed: the sampler learns nothing from its pair
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        trial.set_constraint(EXCESS, points_lost(_metric(summaries), means[0], reference[0]) - self.config.points)
        self.study.tell(trial, means[1])

    def _runs(self, alpha: float, beta: float) -> list[Settings]:
        return [{ALPHA: alpha, BETA: beta, "seed": seed} for seed in self.config.seeds]

    def _means(self, alpha: float, beta: float, summaries: Summaries) -> tuple[float, float] | None:
        """Return mean score and cost over the seeds; None if a run has no result."""
        found = [summaries.get(folder_name(settings)) for settings in self._runs(alpha, beta)]
        there = [summary for summary in found if summary is not None]
        if len(there) < len(found):
            return None
        weight = self.config.compute_weight
        costs = [
            weight * (1 - each["savings_compute"]) + (1 - weight) * (1 - each["savings_communication"])
            for each in there
        ]
        return sum(score(each)["score"] for each in there) / len(there), sum(costs) / len(costs)


def _metric(summaries: Summaries) -> str:
    return reached(next(iter(summaries.values())))[0]


def _pair(params: Mapping[str, float]) -> tuple[float, float]:
    """Return alpha and beta, rounded: 0.1 + 0.2 is not 0.3, and the values name a folder."""
    return round(params["alpha"], 6), round(params["beta"], 6)
