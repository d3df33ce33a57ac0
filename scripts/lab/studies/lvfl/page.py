"""The results page of the LVFL paper's figures: departures from its setting, plots, tables, findings."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from scripts.lab.studies.lvfl.findings import findings
from scripts.lab.studies.lvfl.plan import Plan, pruning_round
from scripts.lab.studies.lvfl.plots import draw_figures
from scripts.lab.studies.lvfl.prunings import Pruning, prunings
from scripts.lab.studies.page import cells, percent, spread, write_page
from scripts.lab.studies.runs import ACCURACY, StudyResult
from vfl.base.amounts import amount
from vfl.base.costs import savings
from vfl.config import ExperimentConfig
from vfl.config.schedules import PartySchedule
from vfl.reports.markdown import section, table
from vfl.runs.run_folder import Row

TITLE = "Figures 2 and 3 of the LVFL paper"
READING = (
    "- Accuracies are those of the test split at the end of a round. Rounds count from 0. Over several seeds: mean ± "
    "standard deviation. Compute is the feature models' multiply-accumulates, bytes are all that training exchanged; "
    "saved is against the same rounds without lightweighting.",
    "- Rounds before the first difference of two runs of one seed are trained once and shared as a checkpoint; wall "
    "times contain them for both.",
    "",
)
OUTSIDE = (
    "- `head_sync: replay` is this project's: the head travels once per round, and parties repeat the server's steps. "
    "The paper broadcasts it at every exchange; with its head of 512-256-128-10 that is 662 kB more per exchange and "
    "party, whatever beta is. The share saved is given for both.",
    "- The bytes are those of the messages. TLS and HTTP/2 add about 0.2 kB to each, which the ledger leaves out: 2.7 "
    "% of the bytes at beta 0.9, several times the payload at beta 0.999 with a batch of 32.",
)
SAVED = ("compute saved", "sent up", "sent down", "bytes saved", "bytes up saved", "head broadcast: bytes saved")
COSTS = ("method", "seeds", "rounds", "final accuracy", *SAVED, "wall time")
RECOVERY = (
    "Rounds to recover: until the accuracy was at least that before the pruning, looked for up to the next pruning or "
    "the end; per seed."
)
PRUNED = ("method", "round", "α", "accuracy before", "at that round's end", "drop", "rounds to recover")


def write_results(plan: Plan, folder: Path) -> int:
    """Draw, tabulate and report the finished runs; return their number. Raises ConfigError for none."""

    def sections(results: list[StudyResult]) -> list[str]:
        images = [f"![{image}]({image})\n" for image in draw_figures(plan, results, folder)]
        return [*setting(plan), *READING, *images, *results_sections(plan, results)]

    return write_page(plan.runs, folder, TITLE, sections, columns())


def setting(plan: Plan) -> list[str]:
    """Return lines about the settings that are the paper's, and those that are not."""
    config, differing = plan.base, differences(plan.base)
    return [
        f"**This is not the paper's setting: {'; '.join(differing)}.**"
        if differing
        else "The scale is the paper's (what it leaves open is chosen, with reasons, in the configuration).",
        "",
        f"- {len(config.parties)} parties, {config.models.feature.kind}, {config.precision}; seeds "
        f"{', '.join(map(str, plan.seeds))}",
        f"- Schedules: α {_schedule(config.lightweighting.alpha)}; β {_schedule(config.lightweighting.beta)}; learning "
        f"rate {_schedule(config.training.optimizer.learning_rate)}; Fig. 3a prunes at round {pruning_round(config)}",
    ]


def differences(config: ExperimentConfig) -> list[str]:
    """Return the experiment's departures from the paper's setting, as far as the paper gives it."""
    data, training, feature = config.data, config.training, config.models.feature
    checks = [
        (data.dataset.kind not in ("cifar10", "image_folder"), f"{data.dataset.kind} instead of CIFAR-10"),
        (data.train_samples != 10000, f"{data.train_samples or 'all'} training images instead of 10000"),
        (data.test_samples not in (None, 10000), f"{data.test_samples} test images instead of all 10000"),
        (training.rounds != 100, f"{training.rounds} rounds instead of 100"),
        (training.steps_per_round is not None, f"{training.steps_per_round} exchanges per round, not a whole pass"),
        (training.batch_size != 256, f"batches of {training.batch_size} instead of 256"),
        (feature.kind != "vgg16", f"{feature.kind} instead of VGG16"),
        (feature.width != 1.0, f"layers of {feature.width:g} times VGG16's width"),
        (config.precision != "float32", f"{config.precision} autocast instead of float32"),
    ]
    return [text for differs, text in checks if differs]


def results_sections(plan: Plan, results: Sequence[StudyResult]) -> list[str]:
    """Return the tables of costs and prunings, and the findings."""
    by_method = {method: [each for each in results if each.method == method] for method in plan.methods}
    trained = {method: own for method, own in by_method.items() if own}
    costs = [_costs(method, own, plan) for method, own in trained.items()]
    pruned = [row for method, own in trained.items() for row in _prunings(method, own)]
    return [
        section("Results", None, table(COSTS, costs)),
        section("Prunings", None, [RECOVERY, "", *table(PRUNED, pruned)]),
        section("What is seen", None, findings(plan, results)),
        section("What the savings leave out", None, OUTSIDE),
    ]


def saved_with_broadcast(run: StudyResult, config: ExperimentConfig) -> float:
    """Return the share of the bytes saved if theta_0 had travelled at every exchange, as in the paper.

    With ``head_sync: replay`` it travels once per round; with all other settings as it does in the paper or not at all.
    """
    training, samples = config.training, config.data.train_samples
    # Without a number of samples the exchanges are unknown here: then as if there were one a round, and no head more.
    steps = training.steps_per_round or (samples // training.batch_size if samples else 1)
    parties: Mapping[str, Any] = run.summary.get("parties", {})
    head = sum(party["bytes_by_kind"]["downlink"].get("head", 0) for party in parties.values())
    more = head * (steps - 1) if training.head_sync == "replay" else 0
    dense = run.summary["dense_uplink_bytes"] + run.summary["dense_downlink_bytes"]
    return savings(run.sent_bytes + more, dense + more)


def columns() -> dict[str, Callable[[Row], object]]:
    """Return the columns of ``results.csv``: ratios are means over the parties, costs are sums."""
    shared = cells(ACCURACY, "loss/train", "loss/test", "savings/compute", "savings/communication")
    summed = ("macs_per_sample", "uplink_bytes", "downlink_bytes", "train_time_s")
    over: dict[str, Callable[[Row], object]] = {
        name: partial(_over_parties, name=name, combine=mean) for name in ("alpha", "beta")
    }
    return over | shared | {name: partial(_over_parties, name=name, combine=sum) for name in summed}


def _over_parties(row: Row, name: str, combine: Callable[[list[float]], float]) -> float:
    return combine([value for tag, value in row.items() if tag.startswith(f"{name}/")])


def _costs(method: str, runs: Sequence[StudyResult], plan: Plan) -> list[str]:
    shares: list[Callable[[StudyResult], float]] = [
        lambda run: run.score,
        lambda run: run.macs_saved,
        lambda run: run.bytes_saved,
        lambda run: run.uplink_saved,
        lambda run: saved_with_broadcast(run, plan.base),
    ]
    accuracy, macs, sent, up, broadcast = (spread([share(run) for run in runs], percent) for share in shares)
    amounts = [f"{amount(mean(run.summary[f'{way}_bytes'] for run in runs))}B" for way in ("uplink", "downlink")]
    seconds = spread([run.summary["wall_time_s"] for run in runs], "{:.0f} s".format)
    counts = str(len(runs)), str(plan.rounds[method])
    return [_title(method), *counts, accuracy, macs, *amounts, sent, up, broadcast, seconds]


def _prunings(method: str, runs: Sequence[StudyResult]) -> list[list[str]]:
    """Return a row for every round in which the method prunes."""
    by_round: dict[int, list[Pruning]] = {}
    for pruning in (pruning for run in runs for pruning in prunings(run)):
        by_round.setdefault(pruning.round_index, []).append(pruning)
    return [
        [
            _title(method),
            str(start),
            f"{found[0].alpha:g}",
            spread([pruning.before for pruning in found], percent),
            spread([pruning.during for pruning in found], percent),
            spread([100 * pruning.drop for pruning in found], "{:.1f} points".format),
            ", ".join(_recovery(pruning) for pruning in found),
        ]
        for start, found in by_round.items()
    ]


def _recovery(pruning: Pruning) -> str:
    rounds = pruning.recovery_rounds
    return f"not in {pruning.until - pruning.round_index}" if rounds is None else str(rounds)


def _title(method: str) -> str:
    return re.sub(r"^(alpha|beta)(.+)", lambda match: f"{'α' if match[1] == 'alpha' else 'β'} = {match[2]}", method)


def _schedule(schedule: PartySchedule) -> str:
    if not isinstance(schedule, dict):
        return f"{schedule:g}"
    return "{" + ", ".join(f"{key}: {_schedule(value)}" for key, value in schedule.items()) + "}"
