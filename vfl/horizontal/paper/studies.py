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


def _tsfl(case: str) -> Study:
    methods = _algorithms("fedavg", "fedprox", "fedasync_average", "dms") | {
        "fedavg_waiting": ["horizontal.algorithm=fedavg", "horizontal.work.kind=fixed", "horizontal.local_steps=4"],
        "fedasync": ["horizontal.algorithm=fedasync", "horizontal.work.kind=fixed", "horizontal.local_steps=4"],
    }
    methods["fedprox"].append("horizontal.fedprox.mu=0.1")
    return Study(
        f"Time-driven: T-SFL's {case.replace('case', 'Case ')}",
        "dms.yaml",
        {name: [*overrides, f"horizontal.devices.speed.kind={case}"] for name, overrides in methods.items()},
        (("dms", "fedavg"), ("dms", "fedprox"), ("dms", "fedasync_average"), ("fedavg", "fedasync_average")),
        "T-SFL/DMS, Tables II and III (MNIST)",
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
    "momentum": Study(
        "Server momentum (FedMom's setting): two clients per round",
        "fedmom.yaml",
        _algorithms("fedsgd", "fedavg", "fedmom"),
        (("fedmom", "fedavg"), ("fedavg", "fedsgd")),
        "FedMom, Fig. 5 and 6",
    ),
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
