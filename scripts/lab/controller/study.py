"""The controller deadline in four scenarios, beside every uniform pair of a grid and every pair by party that matters.

    python -m scripts.lab.controller.study CONFIG DIR --seeds 0,1,2 [--plots-only] [key=value ...]

CONFIG is digits.yaml or cifar10.yaml beside this file, DIR holds the runs and gets tables and plots. Fixed ratios train
the same bits on any machines: they are trained once, and their seconds on a scenario's machines follow from their
counts. The same command continues an interrupted study.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, product
from math import inf, isfinite
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from scripts.lab.studies.command import whole_numbers
from scripts.lab.studies.plots import Panel, draw_bars, draw_panels
from scripts.lab.studies.runner import train_missing
from scripts.lab.studies.runs import StudyResult, StudyRun, load_results
from vfl.config import ConfigError, ExperimentConfig, load_config
from vfl.config.devices import DeviceConfig, SimulationConfig
from vfl.console import DONE, OneLineParser, ShowConsole, add_executor_options, command, to_stderr
from vfl.core.batches import steps_in_round
from vfl.core.costs.forecast import Forecast
from vfl.core.costs.schedule import Ratios
from vfl.core.local import build_in_process
from vfl.reports.markdown import table
from vfl.runs.atomic import write_atomically
from vfl.runs.run_folder import LOG, Row
from vfl.runs.runtime import start_runtime
from vfl.sweeps.choose_executor import open_executor
from vfl.sweeps.executor import Resources

ALPHAS, BETAS = (0.0, 0.3, 0.5, 0.7), (0.0, 0.3, 0.6, 0.85)
DEADLINE: dict[str, object] = {"controller": "deadline", "seconds_per_exchange": "auto"}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "deadline": ("ABCD", {}),
    "deadline, alpha weight 3": ("AC", {"alpha_weight": 3.0}),
    "deadline of 0.2 s, alpha weight 3": ("A", {"alpha_weight": 3.0, "seconds_per_exchange": 0.2}),
}
"""Controllers: the scenarios they are trained in, and their settings. Decisions are drawn for the first one."""
UNIFORM, BY_PARTY = "uniform", "by party"
BEST = "best uniform"
NONE = (UNIFORM, "0 0")
"""Study and method of the run without lightweighting."""
ORACLES = ("A", "D")
"""Scenarios with unequal machines, for which all pairs by party are searched."""
FINALISTS = 3
"""Fixed ratios of each scenario, the fastest with the first seed, that are trained with the other seeds too."""
MATTERS = 1.01
"""Least factor by which the next lower ratio must be slower for a ratio to be needed."""
PARTIES = tuple(f"party_{number}" for number in range(1, 5))
SLOW_LINK = 250e3
"""Bytes per second: 2 Mbit/s."""
TARGETS = (0.9, 0.95)
"""Shares of the final accuracy without lightweighting, mean over the seeds."""
SMOOTHED = 3
"""Rounds over which an accuracy is averaged."""


class Fixed(NamedTuple):
    """Ratios of a whole run: alpha of every party, and one beta for all, as each party's frames go to all others."""

    alphas: tuple[float, ...]
    beta: float

    @property
    def method(self) -> str:
        """Name of the method; one alpha if all are equal."""
        alphas = self.alphas[:1] if len(set(self.alphas)) == 1 else self.alphas
        return f"{','.join(f'{alpha:g}' for alpha in alphas)} {self.beta:g}"

    @property
    def study(self) -> str:
        """Name of the study, by whether all parties have the same alpha."""
        return UNIFORM if len(set(self.alphas)) == 1 else BY_PARTY

    def lower(self) -> Iterator["Fixed"]:
        """Yield the ratios with one of them a step lower."""
        for party, alpha in enumerate(self.alphas):
            if alpha:
                step = ALPHAS[ALPHAS.index(alpha) - 1]
                yield Fixed((*self.alphas[:party], step, *self.alphas[party + 1 :]), self.beta)
        if self.beta:
            yield Fixed(self.alphas, BETAS[BETAS.index(self.beta) - 1])

    def settings(self) -> dict[str, object]:
        """Return the ratios as settings."""
        return {"alpha": dict(zip(PARTIES, self.alphas, strict=True)), "beta": self.beta}


def scenarios(base: ExperimentConfig) -> dict[str, SimulationConfig]:
    """Return the simulated machines of each scenario."""
    equal, half = base.simulation.device, base.training.rounds // 2
    assert isinstance(equal.macs_per_s, float)

    def behind(rate: float | dict[int, float]) -> DeviceConfig:
        return equal.model_copy(update={"uplink_bytes_per_s": rate, "downlink_bytes_per_s": rate})

    slower = [equal.model_copy(update={"macs_per_s": equal.macs_per_s * 10 ** (-place / 3)}) for place in range(4)]
    parties = {
        "A": {"party_2": equal.model_copy(update={"macs_per_s": equal.macs_per_s / 4}), "party_3": behind(SLOW_LINK)},
        "B": {},
        "C": {"party_3": behind({0: 10 * SLOW_LINK, half: SLOW_LINK})},
        "D": dict(zip(PARTIES, slower, strict=True)),
    }
    return {name: SimulationConfig(device=equal, parties=each) for name, each in parties.items()}


def needed_pairs(forecast: Forecast, machines: SimulationConfig) -> list[Fixed]:
    """Return the ratios of the grid that are needed: with any one lower a round would take longer."""
    every = [Fixed(alphas, beta) for alphas in product(ALPHAS, repeat=len(PARTIES)) for beta in BETAS]
    seconds = {each: _round_s(forecast, machines, each) for each in every}
    return [each for each in every if all(seconds[low] > MATTERS * seconds[each] for low in each.lower())]


def _round_s(forecast: Forecast, machines: SimulationConfig, fixed: Fixed) -> float:
    """Return the seconds of a round on machines whose speeds are constant."""
    betas = dict.fromkeys(PARTIES, fixed.beta)

    def party_s(name: str, alpha: float) -> float:
        device, cost = machines.of(name), forecast.cost(name, Ratios(alpha, fixed.beta), betas)
        link_s = device.uplink_s(0, cost.uplink_bytes) + device.downlink_s(0, cost.downlink_bytes)
        return device.compute_s(0, cost.macs) + link_s

    return max(map(party_s, PARTIES, fixed.alphas))


def promising(study: "Study", name: str, forecast: Forecast) -> list[Fixed]:
    """Return the pairs by party that would beat the best uniform one in as many rounds as no lightweighting takes."""
    machines, none = scenarios(study.base)[name], Fixed((0.0,) * len(PARTIES), 0.0)
    to_s = {method: each.to_s(study.target()) for method, each in study.methods(name, UNIFORM).items()}
    limit_s = min(to_s.values()) / to_s[NONE[1]] * _round_s(forecast, machines, none)
    pairs = (each for each in needed_pairs(forecast, machines) if each.study == BY_PARTY)
    return [each for each in pairs if _round_s(forecast, machines, each) < limit_s]


def fixed_run(base: ExperimentConfig, fixed: Fixed, seed: int) -> StudyRun:
    """Return the run of fixed ratios, without a clock."""
    config = _with(base, seed, fixed.settings(), SimulationConfig())
    return StudyRun(fixed.study, fixed.method, seed, config)


def uniform_pairs() -> list[Fixed]:
    """Return the grid, beginning with no lightweighting."""
    return [Fixed((alpha,) * len(PARTIES), beta) for alpha, beta in product(ALPHAS, BETAS)]


def controlled_runs(base: ExperimentConfig, seed: int) -> list[StudyRun]:
    """Return the controllers' runs."""
    return [
        StudyRun(name, method, seed, _with(base, seed, DEADLINE | own, scenarios(base)[name]))
        for method, (names, own) in VARIANTS.items()
        for name in names
    ]


def _with(
    base: ExperimentConfig, seed: int, ratios: dict[str, object], simulation: SimulationConfig
) -> ExperimentConfig:
    lightweighting = base.lightweighting.model_copy(update=ratios)
    return base.model_copy(update={"seed": seed, "lightweighting": lightweighting, "simulation": simulation})


def clock(result: StudyResult, machines: SimulationConfig, base: ExperimentConfig) -> list[float]:
    """Return the seconds up to the end of every round on these machines, from the run's counts."""
    assert base.data.train_samples is not None
    passes = 3 * base.training.batch_size * steps_in_round(base.training, base.data.train_samples)

    def party_s(row: Row, name: str) -> float:
        device, number = machines.of(name), int(row["round"])
        transfer_s = device.uplink_s(number, int(row[f"uplink_bytes/{name}"]))
        transfer_s += device.downlink_s(number, int(row[f"downlink_bytes/{name}"]))
        return device.compute_s(number, int(passes * row[f"macs_per_sample/{name}"])) + transfer_s

    return list(accumulate(max(party_s(row, name) for name in PARTIES) for row in result.rows))


@dataclass(frozen=True)
class Method:
    """Runs of one method in a scenario: seconds and accuracy after every round, a curve per seed."""

    curves: Sequence[tuple[Sequence[float], Sequence[float]]]

    @property
    def mean(self) -> list[tuple[float, float]]:
        """Return seconds and accuracy after every round, means over the seeds."""
        rounds = zip(*(zip(*curve, strict=True) for curve in self.curves), strict=True)
        return [(mean(second for second, _ in each), mean(accuracy for _, accuracy in each)) for each in rounds]

    def to_s(self, target: float) -> float:
        """Return the seconds until the mean accuracy first reached the target, infinite if it never did."""
        return next((second for second, accuracy in self.mean if accuracy >= target), inf)

    def at_s(self, limit_s: float) -> float:
        """Return the mean accuracy of the last round within some seconds; 0 before the first."""
        return [0.0, *(accuracy for second, accuracy in self.mean if second <= limit_s)][-1]


def smoothed(run: StudyResult) -> list[float]:
    """Return the accuracy of every round, averaged with the rounds just before."""
    accuracies = run.accuracies
    return [mean(accuracies[max(0, end - SMOOTHED) : end]) for end in range(1, len(accuracies) + 1)]


@dataclass(frozen=True)
class Study:
    """Finished runs, and their comparison."""

    base: ExperimentConfig
    seeds: Sequence[int]
    results: Sequence[StudyResult]

    def target(self, share: float = TARGETS[-1]) -> float:
        """Return a share of the final accuracy without lightweighting."""
        return share * mean(smoothed(each)[-1] for each in self.results if (each.study, each.method) == NONE)

    def methods(self, scenario: str, *studies: str, share: float = TARGETS[-1]) -> dict[str, Method]:
        """Return the methods of some studies that all seeds have, with a scenario's seconds, the fastest first."""
        machines = scenarios(self.base)[scenario]
        curves: dict[str, list[tuple[list[float], list[float]]]] = {}
        for result in self.results:
            if result.study in studies:
                curve = clock(result, machines, self.base), smoothed(result)
                curves.setdefault(result.method, []).append(curve)
        found = {name: Method(each) for name, each in curves.items() if len(each) == len(self.seeds)}
        return dict(sorted(found.items(), key=lambda item: item[1].to_s(self.target(share))))

    def compared(self, scenario: str, share: float) -> dict[str, tuple[str, Method]]:
        """Return, named, no lightweighting, the fastest uniform pair, the fastest fixed ratios, and the controllers."""
        uniform = self.methods(scenario, UNIFORM, share=share)
        every = self.methods(scenario, UNIFORM, BY_PARTY, share=share)
        shown = {"none": ("", uniform[NONE[1]])}
        shown[BEST] = next((name, each) for name, each in uniform.items() if name != NONE[1])
        if scenario in ORACLES:
            shown["best by party"] = next(iter(every.items()))
        controllers = self.methods(scenario, scenario)
        return shown | {name: ("", controllers[name]) for name in VARIANTS if name in controllers}


def finalists(study: Study) -> list[str]:
    """Return no lightweighting and the fastest ratios with the first seed: uniform and by party, in every scenario."""
    kinds = [(name, UNIFORM) for name in scenarios(study.base)] + [(name, BY_PARTY) for name in ORACLES]
    fastest = (list(study.methods(name, kind))[:FINALISTS] for name, kind in kinds)
    return list(dict.fromkeys([NONE[1], *chain.from_iterable(fastest)]))


def write_page(folder: Path, study: Study) -> None:
    """Write tables and plots of the finished runs."""
    lines = [f"{len(study.results)} runs, seeds {', '.join(map(str, study.seeds))}.\n"]
    panels: list[Panel] = []
    for name in scenarios(study.base):
        lines += [f"## Scenario {name}\n", *_comparison(study, name), "", *_fixed(study, name), ""]
        curves = {
            method: [(s, [100 * a for a in up]) for s, up in each.curves]
            for method, (_, each) in study.compared(name, TARGETS[-1]).items()
        }
        panels.append(Panel(f"Scenario {name}", "simulated time (s)", "test accuracy (%)", curves))
    draw_panels(panels, folder / "accuracy.png")
    draw_decisions(folder, study.results)
    write_atomically(folder / "tables.md", "\n".join(lines))


def _comparison(study: Study, scenario: str) -> list[str]:
    """Return a table: each method's seconds for every target, and their ratio to the best uniform pair's."""
    by_target = {share: study.compared(scenario, share) for share in TARGETS}
    rows = {method: [method] for method in by_target[TARGETS[-1]]}
    for share, methods in by_target.items():
        best_s = methods[BEST][1].to_s(study.target(share))
        for method, (own, each) in methods.items():
            to_s = each.to_s(study.target(share))
            times = f"{to_s / best_s:.2f}" if isfinite(to_s) else ""
            rows[method] += [f"{_seconds(to_s)} ({own})" if own else _seconds(to_s), times]
    last = by_target[TARGETS[-1]]
    end_s = next(method.mean[-1][0] for name, (_, method) in last.items() if name in VARIANTS)
    for method, (_, each) in last.items():
        rows[method].append(f"{each.at_s(end_s):.1%}")
    targets = [heading for share in TARGETS for heading in (f"to {study.target(share):.1%} (s)", "of best uniform")]
    return table(("method", *targets, f"after {end_s:.0f} s"), list(rows.values()))


def _fixed(study: Study, scenario: str) -> list[str]:
    """Return the fixed ratios in the order of their seconds to the last target."""
    methods = study.methods(scenario, UNIFORM, *([BY_PARTY] if scenario in ORACLES else []))
    return [f"- {name}: {_seconds(each.to_s(study.target()))}" for name, each in methods.items()]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if isfinite(seconds) else "never"


def draw_decisions(folder: Path, results: Sequence[StudyResult]) -> None:
    """Draw every party's ratios and seconds over the rounds of A and C, and A's seconds before and after."""
    first = {study: next(each for each in results if each.study == study).rows for study in ("A", "C")}
    for quantity, label in (("alpha", "alpha"), ("beta", "beta"), ("exchange_s", "seconds of an exchange")):
        panels: list[Panel] = []
        for study, rows in first.items():
            across = [row["round"] for row in rows]
            curves = {name: [(across, [row[f"{quantity}/{name}"] for row in rows])] for name in PARTIES}
            panels.append(Panel(f"Scenario {study}", "round", label, curves, steps=True))
        draw_panels(panels, folder / f"{quantity}.png")
    ends = {"in the first round": first["A"][0], "in the last round": first["A"][-1]}
    groups = {
        f"seconds of an exchange {when}": {name: row[f"exchange_s/{name}"] for name in PARTIES}
        for when, row in ends.items()
    }
    draw_bars(groups, folder / "before_after.png")


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="digits.yaml or cifar10.yaml beside this file")
    parser.add_argument("folder", type=Path, metavar="DIR", help="of the runs and the results")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that differ")
    parser.add_argument("--seeds", type=partial(whole_numbers, "--seeds"), default=(0,), help="as 0,1,2 (default: 0)")
    add_executor_options(parser)
    parser.add_argument("--plots-only", action="store_true", help="train nothing")


def finished(runs: Sequence[StudyRun], arguments: argparse.Namespace, console: ShowConsole) -> list[StudyResult]:
    """Train the missing runs, unless ``--plots-only``, and return the finished ones."""
    folder: Path = arguments.folder / "runs"
    if not arguments.plots_only:
        with open_executor(arguments, Resources()) as executor:
            end = train_missing(runs, folder, executor, console)
        if end.signal_name:
            raise KeyboardInterrupt
        if end.failures:
            raise ConfigError(f"failed: {', '.join(end.failures)}; see {LOG} in the runs' folders below {folder}")
    return load_results(runs, folder)


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train the missing runs and write the page."""
    base, (first, *others) = load_config(arguments.config, arguments.overrides), arguments.seeds
    results_of = partial(finished, arguments=arguments, console=console)
    fixed = {each.method: each for each in uniform_pairs()}
    alone = results_of([fixed_run(base, each, first) for each in fixed.values()])
    forecast = build_in_process(base, start_runtime(base)).server.price_list.forecast
    for name in ORACLES:
        pairs = promising(Study(base, (first,), alone), name, forecast)
        fixed |= {each.method: each for each in pairs}
        alone += results_of([fixed_run(base, each, first) for each in pairs])
    finals = finalists(Study(base, (first,), alone))
    results = alone + results_of([fixed_run(base, fixed[each], seed) for seed in others for each in finals])
    results += results_of([run for seed in arguments.seeds for run in controlled_runs(base, seed)])
    write_page(arguments.folder, Study(base, arguments.seeds, results))
    console.print(f"{len(results)} runs: {arguments.folder / 'tables.md'}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
