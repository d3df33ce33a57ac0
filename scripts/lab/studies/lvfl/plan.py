"""The runs of the LVFL paper's figures (section VI), and the rounds that they share.

The dynamic ratios are those of the configuration. Runs whose ratios are equal in every round are one run; runs that are
equal up to a round may start from the other's checkpoint of that round (a *fork*).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.lab.studies.forks import Fork
from scripts.lab.studies.runs import StudyRun
from vfl.config import ConfigError, ExperimentConfig, parse_config
from vfl.config.files import lay_over
from vfl.config.schedules import PartySchedule, Schedule, named_parties, schedule_of, value_at

RATIOS = (0.2, 0.4, 0.6)
"""Ratios compared in Fig. 3."""
PRUNING_PERCENT = 40
"""Fig. 3a prunes once, at round 40 of 100."""
FIGURES = ("2", "3a", "3b")
REFERENCE = "NL"
"""The run without lightweighting."""


@dataclass(frozen=True)
class Plan:
    """All runs in their order of training, and the figures' curves."""

    base: ExperimentConfig
    seeds: tuple[int, ...]
    curves: dict[str, dict[str, str]]
    """Figure -> label of a curve -> method."""
    runs: tuple[StudyRun, ...]
    forks: dict[str, Fork]
    """Forks by folder; runs that differ from all earlier ones from round 0 on have none."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, each once."""
        return tuple(self.rounds)

    @property
    def rounds(self) -> dict[str, int]:
        """Rounds that each method trains; no method trains more than the reference."""
        return {run.method: run.config.training.rounds for run in self.runs}


def make_plan(
    base: ExperimentConfig, figures: Sequence[str], seeds: Sequence[int], ends: Mapping[str, int] | None = None
) -> Plan:
    """Return the runs of ``figures`` for every seed: seed by seed, in a seed the methods of Fig. 2 first.

    Args:
        ends: Figure -> rounds that its runs train, where they are fewer than the configuration's. A run of several
            figures trains the most that one of them needs.

    Raises ConfigError for a configuration whose figures could not be drawn.
    """
    _check(base)
    needed: dict[str, int] = {
        **dict.fromkeys(figures, base.training.rounds),
        **_checked_ends(base, figures, ends or {}),
    }
    rounds: dict[str, int] = {}
    ratios: dict[str, tuple[PartySchedule, PartySchedule]] = {}
    by_values: dict[tuple[float, ...], str] = {}
    curves: dict[str, dict[str, str]] = {}
    for figure in figures:
        curves[figure] = {}
        for label, (method, alpha, beta) in _curves(base, figure).items():
            # Curves of equal ratios are one run, whatever they are called: it keeps the name of the first.
            method = by_values.setdefault(_values(base, alpha, beta), method)
            ratios.setdefault(method, (alpha, beta))
            rounds[method] = max(needed[figure], rounds.get(method, 0))  # as its longest figure needs
            curves[figure][label] = method
    runs = tuple(
        StudyRun("", method, seed, _experiment(base, method, seed, rounds[method], own))
        for seed in seeds
        for method, own in ratios.items()
    )
    forks = {run.folder: longest_fork(run, runs[:position]) for position, run in enumerate(runs)}
    return Plan(base, tuple(seeds), curves, runs, {folder: fork for folder, fork in forks.items() if fork})


def scale_rounds(base: ExperimentConfig, rounds: int) -> ExperimentConfig:
    """Return the experiment with ``rounds`` rounds and every round of its schedules moved in proportion (rounded).

    Raises ConfigError if two changes would fall on one round, or a later one on round 0.
    """
    schedules: dict[str, PartySchedule] = {
        "lightweighting.alpha": base.lightweighting.alpha,
        "lightweighting.beta": base.lightweighting.beta,
        "training.optimizer.learning_rate": base.training.optimizer.learning_rate,
    }
    scaled = {field: _scaled(each, base.training.rounds, rounds, field) for field, each in schedules.items()}
    return _changed(base, {"training.rounds": rounds, **scaled})


def scale_round(round_index: int, before: int, after: int) -> int:
    """Return the round at the same share of the run, halves rounded up."""
    # floor(round_index * after / before + 1/2) in whole numbers: round() would take halves to the even neighbour.
    return (2 * round_index * after + before) // (2 * before)


def pruning_round(base: ExperimentConfig) -> int:
    """Return the round in which the runs of Fig. 3a prune."""
    return scale_round(PRUNING_PERCENT, 100, base.training.rounds)


def parse_figures(text: str) -> tuple[str, ...]:
    """Read ``2,3a,3b``, in any order. Raises ConfigError."""
    wanted = [part.strip() for part in text.split(",")]
    unknown = [part for part in wanted if part not in FIGURES]
    if unknown:
        raise ConfigError(f"--figures: there is no figure {unknown[0]!r}; choose from {','.join(FIGURES)}")
    return tuple(figure for figure in FIGURES if figure in wanted)


def parse_ends(text: str) -> dict[str, int]:
    """Parse ``3a=52,3b=41``; "" names no figure. Raises ConfigError."""
    ends: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        figure, _, rounds = part.partition("=")
        if not rounds.strip().isdecimal():
            raise ConfigError(f"--ends: {part!r} is no figure with a number of rounds; write it as 3a=52")
        ends[figure.strip()] = int(rounds)
    return ends


def _checked_ends(base: ExperimentConfig, figures: Sequence[str], ends: Mapping[str, int]) -> Mapping[str, int]:
    for figure, rounds in ends.items():
        if figure not in figures:
            raise ConfigError(f"--ends: figure {figure!r} is not drawn; --figures are {','.join(figures)}")
        least, most = pruning_round(base) + 1 if figure == "3a" else 1, base.training.rounds
        if not least <= rounds <= most:
            raise ConfigError(f"--ends: {figure}={rounds} does not work; give {least} to {most} rounds")
    return ends


def _curves(base: ExperimentConfig, figure: str) -> dict[str, tuple[str, PartySchedule, PartySchedule]]:
    """Return label -> (method, alpha, beta)."""
    alpha, beta = base.lightweighting.alpha, base.lightweighting.beta
    if figure == "2":
        return {
            "NL": (REFERENCE, 0.0, 0.0),
            "PL": ("PL", alpha, 0.0),
            "ML": ("ML", 0.0, beta),
            "L": ("L", alpha, beta),
        }
    if figure == "3a":
        start = pruning_round(base)
        pruned = {f"α = {ratio:g}": (f"alpha{ratio:g}", {start: ratio}, 0.0) for ratio in RATIOS}
        return {"not pruned": (REFERENCE, 0.0, 0.0), **pruned}
    sparsified = {f"β = {ratio:g}": (f"beta{ratio:g}", 0.0, ratio) for ratio in RATIOS}
    return {"β = 0": (REFERENCE, 0.0, 0.0), **sparsified}


def _experiment(
    base: ExperimentConfig, method: str, seed: int, rounds: int, ratios: tuple[PartySchedule, PartySchedule]
) -> ExperimentConfig:
    alpha, beta = ratios
    own = {"name": f"{base.name}-{method}", "seed": seed, "training.rounds": rounds}
    return _changed(base, own | {"lightweighting.alpha": alpha, "lightweighting.beta": beta})


def _changed(base: ExperimentConfig, settings: Mapping[str, object]) -> ExperimentConfig:
    return parse_config(lay_over(base.model_dump(mode="json"), settings))


def _values(base: ExperimentConfig, alpha: PartySchedule, beta: PartySchedule) -> tuple[float, ...]:
    """Return all ratios that the run assigns, round by round."""
    return tuple(
        value_at(schedule_of(ratio, party), round_index)
        for round_index in range(base.training.rounds)
        for ratio in (alpha, beta)
        for party in base.parties
    )


def longest_fork(run: StudyRun, earlier: Sequence[StudyRun]) -> Fork | None:
    """Return the fork that saves most rounds; of equal ones the first, which is no fork of the others."""
    best: Fork | None = None
    for other in earlier:  # only those: a run that is trained later has no checkpoint yet when this one begins
        shared = _shared_rounds(run.config, other.config) if other.seed == run.seed else 0
        if shared > (best.round_index if best else 0):
            best = Fork(other.folder, shared)
    return best


def _shared_rounds(one: ExperimentConfig, other: ExperimentConfig) -> int:
    """Return the number of rounds before the ratios first differ, or before one of both ends; 0 for other settings.

    How a model is pruned makes no difference before its first pruning.
    """
    if _apart_from_ratios(one) != _apart_from_ratios(other):
        return 0
    per_round = 2 * len(one.parties)  # ratios, in the order of ``_values``
    mine = _values(one, one.lightweighting.alpha, one.lightweighting.beta)
    others = _values(other, other.lightweighting.alpha, other.lightweighting.beta)
    rounds = min(len(mine), len(others)) // per_round
    same_pruning = one.lightweighting.pruning == other.lightweighting.pruning
    for round_index in range(rounds):
        now = slice(round_index * per_round, (round_index + 1) * per_round)
        alphas = mine[now][: len(one.parties)]
        if mine[now] != others[now] or (not same_pruning and any(alphas)):
            return round_index
    return rounds


def _apart_from_ratios(config: ExperimentConfig) -> dict[str, Any]:
    """Return the settings in which runs that share rounds must be equal; one of both may train fewer rounds."""
    settings = config.model_dump(exclude={"name": True, "lightweighting": {"alpha", "beta", "pruning"}})
    del settings["training"]["rounds"]
    return settings


def _scaled(schedule: PartySchedule, before: int, after: int, field: str) -> PartySchedule:
    parties = named_parties(schedule)
    if parties is not None:
        return {name: _scaled_one(own, before, after, f"{field}.{name}") for name, own in parties.items()}
    return _scaled_one(schedule_of(schedule, ""), before, after, field)


def _scaled_one(schedule: Schedule, before: int, after: int, field: str) -> Schedule:
    if not isinstance(schedule, Mapping):
        return schedule
    scaled: dict[int, float] = {}
    for start in sorted(schedule):
        moved = scale_round(start, before, after)
        if moved in scaled or (moved == 0 and start > 0):
            raise ConfigError(f"--rounds: {after} are too few: round {start} of {field} would fall on round {moved}")
        scaled[moved] = schedule[start]
    return scaled


def _check(base: ExperimentConfig) -> None:
    if base.evaluation.every != 1:
        raise ConfigError("evaluation.every: must be 1, a pruning's drop is read from two rounds in a row")
    if base.training.patience is not None:
        raise ConfigError("training.patience: must be null, all runs of a figure have the same rounds")
    if not 0 < pruning_round(base) < base.training.rounds:
        raise ConfigError(f"training.rounds: {base.training.rounds} are too few, Fig. 3a needs rounds around a pruning")
