"""What each party contributes: how much worse a model is without it, and what every set of parties reaches."""
# pyright: reportUnknownMemberType=false
# matplotlib's signatures are partly untyped.

from statistics import mean

from matplotlib.figure import Figure

from vfl.metrics import axis, drawn, shown
from vfl.reports.runs import Subject, Variant
from vfl.reports.style import COLORS, dress, legend_below, new_figure
from vfl.vertical.subsets import AND, lost_without

CAPTION = "As if the others were away, by the placeholders that the models learned (zeros where they learned none)."


def tested_variants(subject: Subject) -> list[Variant]:
    """Return those whose sets of parties were tested (`evaluation.subsets`)."""
    return [each for each in subject.variants if all("subsets" in run.summary for run in each.runs)]


def draw_lost(subject: Subject, variants: list[Variant]) -> Figure:
    """Draw a bar per party and setting: what the metric loses without the party, mean over the seeds."""
    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    width = 0.8 / min(len(variants), len(COLORS))
    for position, variant in enumerate(variants[: len(COLORS)]):
        lost = _lost(variant)
        places = [place + width * position for place in range(len(lost))]
        axes.bar(places, list(lost.values()), width, label=variant.label, color=COLORS[position])
    names = list(_lost(variants[0]))
    axes.set_xticks([place + (0.8 - width) / 2 for place in range(len(names))], names)
    dress(axes, "Party that is away", f"Lost {axis(subject.metric)}")
    if len(variants) > 1:
        legend_below(figure, axes, 3)
    return figure


def subset_rows(variants: list[Variant]) -> list[tuple[str, ...]]:
    """Return a line per set of parties: its metric for each setting, mean over the seeds."""
    values = {each: [_mean_value(variant, each) for variant in variants] for each in _sets(variants[0])}
    metric = variants[0].runs[0].metric
    return [(each.replace(AND, ", "), *(shown(metric, value) for value in row)) for each, row in values.items()]


def _sets(variant: Variant) -> list[str]:
    return list(variant.runs[0].summary["subsets"])


def _mean_value(variant: Variant, parties: str) -> float:
    return mean(run.summary["subsets"][parties][run.metric] for run in variant.runs)


def _lost(variant: Variant) -> dict[str, float]:
    values = {each: _mean_value(variant, each) for each in _sets(variant)}
    metric = variant.runs[0].metric
    lost = lost_without(values, _sets(variant)[0].split(AND), metric)
    return {party: drawn(metric, value) for party, value in lost.items()}
