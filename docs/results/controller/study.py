"""Controllers in four scenarios, beside every uniform pair of a grid and the best per-party pair.

    python docs/results/controller/study.py --out DIR --seeds 0,1,2 [--plots-only] data.dataset.root=FOLDER

Fixed ratios train the same bits whatever the machines: they are trained once, and their seconds on a scenario's
machines follow from what they counted. The same command goes on where it was interrupted.
"""

import argparse
import sys
from itertools import accumulate, product
from pathlib import Path

from vfl.cli import ShowConsole, command, to_stderr, whole_numbers
from vfl.config import ExperimentConfig, load_config
from vfl.devices import SimulationConfig
from vfl.studies.command import run_study, study_parser
from vfl.studies.runs import StudyResult, StudyRun

HERE = Path(__file__).parent
ALPHAS, BETAS = (0.0, 0.3, 0.5, 0.7), (0.0, 0.3, 0.6, 0.85)
DEADLINE: dict[str, object] = {"controller": "deadline", "seconds_per_exchange": "auto"}
PARTIES = tuple(f"party_{number}" for number in range(1, 5))
SPEED, LINK = 2.4e8, 12.5e6
"""A machine on which a dense exchange computes for about a quarter of a second; 100 Mbit/s."""
EQUAL = {"macs_per_s": SPEED, "uplink_bytes_per_s": LINK, "downlink_bytes_per_s": LINK}
SLOW_LINK = 250e3
"""2 Mbit/s."""


def link(rate: object) -> dict[str, object]:
    """Return an equal machine behind another link."""
    return EQUAL | {"uplink_bytes_per_s": rate, "downlink_bytes_per_s": rate}


def scenarios(rounds: int) -> dict[str, SimulationConfig]:
    """Return the machines of each scenario."""
    spread = {name: EQUAL | {"macs_per_s": SPEED * 10 ** (-place / 3)} for place, name in enumerate(PARTIES)}
    falling = {0: 10 * SLOW_LINK, rounds // 2: SLOW_LINK}
    parties: dict[str, dict[str, object]] = {
        "A": {"party_2": EQUAL | {"macs_per_s": SPEED / 4}, "party_3": link(SLOW_LINK)},
        "B": {},
        "C": {"party_3": link(falling)},
        "D": spread,
    }
    return {name: SimulationConfig.model_validate({"device": EQUAL, "parties": each}) for name, each in parties.items()}


def plan(base: ExperimentConfig, seeds: tuple[int, ...]) -> list[StudyRun]:
    """Return all runs: controllers, the grid, and the pairs by party that can matter in scenario A."""
    nowhere = SimulationConfig()
    settings: list[tuple[str, str, dict[str, object], SimulationConfig]] = []
    for name, machines in scenarios(base.training.rounds).items():
        settings.append((name, "deadline", DEADLINE, machines))
    settings.append(("A", "deadline x3", DEADLINE | {"alpha_weight": 3.0}, scenarios(base.training.rounds)["A"]))
    for alpha, beta in product(ALPHAS, BETAS):
        settings.append(("uniform", f"{alpha:g} {beta:g}", {"alpha": alpha, "beta": beta}, nowhere))
    for alpha, beta in product(ALPHAS[1:], BETAS):
        own = {"alpha": {"party_2": alpha}, "beta": beta}
        settings.append(("by_party", f"{alpha:g} {beta:g}", own, nowhere))
    return [
        StudyRun(study, method, seed, _with(base, seed=seed, lightweighting=ratios, simulation=machines))
        for seed in seeds
        for study, method, ratios, machines in settings
    ]


def _with(
    base: ExperimentConfig, seed: int, lightweighting: dict[str, object], simulation: SimulationConfig
) -> ExperimentConfig:
    ratios = base.lightweighting.model_copy(update=lightweighting)
    return base.model_copy(update={"seed": seed, "lightweighting": ratios, "simulation": simulation})


def clock(result: StudyResult, machines: SimulationConfig, base: ExperimentConfig) -> list[float]:
    """Return the seconds up to the end of every round on these machines, by what the run counted."""
    assert base.data.train_samples is not None
    exchanges = base.data.train_samples // base.training.batch_size
    passes = 3 * exchanges * base.training.batch_size

    def party_s(row: dict[str, float], name: str) -> float:
        device, number = machines.of(name), int(row["round"])
        transfer = device.uplink_s(number, int(row[f"uplink_bytes/{name}"]))
        transfer += device.downlink_s(number, int(row[f"downlink_bytes/{name}"]))
        return device.compute_s(number, int(passes * row[f"macs_per_sample/{name}"])) + transfer

    return list(accumulate(max(party_s(row, name) for name in PARTIES) for row in result.rows))


def reaching_s(result: StudyResult, seconds: list[float], target: float) -> float | None:
    """Return the seconds after which the accuracy first was the target."""
    index = result.round_reaching(target)
    return None if index is None else seconds[index]


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = study_parser(__doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that differ from study.yaml")
    return parser.parse_intermixed_args()


@command(parse_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train what is missing and write the page."""
    base = load_config(HERE / "study.yaml", arguments.overrides)
    runs = plan(base, whole_numbers("--seeds", arguments.seeds))
    return run_study(arguments, runs, lambda: 0, console)


if __name__ == "__main__":
    sys.exit(main())
