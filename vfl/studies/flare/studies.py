"""The runs behind FLARE's Figures 3 to 8: which settings, which curves, how many rounds.

Runs over a network are compared at equal simulated time. Who is scheduled does not depend on what is learned, so the
rounds that fit a time are counted beforehand, and every run ends there.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from vfl.config import ExperimentConfig, load_config
from vfl.horizontal.devices import Devices
from vfl.horizontal.flare import FlareConfig
from vfl.horizontal.wireless.scheduling import Scheduler
from vfl.studies.runs import StudyRun

Split = Literal["iid", "shards"]
SPLITS: Mapping[Split, str] = {"iid": "i.i.d.", "shards": "non-i.i.d."}
POLICIES: Mapping[str, tuple[str, str]] = {
    "SPF": ("greedy", "mas"),
    "SP": ("greedy", "none"),
    "PS": ("pre_tuned", "none"),
    "CP": ("channel_proportion", "none"),
    "DM": ("device_maximization", "none"),
    "CM": ("computation_minimization", "none"),
}
"""Policy and tau_bar by the paper's name (section V-C)."""
MATCHED = "FedAvg_x2.6"
"""FedAvg at the server rate at which its steps are as long as MaS's: the mean of tau_bar over that of tau_i, for 10
devices with exponential speeds of mean 3."""
STRATEGIES = {
    "FedAvg": ("none", 1.0),
    "MaS": ("mas", 1.0),
    "MeS": ("mes", 1.0),
    "FMaS": ("fmas", 1.0),
    "FMeS": ("fmes", 1.0),
    MATCHED: ("none", 2.6),
}
"""tau_bar and server rate by the name of a curve of Fig. 4."""
FIG_4_GROUPS = "[0.05,0.15,0.2,0.6]"
FIG_8_DEADLINES_S = (0.4, 0.6, 0.8, 1.0, 1.2, 1.6, 2.0)
FIG_7_DEADLINE_S = 2.0
FIG_7_ROUNDS = 100
PS_DEVICES = 10


@dataclass(frozen=True)
class Scale:
    """How much of the paper's experiment is trained."""

    rounds: int
    """Of Figures 3 and 4."""
    seconds: float
    """Simulated, of Figures 5, 6 and 8."""


@dataclass(frozen=True)
class DataSet:
    """One of the paper's data sets."""

    config: str
    """File below ``configs/horizontal``."""
    deadlines_s: tuple[float, float]
    """Of its accuracy curves (Fig. 5 or 6)."""


DATA_SETS = {
    "mnist": DataSet("flare_mnist.yaml", (0.4, 1.0)),
    "cifar10": DataSet("flare_cifar10.yaml", (1.5, 5.0)),
}


@dataclass(frozen=True)
class Planner:
    """Builds the runs of one data set and seed."""

    configs: Path
    data_set: str
    seed: int
    scale: Scale
    overrides: tuple[str, ...]
    """Come after the studies' own."""

    def figure_3(self) -> list[StudyRun]:
        """FLARE against fixed and flexible aggregation: 20 of 60 devices, enough band for all."""
        groups = ["horizontal.devices.speed.kind=groups", "horizontal.devices.speed.groups=[12,6,3]"]
        methods = {
            "FLARE": [*groups, "horizontal.flare.tau_bar=mas"],
            "flexible": [*groups, "horizontal.flare.tau_bar=none"],
            "fixed": ["horizontal.devices.speed={kind: fixed, mean: 7}", "horizontal.flare.tau_bar=none"],
        }
        shared = [*_sampling("shards", 20), "horizontal.clients=60"]
        return [self._run("fig3", name, [*shared, *own], self.scale.rounds) for name, own in methods.items()]

    def figure_4(self) -> list[StudyRun]:
        """The strategies for tau_bar: 10 of 40 devices, uniform and not."""
        return [
            self._run(
                fig_4_study(split, uniform=uniform),
                name,
                [
                    *_sampling(split, 10),
                    f"horizontal.flare.tau_bar={tau_bar}",
                    f"horizontal.server_learning_rate={rate}",
                    f"horizontal.selection.group_weights={'[]' if uniform else FIG_4_GROUPS}",
                ],
                self.scale.rounds,
            )
            for split in SPLITS
            for uniform in (True, False)
            for name, (tau_bar, rate) in STRATEGIES.items()
        ]

    def policies(self, split: Split, deadline_s: float, names: Sequence[str] = tuple(POLICIES)) -> list[StudyRun]:
        """The scheduling policies over the same simulated time (Fig. 5, 6, 8)."""
        runs: list[StudyRun] = []
        for name in names:
            settings = [*_policy(name, deadline_s), f"horizontal.partition.kind={split}"]
            study = policy_study(self.data_set, split, deadline_s)
            rounds = rounds_within(self._config(study, name, settings), self.scale.seconds)
            runs.append(self._run(study, name, settings, rounds))
        return runs

    def all_policies(self) -> list[StudyRun]:
        """All policies, splits and deadlines of the accuracy curves (Fig. 5 or 6)."""
        deadlines_s = DATA_SETS[self.data_set].deadlines_s
        return [run for split in SPLITS for each in deadlines_s for run in self.policies(split, each)]

    def figure_8(self) -> list[StudyRun]:
        """SPF and SP over more deadlines; some of the runs are Figure 5's as well."""
        return [
            run for split in SPLITS for each in FIG_8_DEADLINES_S for run in self.policies(split, each, ("SPF", "SP"))
        ]

    def schedules(self) -> dict[str, tuple[float, float]]:
        """Return each policy's devices per round and local steps per device at t_thr = 2 s (Fig. 7); trains nothing."""
        return {
            name: participation(self._config("fig7", name, _policy(name, FIG_7_DEADLINE_S)), FIG_7_ROUNDS)
            for name in POLICIES
            if name != "SPF"  # schedules as SP does
        }

    def _run(self, study: str, method: str, settings: Sequence[str], rounds: int) -> StudyRun:
        # Twenty evaluations at most: a round on a small cell is cheaper than a test.
        every = max(1, rounds // 20)
        lengths = [f"training.rounds={rounds}", f"evaluation.every={every}", "checkpoint.every=100000"]
        return StudyRun(study, method, self.seed, self._config(study, method, [*settings, *lengths]))

    def _config(self, study: str, method: str, settings: Sequence[str]) -> ExperimentConfig:
        own = [f"seed={self.seed}", f"name={study}-{method}", *settings, *self.overrides]
        return load_config(self.configs / DATA_SETS[self.data_set].config, own)


def fig_4_study(split: Split, *, uniform: bool) -> str:
    """Return the name of one panel of Fig. 4."""
    return f"fig4-{split}-{'uniform' if uniform else 'groups'}"


def policy_study(data_set: str, split: Split, deadline_s: float) -> str:
    """Return the name of one comparison of policies."""
    return f"{data_set}-{split}-{deadline_s:g}s"


FIGURES: Mapping[int, tuple[Sequence[str], Callable[[Planner], list[StudyRun]]]] = {
    3: (("mnist", "cifar10"), Planner.figure_3),
    4: (("mnist", "cifar10"), Planner.figure_4),
    5: (("mnist",), Planner.all_policies),
    6: (("cifar10",), Planner.all_policies),
    8: (("mnist",), Planner.figure_8),
}
"""Data sets and runs of each figure that needs training; the paper's Figures 3 and 4 have MNIST alone."""


def make_runs(planner: Planner, figures: Sequence[int], methods: Sequence[str] = ()) -> list[StudyRun]:
    """Return the runs of some figures for one seed, each once; of figures of another data set none.

    ``methods`` leaves out all others.
    """
    runs: dict[str, StudyRun] = {}
    for figure in figures:
        data_sets, build = FIGURES[figure]
        if planner.data_set in data_sets:
            runs |= {run.folder: run for run in build(planner)}
    return [run for run in runs.values() if not methods or run.method in methods]


def rounds_within(config: ExperimentConfig, seconds: float) -> int:
    """Return how many rounds begin before the simulated time is over, at least one."""
    # What is learned and what it is learned from do not matter to the schedule.
    return _rounds_within(_Schedules(config), seconds)


def participation(config: ExperimentConfig, rounds: int) -> tuple[float, float]:
    """Return the mean number of devices per round, and of local steps per participating device."""
    schedules = _Schedules(config)
    selected = [schedules.steps_and_seconds(number)[0] for number in range(rounds)]
    devices = sum(map(len, selected))
    return devices / rounds, sum(map(sum, selected)) / max(1, devices)


class _Schedules:
    """The rounds of a configuration without its training; equal where the same devices are scheduled."""

    def __init__(self, config: ExperimentConfig) -> None:
        horizontal = config.horizontal
        self.devices = Devices(horizontal, [1] * horizontal.clients, config.training.batch_size, config.seed, (0, 0))
        own = horizontal.own
        assert isinstance(own, FlareConfig)
        batch_size = config.training.batch_size
        # The paper's settings name update_bits.
        self.scheduler = Scheduler(horizontal, own.lipschitz, batch_size, config.seed, upload_bits=1.0)
        self.key = (config.seed, config.training.batch_size, str(horizontal.wireless), str(horizontal.devices))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Schedules) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def steps_and_seconds(self, round_index: int) -> tuple[list[int], float]:
        """Return the local steps of the selected devices and the round's length."""
        plan = self.devices.plan(round_index)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of empty rounds: the run itself will say so
            selection = self.scheduler.select(round_index, plan)
        assert selection.seconds is not None
        return [int(plan.steps_N[client]) for client in selection.clients], selection.seconds


@cache
def _rounds_within(schedules: _Schedules, seconds: float) -> int:
    rounds, clock_s = 0, 0.0
    while clock_s < seconds:
        clock_s += schedules.steps_and_seconds(rounds)[1]
        rounds += 1
    return rounds


def _sampling(split: Split, clients: int) -> list[str]:
    return [
        "horizontal.wireless.policy=none",
        f"horizontal.partition.kind={split}",
        f"horizontal.clients_per_round={clients}",
    ]


def _policy(name: str, deadline_s: float) -> list[str]:
    policy, tau_bar = POLICIES[name]
    settings = [
        f"horizontal.wireless.policy={policy}",
        f"horizontal.wireless.deadline_s={deadline_s}",
        f"horizontal.flare.tau_bar={tau_bar}",
    ]
    return [*settings, f"horizontal.clients_per_round={PS_DEVICES}"] if name == "PS" else settings
