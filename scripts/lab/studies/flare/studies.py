"""The runs behind FLARE's Figures 3 to 8: their settings, curves and numbers of rounds.

Runs over a network are compared at equal simulated time. Scheduling does not depend on what is learned, so the rounds
that fit a time are counted beforehand, and every run ends there.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, islice
from typing import Any

from scripts.lab.studies.runs import StudyRun
from scripts.lab.studies.study import Settings, Study
from vfl.config import ExperimentConfig
from vfl.horizontal.devices import Devices
from vfl.horizontal.flare import FlareConfig
from vfl.horizontal.wireless.scheduling import Scheduler

SPLITS = {"iid": "i.i.d.", "shards": "non-i.i.d."}
POLICIES: Mapping[str, dict[str, Any]] = {
    "SPF": {"horizontal.wireless.policy": "greedy", "horizontal.flare.tau_bar": "mas"},
    "SP": {"horizontal.wireless.policy": "greedy"},
    "PS": {"horizontal.wireless.policy": "pre_tuned", "horizontal.clients_per_round": 10},
    "CP": {"horizontal.wireless.policy": "channel_proportion"},
    "DM": {"horizontal.wireless.policy": "device_maximization"},
    "CM": {"horizontal.wireless.policy": "computation_minimization"},
}
"""Settings of the policies by the paper's name (section V-C)."""
MATCHED = "FedAvg_x2.6"
"""FedAvg at the server rate at which its steps are as long as MaS's: the mean of tau_bar over that of tau_i, for 10
devices with exponential speeds of mean 3."""
STRATEGIES: dict[str, dict[str, Any]] = {
    "FedAvg": {"horizontal.flare.tau_bar": "none"},
    **{name: {"horizontal.flare.tau_bar": name.lower()} for name in ("MaS", "MeS", "FMaS", "FMeS")},
    MATCHED: {"horizontal.flare.tau_bar": "none", "horizontal.server_learning_rate": 2.6},
}
"""The curves of Fig. 4."""
SP_MATCHED = "SP_matched"
SP_RATES = {0.4: 1.3, 1.0: 1.9, 1.5: 1.05, 5.0: 1.8}
"""Server rate by deadline at which SP's steps are as long as SPF's: the mean of tau_bar over that of tau_i, over the
scheduled devices."""
LIPSCHITZ = 0.1
"""L of the shipped experiments."""
FIG_4_GROUPS = [0.05, 0.15, 0.2, 0.6]
FIG_8_DEADLINES_S = (0.4, 0.6, 0.8, 1.0, 1.2, 1.6, 2.0)
FIG_7_DEADLINE_S = 2.0
FIG_7_ROUNDS = 100
DEADLINES_S = {"mnist": (0.4, 1.0), "cifar10": (1.5, 5.0)}
"""Deadlines of the accuracy curves (Fig. 5 and 6), by data set."""


@dataclass(frozen=True)
class Scale:
    """Trained part of the paper's experiment."""

    rounds: int
    """Rounds of Figures 3 and 4."""
    seconds: float
    """Simulated seconds of Figures 5, 6 and 8."""


def figures(data_set: str) -> dict[int, dict[str, Study]]:
    """Return the studies of the figures that need training, by number and name."""
    every = {3: {"fig3": _figure_3(data_set)}, 4: dict(_figure_4(data_set))}
    if data_set == "cifar10":
        return every | {6: policies(data_set, DEADLINES_S[data_set])}
    both = ("SPF", "SP")  # of the deadlines of Figure 5 these are its runs
    return every | {5: policies(data_set, DEADLINES_S[data_set]), 8: policies(data_set, FIG_8_DEADLINES_S, both)}


def _figure_3(data_set: str) -> Study:
    """Return the study of FLARE against fixed and flexible aggregation: 20 of 60 devices, enough band for all."""
    groups = {"horizontal.devices.speed.kind": "groups", "horizontal.devices.speed.groups": [12, 6, 3]}
    fixed = {"horizontal.devices.speed": {"kind": "fixed", "mean": 7}}
    return Study(
        title="training loss, non-i.i.d.",
        config=f"horizontal/flare_{data_set}",
        settings=_sampling("shards", 20) | {"horizontal.clients": 60, "horizontal.flare.tau_bar": "none"},
        methods={"FLARE": groups | {"horizontal.flare.tau_bar": "mas"}, "flexible": groups, "fixed": fixed},
        orderings=(("FLARE", "flexible"), ("FLARE", "fixed")),
    )


def _figure_4(data_set: str) -> Iterator[tuple[str, Study]]:
    """Yield the studies of the strategies for tau_bar: 10 of 40 devices, i.i.d. and not, uniformly sampled and not."""
    for split, split_name in SPLITS.items():
        for sampling, title, weights in (("uniform", "uniform", []), ("groups", "non-uniform", FIG_4_GROUPS)):
            yield (
                f"fig4-{split}-{sampling}",
                Study(
                    title=f"{split_name}, {title} sampling",
                    config=f"horizontal/flare_{data_set}",
                    settings=_sampling(split, 10) | {"horizontal.selection.group_weights": weights},
                    methods=STRATEGIES,
                    orderings=(("MaS", "FedAvg"), ("MeS", "FedAvg")),
                    source="FLARE, Fig. 4",
                    matched={"MaS": MATCHED},
                ),
            )


def policies(data_set: str, deadlines_s: Sequence[float], names: Sequence[str] = tuple(POLICIES)) -> dict[str, Study]:
    """Return the comparisons of some policies (Fig. 5, 6, 8), by name, for each split and deadline."""
    return {
        policy_study(data_set, split, deadline_s): _policies(data_set, split, deadline_s, names)
        for split in SPLITS
        for deadline_s in deadlines_s
    }


def _policies(data_set: str, split: str, deadline_s: float, names: Sequence[str]) -> Study:
    methods = {name: POLICIES[name] for name in names}
    if "SPF" in names and (rate := SP_RATES.get(deadline_s)):
        same_gamma = {"horizontal.server_learning_rate": rate, "horizontal.flare.lipschitz": rate * LIPSCHITZ}
        methods[SP_MATCHED] = POLICIES["SP"] | same_gamma  # so the same schedule
    return Study(
        title=f"{SPLITS[split]}, t_thr = {deadline_s:g} s",
        config=f"horizontal/flare_{data_set}",
        settings={
            "horizontal.flare.tau_bar": "none",
            "horizontal.wireless.deadline_s": deadline_s,
            "horizontal.partition.kind": split,
        },
        methods=methods,
        orderings=(("SPF", "SP"), *(("SP", name) for name in names if name not in ("SPF", "SP"))),
        source="FLARE, Fig. 5 and 6",
        matched={"SPF": SP_MATCHED},
    )


def policy_study(data_set: str, split: str, deadline_s: float) -> str:
    """Return the name of one comparison of policies."""
    return f"{data_set}-{split}-{deadline_s:g}s"


def make_runs(
    data_set: str,
    numbers: Sequence[int],
    seed: int,
    scale: Scale,
    further: Settings,
    methods: Sequence[str] = (),
) -> list[StudyRun]:
    """Return the runs of some figures for one seed, each once; empty for figures of another data set.

    ``further`` settings come after the studies' own; ``methods``, if given, are the only ones.
    """
    runs: dict[str, StudyRun] = {}
    for number, studies in figures(data_set).items():
        for name, study in studies.items() if number in numbers else ():
            for method in study.methods:
                run = study.run(name, method, seed, further)
                if run.folder not in runs and (not methods or method in methods):
                    rounds = scale.rounds if number in (3, 4) else rounds_within(run.config, scale.seconds)
                    runs[run.folder] = study.run(name, method, seed, {**_lengths(rounds), **further})
    return list(runs.values())


def _lengths(rounds: int) -> Settings:
    """Return the settings of ``rounds`` rounds with at most twenty tests: a small cell's round costs less than one."""
    return {"training.rounds": rounds, "evaluation.every": max(1, rounds // 20), "checkpoint.every": 100_000}


def schedules(data_set: str, seed: int, further: Settings) -> dict[str, tuple[float, float]]:
    """Return each policy's devices per round and local steps per device at t_thr = 2 s (Fig. 7); trains nothing."""
    names = [name for name in POLICIES if name != "SPF"]  # schedules as SP does
    name, study = next(iter(policies(data_set, [FIG_7_DEADLINE_S], names).items()))
    return {each: participation(study.run(name, each, seed, further).config, FIG_7_ROUNDS) for each in names}


def rounds_within(config: ExperimentConfig, seconds: float) -> int:
    """Return the number of rounds that begin within the simulated time, at least one."""
    ends_s = accumulate(length_s for _, length_s in scheduled(config))
    return next(number for number, end_s in enumerate(ends_s, 1) if end_s >= seconds)


def participation(config: ExperimentConfig, rounds: int) -> tuple[float, float]:
    """Return the mean number of devices per round, and of local steps per participating device."""
    selected = [steps for steps, _ in islice(scheduled(config), rounds)]
    devices = sum(map(len, selected))
    return devices / rounds, sum(map(sum, selected)) / max(1, devices)


def scheduled(config: ExperimentConfig) -> Iterator[tuple[list[int], float]]:
    """Yield, for every round, the local steps of the selected devices and its length; trains nothing."""
    horizontal, batch_size, seed = config.horizontal, config.training.batch_size, config.seed
    devices = Devices(horizontal, [1] * horizontal.clients, batch_size, seed, (0, 0))
    assert isinstance(horizontal.own, FlareConfig)
    # The paper's settings name update_bits.
    scheduler = Scheduler(horizontal, horizontal.own.lipschitz, batch_size, seed, upload_bits=1.0)
    for number in count():
        plan = devices.plan(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of empty rounds: the run itself will say so
            selection = scheduler.select(number, plan)
        assert selection.seconds is not None
        yield [int(plan.steps_N[client]) for client in selection.clients], selection.seconds


def _sampling(split: str, clients: int) -> dict[str, Any]:
    return {
        "horizontal.wireless.policy": "none",
        "horizontal.partition.kind": split,
        "horizontal.clients_per_round": clients,
    }
