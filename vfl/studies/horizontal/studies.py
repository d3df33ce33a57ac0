"""Which runs a comparison takes: a setting from a paper, and the algorithms that are compared in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vfl.config import ConfigError, ExperimentConfig, load_config


@dataclass(frozen=True)
class Study:
    """One setting and its algorithms."""

    title: str
    config: str
    """File below ``configs/horizontal``."""
    methods: Mapping[str, Sequence[str]]
    """Overrides by the name of each curve."""
    orderings: Sequence[tuple[str, str]] = field(default=())
    """Published: the first is better than the second."""
    source: str = ""
    """Where the setting and the orderings are published."""


def _algorithms(*names: str) -> dict[str, list[str]]:
    return {name: [f"horizontal.algorithm={name}"] for name in names}


_TSFL_CASES = {
    "case1": ["horizontal.devices.speed.kind=case1"],
    "case2": ["horizontal.devices.speed.kind=case2"],
    "case3": ["horizontal.devices.speed.kind=case3", "horizontal.partition.kind=gaussian"],
}
_TSFL_METHODS = _algorithms("fedavg", "fedprox", "fedasync_average", "dms")
_TSFL_METHODS["fedprox"].append("horizontal.fedprox.mu=0.1")


def _tsfl(case: str) -> Study:
    complete = ["horizontal.work.kind=fixed", "horizontal.local_steps=4"]
    methods = _TSFL_METHODS | {
        "fedavg_waiting": ["horizontal.algorithm=fedavg", *complete],
        "fedasync": ["horizontal.algorithm=fedasync", *complete],
    }
    return Study(
        f"Time-driven: T-SFL's {case.replace('case', 'Case ')}",
        "dms.yaml",
        {name: [*overrides, *_TSFL_CASES[case]] for name, overrides in methods.items()},
        (("dms", "fedavg"), ("dms", "fedprox"), ("dms", "fedasync_average"), ("fedavg", "fedasync_average")),
        "T-SFL/DMS, Tables II and III (MNIST)",
    )


def _momentum(task: str, config: str) -> Study:
    return Study(
        f"Server momentum (FedMom's setting), two clients per round: {task}",
        config,
        _algorithms("fedsgd", "fedavg", "fedmom"),
        (("fedmom", "fedavg"), ("fedavg", "fedsgd")),
        "FedMom, Fig. 5 and 6",
    )


STUDIES: dict[str, Study] = {
    "heterogeneity": Study(
        "System heterogeneity: half of the clients end early (FedLGA's setting)",
        "heterogeneity.yaml",
        _algorithms("fedavg", "fedprox", "fednova", "scaffold", "feddyn")
        | {"fedlga": ["horizontal.algorithm=fedlga", "horizontal.fedlga.scale=0.1"]},
        (
            *(("fedlga", other) for other in ("fedavg", "fedprox", "fednova", "scaffold", "feddyn")),
            *((other, "fedavg") for other in ("feddyn", "scaffold", "fedprox", "fednova")),
        ),
        "FedLGA, table of rounds to target and of best accuracies",
    ),
    "case1": _tsfl("case1"),
    "case2": _tsfl("case2"),
    "case3": _tsfl("case3"),
    "selection": Study(
        "Client selection by threshold: T-SFL's Case 3, only clients that do more than two steps",
        "dms.yaml",
        {
            name: [*overrides, *_TSFL_CASES["case3"], "horizontal.selection.min_steps=3"]
            for name, overrides in _TSFL_METHODS.items()
        },
        (
            *(("dms", other) for other in ("fedavg", "fedprox", "fedasync_average")),
            ("fedprox", "fedavg"),
            ("fedavg", "fedasync_average"),
        ),
        "T-SFL/DMS, Table III (2-iteration)",
    ),
    "momentum": _momentum("character LSTM on Shakespeare's plays", "fedmom.yaml"),
    "momentum_mnist": _momentum("LeNet on MNIST", "fedmom_mnist.yaml"),
}


@dataclass(frozen=True)
class Run:
    """One training."""

    study: str
    method: str
    seed: int
    config: ExperimentConfig

    @property
    def folder(self) -> str:
        """Name of the run's folder."""
        return f"{self.study}-{self.method}-seed{self.seed}"


def make_runs(
    configs: Path, names: Sequence[str], seeds: Sequence[int], overrides: Sequence[str], rounds: int | None
) -> list[Run]:
    """Return the runs of some studies, a seed at a time; ``overrides`` come after the studies' own.

    Raises ConfigError for an unknown study or setting.
    """
    runs: list[Run] = []
    for seed in seeds:
        for name in names:
            if name not in STUDIES:
                raise ConfigError(f"--studies: there is no {name!r}; choose from {', '.join(STUDIES)}")
            study = STUDIES[name]
            for method, own in study.methods.items():
                settings = [f"seed={seed}", f"name={name}-{method}", *own, *overrides]
                if rounds is not None:
                    settings.append(f"training.rounds={rounds}")
                runs.append(Run(name, method, seed, load_config(configs / study.config, settings)))
    return runs
