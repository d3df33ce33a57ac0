"""The report beside the plots: how the runs were made, their numbers, and what is seen in them."""

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vfl.amounts import amount
from vfl.config import ExperimentConfig
from vfl.costs import savings
from vfl.lightweighting.schedule import PartySchedule
from vfl.reports.markdown import table
from vfl.studies.lvfl.findings import findings
from vfl.studies.lvfl.plan import FIGURES, Plan, pruning_round
from vfl.studies.lvfl.prunings import Pruning, prunings
from vfl.studies.runs import StudyResult

OUTSIDE = (
    "- `head_sync: replay` is this project's: the head travels once per round, and parties repeat the server's steps. "
    "The paper broadcasts it at every exchange; with its head of 512-256-128-10 that is 662 kB more per exchange and "
    "party, whatever beta is. The share saved is given for both.",
    "- The bytes are those of the messages. TLS and HTTP/2 add about 0.2 kB to each, which the ledger leaves out: 2.7 "
    "% of the bytes at beta 0.9, several times the payload at beta 0.999 with a batch of 32.",
)


@dataclass(frozen=True)
class Session:
    """One call of the script that trained something."""

    date: str
    """UTC, ISO 8601."""
    command: str
    hardware: str
    torch: str


@dataclass(frozen=True)
class About:
    """What the report says beside the numbers; kept as ``about.json``."""

    seeds: tuple[int, ...] = (0,)
    figures: tuple[str, ...] = FIGURES
    data_note: str = ""
    scaled_from: int | None = None
    """Rounds of the configuration from which the schedules were scaled; None where they were not."""
    sessions: tuple[Session, ...] = field(default_factory=tuple[Session, ...])

    def with_note(self, data_note: str) -> "About":
        """Return the same with another note about the data."""
        return replace(self, data_note=data_note)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "About":
        """Rebuild from plain values."""
        sessions = tuple(Session(**session) for session in values["sessions"])
        return cls(
            tuple(values["seeds"]), tuple(values["figures"]), values["data_note"], values["scaled_from"], sessions
        )


def describe_hardware(config: ExperimentConfig) -> str:
    """Return the CUDA device's name, or the CPU model and the threads in use."""
    if config.device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(config.device)} (CUDA {torch.version.cuda})"
    cpuinfo = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text(encoding="utf-8")) if cpuinfo.exists() else None
    model = match[1] if match else platform.processor() or platform.machine()
    return f"{model}, threads: {config.threads or torch.get_num_threads()}"


def describe_schedules(plan: Plan, scaled_from: int | None) -> str:
    """Return the rounds at which the ratios and the learning rate change, and how they came about."""
    base = plan.base
    origin = f"scaled from {scaled_from} to {base.training.rounds} rounds, rounded: " if scaled_from else ""
    return (
        f"{origin}α {_schedule(base.lightweighting.alpha)}; β {_schedule(base.lightweighting.beta)}; "
        f"learning rate {_schedule(base.training.optimizer.learning_rate)}; "
        f"Fig. 3a prunes at round {pruning_round(base)} (0.4 of {base.training.rounds}, rounded)"
    )


def differences(config: ExperimentConfig) -> list[str]:
    """Return in what the experiment is not the paper's setting, as far as the paper and its configuration tell."""
    data, training, feature = config.data, config.training, config.models.feature
    checks = [
        (data.dataset.kind not in ("cifar10", "image_folder"), f"{data.dataset.kind} instead of CIFAR-10"),
        (data.train_samples != 10000, f"{_count(data.train_samples)} training images instead of 10000"),
        (data.test_samples not in (None, 10000), f"{_count(data.test_samples)} test images instead of all 10000"),
        (training.rounds != 100, f"{training.rounds} rounds instead of 100"),
        (training.steps_per_round is not None, f"{training.steps_per_round} exchanges per round, not a whole pass"),
        (training.batch_size != 256, f"batches of {training.batch_size} instead of 256"),
        (feature.kind != "vgg16", f"{feature.kind} instead of VGG16"),
        (feature.width != 1.0, f"layers of {feature.width:g} times VGG16's width"),
        (config.precision != "float32", f"{config.precision} autocast instead of float32"),
    ]
    return [text for differs, text in checks if differs]


def report(plan: Plan, results: Sequence[StudyResult], about: About, images: Sequence[str]) -> str:
    """Return the report as Markdown."""
    done = len(results)
    missing = [run.folder for run in plan.runs if (run.method, run.seed) not in {(r.method, r.seed) for r in results}]
    lines = ["# Figures 2 and 3 of the LVFL paper", "", *_header(plan, about), ""]
    lines += [
        f"{done} of {len(plan.runs)} runs are finished" + (f"; missing: {', '.join(missing)}." if missing else "."),
        "",
    ]
    for image in images:
        lines += [f"![{image}]({image})", ""]
    if not results:
        return "\n".join(lines)
    lines += ["## Results", "", *_method_table(plan, results), ""]
    lines += ["## Prunings", "", *_pruning_table(plan, results), "", "## What is seen", "", *findings(plan, results)]
    lines += ["## What the savings leave out", "", *OUTSIDE, ""]
    return "\n".join(lines)


def spread(values: Sequence[float], form: str) -> str:
    """Return the mean, and the lowest and the highest where they differ."""
    mean, low, high = (form.format(value) for value in (sum(values) / len(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def saved_with_broadcast(run: StudyResult, config: ExperimentConfig) -> float:
    """Return the share of the bytes saved if theta_0 had travelled at every exchange, as in the paper.

    With ``head_sync: replay`` it travels once per round; with all other settings as it does in the paper or not at all.
    """
    training, samples = config.training, config.data.train_samples
    steps = training.steps_per_round or (samples // training.batch_size if samples else 1)
    parties: Mapping[str, Any] = run.summary.get("parties", {})
    head = sum(party["bytes_by_kind"]["downlink"].get("head", 0) for party in parties.values())
    more = head * (steps - 1) if training.head_sync == "replay" else 0
    dense = run.summary["dense_uplink_bytes"] + run.summary["dense_downlink_bytes"]
    return savings(run.sent_bytes + more, dense + more)


def _header(plan: Plan, about: About) -> list[str]:
    config = plan.base
    differing = differences(config)
    scale = (
        f"**This is not the paper's setting: it is scaled down or changed in: {'; '.join(differing)}.**"
        if differing
        else "The scale is the paper's (what it leaves open is chosen, with reasons, in the configuration)."
    )
    sessions = [f"  - {s.date}: `{s.command}` on {s.hardware}, torch {s.torch}" for s in about.sessions]
    return [
        scale,
        "",
        f"- Data: {about.data_note or config.data.dataset.kind}; {_count(config.data.train_samples)} training and "
        f"{_count(config.data.test_samples)} test samples, {len(config.parties)} parties",
        f"- Scale: {config.training.rounds} rounds, batch {config.training.batch_size}, {config.models.feature.kind} "
        f"of width {config.models.feature.width:g}, {config.precision}; seeds {', '.join(map(str, plan.seeds))}",
        f"- Schedules: {describe_schedules(plan, about.scaled_from)}",
        "- Trained by:",
        *sessions,
        "- Accuracies are those of the test split at the end of a round. Rounds count from 0. Over several seeds: mean "
        "(lowest to highest). Compute is the feature models' multiply-accumulates, bytes are all that training "
        "exchanged; saved is against the same rounds without lightweighting.",
        "- Rounds before the first difference of two runs of one seed are trained once and shared as a checkpoint; "
        "wall times contain them for both.",
    ]


def _method_table(plan: Plan, results: Sequence[StudyResult]) -> list[str]:
    headings = ("method", "seeds", "final accuracy (%)", "compute saved (%)", "sent up", "sent down")
    headings += ("bytes saved (%)", "bytes up saved (%)", "head broadcast: bytes saved (%)", "wall time (s)")
    rows: list[list[str]] = []
    for method in plan.methods:
        runs = [result for result in results if result.method == method]
        if not runs:
            continue
        cells = [
            _title(method),
            str(len(runs)),
            spread([100 * run.accuracies[-1] for run in runs], "{:.2f}"),
            spread([100 * run.macs_saved for run in runs], "{:.1f}"),
            f"{amount(sum(run.summary['uplink_bytes'] for run in runs) / len(runs))}B",
            f"{amount(sum(run.summary['downlink_bytes'] for run in runs) / len(runs))}B",
            spread([100 * run.bytes_saved for run in runs], "{:.1f}"),
            spread([100 * run.uplink_saved for run in runs], "{:.1f}"),
            spread([100 * saved_with_broadcast(run, plan.base) for run in runs], "{:.1f}"),
            spread([run.summary["wall_time_s"] for run in runs], "{:.0f}"),
        ]
        rows.append(cells)
    return table(headings, rows)


def _pruning_table(plan: Plan, results: Sequence[StudyResult]) -> list[str]:
    about = (
        "Rounds to recover: until the accuracy was at least that before the pruning, looked for up to the next pruning "
        "or the end; per seed."
    )
    headings = ("method", "round", "α", "accuracy before (%)", "at that round's end (%)", "drop (points)")
    rows: list[list[str]] = []
    for method in plan.methods:
        by_round: dict[int, list[Pruning]] = {}
        for result in results:
            for pruning in prunings(result) if result.method == method else []:
                by_round.setdefault(pruning.round_index, []).append(pruning)
        for start, found in by_round.items():
            cells = [
                _title(method),
                str(start),
                f"{found[0].alpha:g}",
                spread([100 * pruning.before for pruning in found], "{:.2f}"),
                spread([100 * pruning.during for pruning in found], "{:.2f}"),
                spread([100 * pruning.drop for pruning in found], "{:.2f}"),
                ", ".join(_recovery(pruning) for pruning in found),
            ]
            rows.append(cells)
    return [about, "", *table((*headings, "rounds to recover"), rows)]


def _recovery(pruning: Pruning) -> str:
    return (
        f"not in {pruning.until - pruning.round_index}"
        if pruning.recovery_rounds is None
        else str(pruning.recovery_rounds)
    )


def _title(method: str) -> str:
    return re.sub(r"^(alpha|beta)(.+)", lambda match: f"{'α' if match[1] == 'alpha' else 'β'} = {match[2]}", method)


def _count(samples: int | None) -> str:
    return "all" if samples is None else str(samples)


def _schedule(schedule: PartySchedule) -> str:
    if not isinstance(schedule, dict):
        return f"{schedule:g}"
    return "{" + ", ".join(f"{key}: {_schedule(value)}" for key, value in schedule.items()) + "}"
