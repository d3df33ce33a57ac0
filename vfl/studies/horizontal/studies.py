"""Which runs a comparison takes: a setting from a paper, and the algorithms that are compared in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vfl.config import ConfigError, load_config
from vfl.studies.runs import StudyRun


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
    matched: Mapping[str, str] = field(default_factory=dict[str, str])
    """Control of a method: FedAvg with a server rate that makes its steps as long as the method's."""


def _algorithms(*names: str) -> dict[str, list[str]]:
    return {name: [f"horizontal.algorithm={name}"] for name in names}


_TAU_MAX = (2, 3, 4)


def _approximation() -> dict[str, list[str]]:
    """Return FedAvg and FedLGA over tau_max, and FedLGA with the gradient at the client's last weights."""
    methods: dict[str, list[str]] = {}
    for tau_max in _TAU_MAX:
        work = f"horizontal.work.max_missing_epochs={tau_max - 1}"
        methods[f"fedavg_tau{tau_max}"] = ["horizontal.algorithm=fedavg", work]
        methods[f"fedlga_tau{tau_max}"] = ["horizontal.algorithm=fedlga", "horizontal.fedlga.scale=0.1", work]
    return methods | {"fedlga_end": [*methods["fedlga_tau4"], "horizontal.fedlga.gradient=end"]}


_TSFL_CASES = {
    "case1": ["horizontal.devices.speed.kind=case1"],
    "case2": ["horizontal.devices.speed.kind=case2"],
    "case3": ["horizontal.devices.speed.kind=case3", "horizontal.partition={kind: gaussian, classes_per_client: null}"],
}
_TSFL_METHODS = _algorithms("fedavg", "fedprox", "fedasync_average", "dms")
_TSFL_METHODS["fedprox"].append("horizontal.fedprox.mu=0.1")


def _scaled(*rates: float) -> dict[str, list[str]]:
    """Return FedAvg at other server rates: controls of methods that take longer or shorter steps."""
    return {
        f"fedavg_x{rate:g}": ["horizontal.algorithm=fedavg", f"horizontal.server_learning_rate={rate}"]
        for rate in rates
    }


def _tsfl(case: str, control: float | None = None, settings: Sequence[str] = ()) -> Study:
    """Return a case of T-SFL; ``control`` is DMS's ``dms/weighted_steps`` over FedAvg's mean steps, where measured."""
    complete = ["horizontal.work.kind=fixed", "horizontal.local_epochs=4"]
    methods = (
        _TSFL_METHODS
        | (_scaled(control) if control else {})
        | {
            "fedavg_waiting": ["horizontal.algorithm=fedavg", *complete],
            "fedasync": ["horizontal.algorithm=fedasync", *complete],
        }
    )
    reading = ", an iteration as one batch, i.i.d." if settings else ""
    return Study(
        f"Time-driven: T-SFL's {case.replace('case', 'Case ')}{reading}",
        "dms.yaml",
        {name: [*overrides, *_TSFL_CASES[case], *settings] for name, overrides in methods.items()},
        (("dms", "fedavg"), ("dms", "fedprox"), ("dms", "fedasync_average"), ("fedavg", "fedasync_average")),
        "T-SFL/DMS, Tables II and III (MNIST)",
        {"dms": f"fedavg_x{control:g}"} if control else {},
    )


def _momentum(task: str, config: str) -> Study:
    # Momentum 0.9 makes a step of 1 one of 1 / (1 - 0.9) in the long run.
    return Study(
        f"Server momentum (FedMom's setting), two clients per round: {task}",
        config,
        _algorithms("fedsgd", "fedavg", "fedmom")
        | {"fedmom_reporting": ["horizontal.algorithm=fedmom", "horizontal.weights=reporting"]}
        | _scaled(10.0),
        (("fedmom", "fedavg"), ("fedmom_reporting", "fedavg"), ("fedavg", "fedsgd")),
        "FedMom, Fig. 5 and 6",
        dict.fromkeys(("fedmom", "fedmom_reporting"), "fedavg_x10"),
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
    "case1": _tsfl("case1", 1.6),
    "case1_batches": _tsfl(
        "case1",
        1.138,
        ["horizontal.partition={kind: iid, classes_per_client: null}", "horizontal.work.interval_s=1.0"],
    ),
    "case2": _tsfl("case2"),
    "case3": _tsfl("case3"),
    "selection": Study(
        "Client selection by threshold: T-SFL's Case 3, only clients that do more than two passes",
        "dms.yaml",
        {
            name: [*overrides, *_TSFL_CASES["case3"], "horizontal.selection.min_steps=65"]
            for name, overrides in _TSFL_METHODS.items()
        },
        (
            *(("dms", other) for other in ("fedavg", "fedprox", "fedasync_average")),
            ("fedprox", "fedavg"),
            ("fedavg", "fedasync_average"),
        ),
        "T-SFL/DMS, Table III (2-iteration)",
    ),
    "approximation": Study(
        "FedLGA's correction: tau_max, and the gradient that it is made of",
        "heterogeneity.yaml",
        _approximation(),
        (*((f"fedlga_tau{each}", f"fedavg_tau{each}") for each in _TAU_MAX), ("fedlga_end", "fedavg_tau4")),
        "FedLGA, Table V",
    ),
    "momentum": _momentum("character LSTM on Shakespeare's plays", "fedmom.yaml"),
    "momentum_mnist": _momentum("LeNet on MNIST", "fedmom_mnist.yaml"),
}


def make_runs(
    configs: Path,
    names: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str],
    rounds: int | None,
    methods: Sequence[str] = (),
) -> list[StudyRun]:
    """Return the runs of some studies, a seed at a time; ``overrides`` come after the studies' own.

    ``methods`` leaves out all others. Raises ConfigError for an unknown study, method or setting.
    """
    known = {method for name in names if name in STUDIES for method in STUDIES[name].methods}
    if unknown := [method for method in methods if method not in known]:
        raise ConfigError(
            f"--methods: {unknown[0]!r} is in none of the studies; choose from {', '.join(sorted(known))}"
        )
    runs: list[StudyRun] = []
    for seed in seeds:
        for name in names:
            if name not in STUDIES:
                raise ConfigError(f"--studies: there is no {name!r}; choose from {', '.join(STUDIES)}")
            study = STUDIES[name]
            for method, own in study.methods.items():
                if methods and method not in methods:
                    continue
                settings = [f"seed={seed}", f"name={name}-{method}", *own, *overrides]
                if rounds is not None:
                    settings.append(f"training.rounds={rounds}")
                runs.append(StudyRun(name, method, seed, load_config(configs / study.config, settings)))
    return runs
