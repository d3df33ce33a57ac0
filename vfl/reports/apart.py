"""What each owner knows alone, and what training together adds to owners that learn alone and average their answers."""

from statistics import mean

from vfl.base.estimates import meeting_line, over_seeds
from vfl.base.metrics import LOWER_IS_BETTER, format_metric, in_axis_units, title
from vfl.config import TrainingConfig
from vfl.reports.runs import Subject, Variant

OF_MEETING = ("training.local_rounds", "training.auxiliary")
"""Settings in which owners who never meet may differ: a classifier that learns alone has no weight beside a head."""


def own_variants(subject: Subject) -> list[Variant]:
    """Return the variants whose parties have classifiers of their own."""
    return [each for each in subject.variants if all(run.summary.get("alone") for run in each.runs)]


def own_rows(variants: list[Variant]) -> list[tuple[str, ...]]:
    """Return a line per party: the metric of its own classifier for each setting, mean over the seeds."""
    metric = variants[0].runs[0].metric
    names = dict.fromkeys(name for variant in variants for name in variant.runs[0].summary["alone"])

    def cell(variant: Variant, name: str) -> str:
        values = [run.summary["alone"][name][metric] for run in variant.runs if name in run.summary["alone"]]
        return format_metric(metric, mean(values)) if values else ""

    return [(name, *(cell(variant, name) for variant in variants)) for name in names]


def meeting_lines(subject: Subject) -> list[str]:
    """Return a sentence for each setting with shared labels that was also trained by owners who never met."""
    apart = [variant for variant in subject.variants if _is_apart(variant)]
    pairs = [
        (joint, alone)
        for alone in apart
        for joint in subject.variants
        if joint not in apart and _others(joint) == _others(alone)
    ]
    return [line for joint, alone in pairs if (line := _line(subject.metric, joint, alone))]


def _is_apart(variant: Variant) -> bool:
    trainings = [run.config.training for run in variant.runs]
    return all(isinstance(each, TrainingConfig) and 0 < each.rounds <= each.local_rounds for each in trainings)


def _others(variant: Variant) -> dict[str, object]:
    """Return the other settings that distinguish a variant."""
    return {key: value for key, value in variant.settings.items() if key not in OF_MEETING}


def _line(metric: str, joint: Variant, alone: Variant) -> str | None:
    runs, others = ({run.config.seed: run for run in variant.runs} for variant in (joint, alone))
    seeds = sorted(runs.keys() & others.keys())
    if not seeds:
        return None
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    gain = over_seeds([sign * in_axis_units(metric, runs[seed].score - others[seed].score) for seed in seeds])
    pairs = [(runs[seed], others[seed]) for seed in seeds]
    more_bytes = mean(together.sent_bytes - apart.sent_bytes for together, apart in pairs)
    more_s = mean(together.summary["wall_time_s"] - apart.summary["wall_time_s"] for together, apart in pairs)
    unit = f"points of {title(metric)}" if metric not in LOWER_IS_BETTER else title(metric)
    return meeting_line(gain, unit, round(more_bytes), more_s)
