"""The figures of a report; each is a matplotlib figure that is written as PNG and into the page."""
# pyright: reportUnknownMemberType=false
# matplotlib's signatures are partly untyped.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from vfl.base.costs import amount
from vfl.base.metrics import axis, in_axis_units, title
from vfl.reports.judge import pareto_front, sent_bytes, train_macs
from vfl.reports.runs import ALPHA, BETA, ReportedRun, Subject, Variant, is_number, key_label, setting_label
from vfl.reports.styles import group_style, legend_styles, point_style, style_of
from vfl.reports.subsets import CAPTION, draw_lost, tested_variants
from vfl.runs.diagram_style import COLORS, INK, curve_style, dress, legend_below, new_figure
from vfl.runs.results import Quantity, RunResult

ON_LIGHT, ON_DARK = "#010101", "#FFFFFF"
"""Colours of the numbers in a map; like the map, they ignore the page's light or dark setting."""
MOST_CURVES = len(COLORS)
LETTERS_ACROSS, LETTERS_OF_HANDLE = 62, 7
"""Letters that fit in a row of a legend, and the width in letters of the line beside a label."""


@dataclass(frozen=True)
class Drawing:
    """One figure with its caption."""

    name: str
    """Name of its file, without extension."""
    title: str
    caption: str
    figure: Figure
    hover: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tooltips by gid."""


def draw(subject: Subject) -> list[Drawing]:
    """Draw the figures that apply to a run or a sweep."""
    drawings = [*(_draw_scores(subject) if subject.followed else []), *_draw_ratios(subject)]
    if len(subject.variants) > 1:
        drawings += [
            _draw_scatter(subject, "bytes", "Bytes sent in training, both ways", "B", sent_bytes),
            _draw_scatter(subject, "macs", "Multiply-accumulates of training", "", train_macs),
            *_draw_grid(subject),
        ]
    if subject.followed and len(subject.variants) <= MOST_CURVES:
        drawings += _draw_spending(subject)
    return drawings + _draw_subsets(subject) + (_draw_errors(subject) if subject.lightweights else [])


def _draw_subsets(subject: Subject) -> list[Drawing]:
    variants = tested_variants(subject)
    if not variants:
        return []
    figure, axes = new_axes("Party that is away", f"Lost {axis(subject.metric)}")
    draw_lost(axes, variants[:MOST_CURVES], subject)
    if len(variants) > 1:
        place_legend(figure, axes)
    caption = CAPTION + _left_out(variants)
    return [Drawing("subsets", f"{_score_label(subject)} lost without a party", caption, figure)]


def _left_out(variants: Sequence[Variant]) -> str:
    return f" Only the first {MOST_CURVES} of {len(variants)} are drawn." if len(variants) > MOST_CURVES else ""


def _draw_scores(subject: Subject) -> list[Drawing]:
    if not subject.keys:
        return [_every_curve(subject)]
    drawings = _draw_methods(subject)
    for key in subject.keys:
        other_keys = [each for each in subject.keys if each != key]
        fixed = ", ".join(setting_label(each, subject.reference.settings.get(each)) for each in other_keys)
        candidates = [subject.find({key: value}) for value in subject.values(key)]
        variants = [variant for variant in candidates if variant is not None]
        if len(variants) < 2:  # of a list of settings, not a grid
            continue
        labels = [setting_label(key, variant.settings.get(key)) for variant in variants]
        heading = f"{_score_label(subject)} for every {key_label(key)}" + (f" ({fixed})" if fixed else "")
        name = f"{subject.metric}_{key.rpartition('.')[2]}"
        drawings.append(_draw_curves(subject, name, heading, _draw_alone(subject, key), variants, labels))
    return drawings or [_every_curve(subject)]


def _every_curve(subject: Subject) -> Drawing:
    return _draw_curves(subject, subject.metric, f"{_score_label(subject)} over the rounds", "", subject.variants)


def _draw_alone(subject: Subject, key: str) -> str:
    """Return the caption for a single setting's curves."""
    captions = {ALPHA: ("3a", "only pruning."), BETA: ("3b", "only sparsification.")}
    return _describe_fixed(subject, *captions[key]) if key in captions else ""


def _describe_fixed(subject: Subject, number: str, caption: str) -> str:
    """Return a caption, with the number of the LVFL paper's figure if its models were trained."""
    return f"As the paper's Fig. {number}: {caption}" if subject.as_paper else caption[0].upper() + caption[1:]


def _draw_methods(subject: Subject) -> list[Drawing]:
    """Draw the methods of Fig. 2: none, only pruning, only sparsification, both at the largest trained ratios."""
    if not {ALPHA, BETA} <= set(subject.keys):
        return []
    high = {key: subject.values(key)[-1] for key in (ALPHA, BETA)}
    settings_by_method = {"NL": {}, "PL": {ALPHA: high[ALPHA]}, "ML": {BETA: high[BETA]}, "L": high}
    candidates = {label: subject.find(settings) for label, settings in settings_by_method.items()}
    variants = {label: variant for label, variant in candidates.items() if variant is not None}
    caption = (
        f"no lightweighting (NL), only pruning (PL, {setting_label(ALPHA, high[ALPHA])}), "
        f"only sparsification (ML, {setting_label(BETA, high[BETA])}), both (L)."
    )
    return [
        _draw_curves(
            subject,
            "methods",
            "Methods",
            _describe_fixed(subject, "2", caption),
            list(variants.values()),
            list(variants),
        )
    ]


def _draw_curves(
    subject: Subject,
    name: str,
    title: str,
    caption: str,
    variants: Sequence[Variant],
    labels: Sequence[str] | None = None,
) -> Drawing:
    metric = subject.metric
    figure, axes = new_axes("Round", f"Test {axis(metric)}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    labelled = list(zip(variants, labels or [variant.label for variant in variants], strict=True))
    for position, (variant, label) in enumerate(labelled[:MOST_CURVES]):
        scores = [[in_axis_units(metric, value) for _, value in run.curve] for run in variant.runs]
        # A seed may have stopped early: further rounds are means over those that went on.
        per_round = [[value for value in values if value is not None] for values in zip_longest(*scores)]
        rounds = max(([number + 1 for number, _ in run.curve] for run in variant.runs), key=len)
        means = [mean(values) for values in per_round]
        style = style_of(subject, variant, len(rounds))
        axes.plot(rounds, means, label=label, gid=f"curve_{position}", **style)
        if len(variant.runs) > 1:
            low, high = [min(values) for values in per_round], [max(values) for values in per_round]
            axes.fill_between(rounds, low, high, color=style["color"], alpha=0.15, linewidth=0)
    seeds = max(len(variant.runs) for variant in variants)
    band = f" Mean and range of {seeds} seeds." if seeds > 1 else ""
    if len(labelled) > 1:
        place_legend(figure, axes)
    hover = {f"curve_{position}": variant.label for position, (variant, _) in enumerate(labelled[:MOST_CURVES])}
    return Drawing(name, title, (caption + band + _left_out(variants)).strip(), figure, hover)


def _draw_ratios(subject: Subject) -> list[Drawing]:
    """Draw alpha and beta over the rounds, if there is a single run and it lightweights."""
    if len(subject.variants) > 1 or not subject.lightweights:
        return []
    quantities = {"alpha": "α, filters removed", "beta": "β, entries not sent"}
    figure = _over_rounds(subject.runs[0], "Ratio, mean over the parties", quantities, drawstyle="steps-mid")
    figure.axes[0].set_ylim(-0.02, 1)
    caption = _describe_fixed(subject, "2", "what the parties left out.")
    return [Drawing("ratios", "Lightweighting ratios", caption, figure)]


def _over_rounds(run: RunResult, up: str, quantities: Mapping[str, str], drawstyle: str = "default") -> Figure:
    """Draw quantities of a run, by the names of their tags, each the mean over the parties."""
    figure, axes = new_axes("Round", up)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    rounds = [int(row["round"]) + 1 for row in run.rows]
    for position, (name, label) in enumerate(quantities.items(), 1):
        style = curve_style(position, len(rounds))
        axes.plot(rounds, run.mean_over_parties(name), label=label, drawstyle=drawstyle, **style)
    place_legend(figure, axes)
    return figure


def _draw_scatter(subject: Subject, name: str, label: str, unit: str, cost: Callable[[Variant], float]) -> Drawing:
    figure, axes = new_axes(label, f"Test {axis(subject.metric)}")
    axes.xaxis.set_major_formatter(EngFormatter(unit=unit, places=None))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    front = pareto_front(subject.variants, cost)
    hover = dict[str, str]()
    for variant in subject.variants:
        point, score = f"point_{len(hover)}", in_axis_units(subject.metric, variant.score)
        hover[point] = f"{variant.label}: {score:.4g}, {amount(cost(variant))}{unit}"
        axes.plot([cost(variant)], [score], gid=point, **point_style(subject, variant))
    for label, style in legend_styles(subject):
        axes.plot([], [], label=label, **style)
    on_front = [(cost(variant), in_axis_units(subject.metric, variant.score)) for variant in front]
    circles: dict[str, Any] = {"marker": "o", "markersize": 13, "markerfacecolor": "none", "markeredgewidth": 1.1}
    line: dict[str, Any] = {"color": INK, "linewidth": 1.1, "drawstyle": "steps-post", "zorder": 1}
    axes.plot(*zip(*on_front, strict=True), label="Pareto front", **line, **circles)
    place_legend(figure, axes)
    caption = f"On the front (circled), cheapest first: {'; '.join(variant.label for variant in front)}."
    return Drawing(name, f"{_score_label(subject)} against {_WORDS[name]}", caption, figure, hover)


_WORDS = {"bytes": "bytes", "macs": "multiply-accumulates", "time": "time"}


def _draw_spending(subject: Subject) -> list[Drawing]:
    """Draw the score over the costs so far: of a single run, or of a few settings, mean over their seeds."""
    several = len(subject.variants) > 1
    costs: list[tuple[str, str, str, Callable[[ReportedRun], list[float]]]] = [
        ("bytes", "Bytes sent in training, both ways", "B", lambda run: run.bytes_by_round()),
        ("macs", "Multiply-accumulates of training", "", lambda run: run.macs_by_round()),
    ]
    if all(run.clocked for run in subject.runs):
        label = "Simulated time" if subject.on_virtual_clock else "Time"
        costs.append(("time", label, "s", lambda run: run.seconds_by_round()))
    drawings: list[Drawing] = []
    for name, label, unit, spent in costs:
        figure, axes = new_axes(label, f"Test {axis(subject.metric)}")
        axes.xaxis.set_major_formatter(EngFormatter(unit=unit))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        for position, variant in enumerate(subject.variants):
            across, scores = _mean_curve(variant, spent)
            curve = f"curve_{position}"
            axes.plot(across, scores, label=variant.label, gid=curve, **style_of(subject, variant, len(across)))
        if several:
            place_legend(figure, axes)
        hover = {f"curve_{position}": variant.label for position, variant in enumerate(subject.variants)}
        heading = f"{_score_label(subject)} against {_WORDS[name]}" + (", round by round" if several else "")
        drawings.append(Drawing(f"{name}_by_round" if several else name, heading, "", figure, hover))
    return drawings


def _mean_curve(
    variant: Variant, spent: Callable[[ReportedRun], list[float]]
) -> tuple[Sequence[float], Sequence[float]]:
    """Return costs and scores, mean over the seeds, at every evaluation that all seeds have."""
    curves = [[(spent(run)[number], score) for number, score in run.curve] for run in variant.runs]
    metric = variant.runs[0].metric
    points = [
        (mean(cost for cost, _ in each), in_axis_units(metric, mean(score for _, score in each)))
        for each in zip(*curves, strict=False)  # one may have stopped early
    ]
    return [cost for cost, _ in points], [score for _, score in points]


def _draw_grid(subject: Subject) -> list[Drawing]:
    """Draw the mean score of every pair of alpha and beta as a map."""
    alphas, betas = subject.values(ALPHA), subject.values(BETA)
    if not {ALPHA, BETA} <= set(subject.keys) or not all(is_number(value) for value in alphas + betas):
        return []
    figure, axes = new_axes("β", "α")
    axes.grid(visible=False)
    variants = [[subject.find({ALPHA: alpha, BETA: beta}) for beta in betas] for alpha in alphas]
    scores = np.array(
        [[np.nan if each is None else in_axis_units(subject.metric, each.score) for each in row] for row in variants]
    )
    mesh = axes.pcolormesh(scores, cmap="cividis", edgecolors="white", linewidth=1)
    middle = (np.nanmin(scores) + np.nanmax(scores)) / 2
    for row, column in np.argwhere(~np.isnan(scores)).tolist():
        value = scores[row, column]
        color = ON_LIGHT if value >= middle else ON_DARK
        axes.text(column + 0.5, row + 0.5, f"{value:.4g}", ha="center", va="center", color=color)
    axes.set_xticks(np.arange(len(betas)) + 0.5, [f"{beta:g}" for beta in betas])
    axes.set_yticks(np.arange(len(alphas)) + 0.5, [f"{alpha:g}" for alpha in alphas])
    axes.tick_params(length=0)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]  # stubs take it for an array
    bar.ax.tick_params(colors=INK)
    return [Drawing("grid", f"Test {axis(subject.metric)} of every pair", "Mean over the seeds.", figure)]


def _draw_errors(subject: Subject) -> list[Drawing]:
    """Draw the errors of Corollary 1 against the ratio that causes them; for a single run over the rounds."""
    if not subject.keys:
        errors = {"omega": "Ω (sparsification)", "psi": "Ψ (pruning)"}
        figure = _over_rounds(subject.runs[0], "Error, mean over the parties", errors)
        return [Drawing("errors", "Errors that lightweighting made", "", figure)]
    drawings: list[Drawing] = []
    quantities: tuple[tuple[str, str, str, str, Quantity], ...] = (
        ("omega", "Ω", BETA, ALPHA, lambda run: run.omega()),
        ("psi", "Ψ", ALPHA, BETA, lambda run: run.psi()),
    )
    for name, symbol, key, other, quantity in quantities:
        if key not in subject.keys or not all(is_number(value) for value in subject.values(key)):
            continue
        figure, axes = new_axes(key_label(key), _ERRORS[name])
        groups = subject.values(other) if other in subject.keys else [None]
        for group in groups:
            fixed = {} if group is None else {other: group}
            variants = [(value, subject.find({key: value} | fixed)) for value in subject.values(key)]
            points = [(value, each.mean(quantity)) for value, each in variants if each is not None]
            measured_points = [(value, error) for value, error in points if error is not None]
            label = setting_label(other, group) if fixed else symbol
            axes.plot(
                *zip(*measured_points, strict=True),
                label=label,
                **group_style(subject, other, group, len(measured_points)),
            )
        place_legend(figure, axes)
        caption = "Corollary 1's sums of the ratios are in the table below." if subject.as_paper else ""
        drawings.append(Drawing(name, f"{symbol} against {key_label(key)}", caption, figure))
    return drawings


_ERRORS = {"omega": "Ω, mean over rounds and parties", "psi": "Ψ, sum over the rounds"}


def _score_label(subject: Subject) -> str:
    """Return the metric's name, capitalised for a title."""
    name = title(subject.metric)
    return name[0].upper() + name[1:]


def new_axes(across: str, up: str) -> tuple[Figure, Axes]:
    """Return a figure with labelled axes."""
    figure = new_figure(4.3, 3.5)
    axes = figure.add_subplot()
    dress(axes, across, up)
    return figure, axes


def place_legend(figure: Figure, axes: Axes) -> None:
    """Place the legend below in as many columns as fit, and make the figure taller by its rows."""
    labels = axes.get_legend_handles_labels()[1]
    columns = max(1, min(4, len(labels), LETTERS_ACROSS // (max(map(len, labels)) + LETTERS_OF_HANDLE)))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows - 2))
    legend_below(figure, axes, columns)
