"""Contributions of parties: how much worse a model is without each, and the score of every tested set of parties."""
# pyright: reportUnknownMemberType=false
# matplotlib's signatures are partly untyped.

from itertools import chain
from statistics import mean

from matplotlib.axes import Axes

from vfl.base.metrics import AND, format_metric, in_axis_units, lost_without
from vfl.reports.runs import Subject, Variant
from vfl.reports.styles import bar_style

CAPTION = "As if the others were away, by the placeholders that the models learned (zeros where they learned none)."
LETTERS_ACROSS = 30
"""Letters of parties' names that fit side by side."""


def tested_variants(subject: Subject) -> list[Variant]:
    """Return the variants whose sets of parties were tested (`evaluation.subsets`)."""
    return [each for each in subject.variants if all("subsets" in run.summary for run in each.runs)]


def draw_lost(axes: Axes, variants: list[Variant], subject: Subject) -> None:
    """Draw a bar per party and setting: the loss in the metric without the party, mean over the seeds."""
    width, every = 0.8 / len(variants), [_losses_by_party(variant) for variant in variants]
    names = list(dict.fromkeys(chain.from_iterable(every)))
    for position, (variant, losses) in enumerate(zip(variants, every, strict=True)):
        places = [names.index(name) + width * position for name in losses]
        axes.bar(places, list(losses.values()), width, label=variant.label, **bar_style(subject, variant))
    crowded = sum(map(len, names)) > LETTERS_ACROSS
    middles = [place + (0.8 - width) / 2 for place in range(len(names))]
    axes.set_xticks(middles, names, rotation=30 if crowded else 0, ha="right" if crowded else "center")


def subset_rows(variants: list[Variant]) -> list[tuple[str, ...]]:
    """Return a line per set of parties: its metric for each setting, mean over the seeds; "" if it was not tested."""
    metric, sets_by_variant = variants[0].runs[0].metric, [_subset_values(variant) for variant in variants]
    return [
        (
            each.replace(AND, ", "),
            *(
                format_metric(metric, _mean_value(variant, each)) if each in sets else ""
                for variant, sets in zip(variants, sets_by_variant, strict=True)
            ),
        )
        for each in dict.fromkeys(chain.from_iterable(sets_by_variant))
    ]


def _subset_values(variant: Variant) -> list[str]:
    return list(variant.runs[0].summary["subsets"])


def _mean_value(variant: Variant, parties: str) -> float:
    return mean(run.summary["subsets"][parties][run.metric] for run in variant.runs)


def _losses_by_party(variant: Variant) -> dict[str, float]:
    values = {each: _mean_value(variant, each) for each in _subset_values(variant)}
    metric = variant.runs[0].metric
    losses = lost_without(values, _subset_values(variant)[0].split(AND), metric)
    return {party: in_axis_units(metric, value) for party, value in losses.items()}
