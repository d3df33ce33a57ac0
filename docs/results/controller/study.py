"""The controller deadline in four scenarios, beside every uniform pair of a grid and the best pairs by party.

    python docs/results/controller/study.py CONFIG DIR --seeds 0,1,2 [--plots-only] [key=value ...]

CONFIG is digits.yaml or cifar10.yaml beside this file, DIR holds the runs and gets tables and plots. Fixed ratios train
the same bits whatever the machines are: they are trained once, and their seconds on a scenario's machines follow from
what they counted. The same command goes on where it was interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from statistics import mean

from parties.local import build_in_process
from vfl.atomic import write_atomically
from vfl.callbacks import JsonLines
from vfl.cli import DONE, OneLineParser, ShowConsole, command, to_stderr, whole_numbers
from vfl.config import ExperimentConfig, load_config
from vfl.devices import DeviceConfig, SimulationConfig
from vfl.loop import TrainingLoop
from vfl.reports.markdown import table
from vfl.results import ACCURACY
from vfl.run_folder import Row, write_summary
from vfl.runtime import start_runtime
from vfl.studies.plots import Panel, draw_panels
from vfl.studies.runs import StudyResult, StudyRun, load_result

ALPHAS, BETAS = (0.0, 0.3, 0.5, 0.7), (0.0, 0.3, 0.6, 0.85)
DEADLINE: dict[str, object] = {"controller": "deadline", "seconds_per_exchange": "auto"}
FINALISTS = {"uniform": ("0 0", "0.7 0.85", "0.7 0.3", "0.5 0.3"), "by_party": ("0.5 0.6",)}
"""Of the fixed ratios none, and those that were the fastest of a scenario with the first seed: trained with all."""
NONE, ORACLE = "none", "best by party"
PARTIES = tuple(f"party_{number}" for number in range(1, 5))
SLOW_LINK = 250e3
"""2 Mbit/s."""
TARGET = 0.95
"""Of the final accuracy without lightweighting, mean over the seeds."""


def scenarios(base: ExperimentConfig) -> dict[str, SimulationConfig]:
    """Return the machines of each scenario."""
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


def plan(base: ExperimentConfig, seeds: Sequence[int]) -> list[StudyRun]:
    """Return all runs: controllers, the grid, and the pairs by party that can matter in scenario A."""
    settings: list[tuple[str, str, dict[str, object], SimulationConfig]] = []
    for name, machines in scenarios(base).items():
        settings.append((name, "deadline", DEADLINE, machines))
    settings.append(("A", "deadline of 0.12 s", DEADLINE | {"seconds_per_exchange": 0.12}, scenarios(base)["A"]))
    settings.append(("A", "deadline, alpha x3", DEADLINE | {"alpha_weight": 3.0}, scenarios(base)["A"]))
    for alpha, beta in product(ALPHAS, BETAS):
        settings.append(("uniform", f"{alpha:g} {beta:g}", {"alpha": alpha, "beta": beta}, SimulationConfig()))
    for alpha, beta in product(ALPHAS[2:], BETAS[:3]):
        own = {"alpha": {"party_2": alpha}, "beta": beta}
        settings.append(("by_party", f"{alpha:g} {beta:g}", own, SimulationConfig()))
    return [
        StudyRun(study, method, seed, _with(base, seed, ratios, machines))
        for seed in seeds
        for study, method, ratios, machines in settings
        if seed == seeds[0] or study not in FINALISTS or method in FINALISTS[study]
    ]


def _with(
    base: ExperimentConfig, seed: int, ratios: dict[str, object], simulation: SimulationConfig
) -> ExperimentConfig:
    lightweighting = base.lightweighting.model_copy(update=ratios)
    return base.model_copy(update={"seed": seed, "lightweighting": lightweighting, "simulation": simulation})


def train(run: StudyRun, folder: Path) -> None:
    """Train a run: its rows and its summary, and no other files, as there are many runs of few seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    server = build_in_process(run.config, start_runtime(run.config))
    loop = TrainingLoop(server, run.config.training.rounds, [JsonLines(folder / "metrics.jsonl")])
    write_summary(folder, loop.run())


def clock(result: StudyResult, machines: SimulationConfig, base: ExperimentConfig) -> list[float]:
    """Return the seconds up to the end of every round on these machines, by what the run counted."""
    assert base.data.train_samples is not None
    passes = 3 * (base.data.train_samples // base.training.batch_size) * base.training.batch_size

    def party_s(row: Row, name: str) -> float:
        device, number = machines.of(name), int(row["round"])
        transfer_s = device.uplink_s(number, int(row[f"uplink_bytes/{name}"]))
        transfer_s += device.downlink_s(number, int(row[f"downlink_bytes/{name}"]))
        return device.compute_s(number, int(passes * row[f"macs_per_sample/{name}"])) + transfer_s

    return list(accumulate(max(party_s(row, name) for name in PARTIES) for row in result.rows))


class Method:
    """Runs of one method in a scenario, a seed each, with their seconds."""

    def __init__(self, runs: Sequence[StudyResult], machines: SimulationConfig, base: ExperimentConfig) -> None:
        self.runs = runs
        self.seconds = [clock(run, machines, base) for run in runs]

    def to_target_s(self, target: float) -> float | None:
        """Return the mean seconds until the accuracy first was the target; None where a seed never was."""
        reached = [run.round_reaching(target) for run in self.runs]  # positions among the rows
        known = [self.seconds[seed][index] for seed, index in enumerate(reached) if index is not None]
        return mean(known) if len(known) == len(reached) else None

    def at_s(self, limit_s: float) -> float:
        """Return the mean accuracy after the last round that ended within some seconds; 0 before the first."""
        ended = [sum(second <= limit_s for second in seconds) for seconds in self.seconds]
        return mean(
            run.rows[rounds - 1][ACCURACY] if rounds else 0.0 for run, rounds in zip(self.runs, ended, strict=True)
        )

    def curves(self) -> list[tuple[list[float], list[float]]]:
        """Return accuracy in percent over seconds, a curve per seed."""
        return [
            (seconds, [100 * a for a in run.accuracies]) for run, seconds in zip(self.runs, self.seconds, strict=True)
        ]


def compare(name: str, results: Sequence[StudyResult], base: ExperimentConfig, target: float) -> dict[str, Method]:
    """Return the methods of a scenario: none, the uniform pair and the pairs by party that are fastest, controllers."""
    machines = scenarios(base)[name]

    def methods(study: str) -> dict[str, Method]:
        found = dict.fromkeys(result.method for result in results if result.study == study)
        return {
            each: Method([r for r in results if (r.study, r.method) == (study, each)], machines, base) for each in found
        }

    def fastest(candidates: dict[str, Method]) -> tuple[str, Method]:
        """Return the fastest with the first seed, which all have."""
        first = {each: Method(method.runs[:1], machines, base) for each, method in candidates.items()}
        best = min(first, key=lambda each: first[each].to_target_s(target) or float("inf"))
        return best, candidates[best]

    uniform = methods("uniform")
    best, pair = fastest({each: method for each, method in uniform.items() if each != "0 0"})
    shown = {NONE: uniform["0 0"], f"best uniform ({best})": pair}
    if name == "A":  # alpha matters to the slow party alone, beta to all, whose embeddings the slow link takes
        best, pair = fastest(methods("by_party") | {f"0 {beta:g}": uniform[f"0 {beta:g}"] for beta in BETAS})
        shown[f"{ORACLE} ({best})"] = pair
    return shown | methods(name)


def write_page(folder: Path, runs: Sequence[StudyRun], base: ExperimentConfig) -> int:
    """Write the tables and the plots of the runs that are finished; return how many they are."""
    results = [
        load_result(run, folder / "runs") for run in runs if (folder / "runs" / run.folder / "summary.json").exists()
    ]
    target = TARGET * mean(each.score for each in results if (each.study, each.method) == ("uniform", "0 0"))
    lines = [f"{len(results)} of {len(runs)} runs. Target: test accuracy {target:.1%}.\n"]
    panels: list[Panel] = []
    for name in scenarios(base):
        methods = compare(name, results, base, target)
        end_s = mean(seconds[-1] for seconds in methods["deadline"].seconds)
        none_s = methods[NONE].to_target_s(target)
        rows = [
            (
                method,
                str(len(each.runs)),
                "not reached" if (to_s := each.to_target_s(target)) is None else f"{to_s:.1f} s",
                "" if to_s is None or none_s is None else f"{to_s / none_s:.2f}",
                f"{each.at_s(end_s):.1%}",
            )
            for method, each in methods.items()
        ]
        headings = ("method", "seeds", "to the target", "of none", f"accuracy after {end_s:.0f} s")
        lines += [f"## Scenario {name}\n", *table(headings, rows), ""]
        panels.append(
            Panel(
                f"Scenario {name}",
                "simulated time (s)",
                "test accuracy (%)",
                {m: e.curves() for m, e in methods.items()},
            )
        )
    draw_panels(panels, folder / "accuracy.png")
    draw_decisions(folder, [each for each in results if each.method == "deadline"])
    write_atomically(folder / "tables.md", "\n".join(lines))
    return len(results)


def draw_decisions(folder: Path, results: Sequence[StudyResult]) -> None:
    """Draw ratios and seconds of every party over the rounds, of the first seed of A and C."""
    for quantity, label in (("alpha", "alpha"), ("beta", "beta"), ("exchange_s", "seconds of an exchange")):
        panels: list[Panel] = []
        for study in ("A", "C"):
            rows = next(each for each in results if each.study == study).rows
            across = [row["round"] for row in rows]
            curves = {name: [(across, [row[f"{quantity}/{name}"] for row in rows])] for name in PARTIES}
            panels.append(Panel(f"Scenario {study}", "round", label, curves, steps=True))
        draw_panels(panels, folder / f"{quantity}.png")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="digits.yaml or cifar10.yaml beside this file")
    parser.add_argument("folder", type=Path, metavar="DIR", help="of the runs and the results")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that differ")
    parser.add_argument("--seeds", type=partial(whole_numbers, "--seeds"), default=(0,), help="as 0,1,2 (default: 0)")
    parser.add_argument("--plots-only", action="store_true", help="train nothing")
    return parser.parse_intermixed_args()


@command(parse_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train what is missing and write the page."""
    base = load_config(arguments.config, arguments.overrides)
    runs = plan(base, arguments.seeds)
    for run in runs:
        folder = arguments.folder / "runs" / run.folder
        if not arguments.plots_only and not (folder / "summary.json").exists():
            train(run, folder)
            console.print(f"{run.folder}: {load_result(run, arguments.folder / 'runs').score:.2%}")
    console.print(f"{write_page(arguments.folder, runs, base)} of {len(runs)} runs: {arguments.folder / 'tables.md'}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
