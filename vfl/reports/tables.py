"""The tables of a report as data, from which both Markdown and the page are written."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from vfl.base.costs import amount
from vfl.base.metrics import (
    CALIBRATION,
    LOWER_IS_BETTER,
    axis,
    decision_line,
    format_metric,
    in_axis_units,
    title,
    worse_than_constant,
)
from vfl.base.metrics import reached as reached_metrics
from vfl.reports.apart import own_rows, own_variants
from vfl.reports.judge import (
    TIE,
    cheapest_within,
    joint_cost,
    lost,
    merit,
    noise,
    pareto_front,
    reached,
    sent_bytes,
    target_score,
    train_macs,
)
from vfl.reports.leakage import EXPLANATION, HEADINGS, TITLE, audit_rows, verdict
from vfl.reports.runs import ReportedRun, Subject, Variant
from vfl.reports.subsets import CAPTION, subset_rows, tested_variants
from vfl.runs.results import Quantity, RunResult

MAY_BE_LOST = (0.5, 1.0, 2.0, 5.0)
"""Points (for an error, percent) for which the cheapest setting is listed."""
ADVISED = 1.0
"""Points (for an error, percent) that the advised setting may lose."""
MOST_PARTIES = 16
"""Most owners that are listed one by one; of more, often clients, the smallest, median and largest are shown."""


@dataclass(frozen=True)
class TableData:
    """A table whose first column names its rows and whose other columns are numbers."""

    title: str
    caption: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def markdown(self) -> str:
        """Return the table with its title."""
        return section(self.title, None, [self.caption, "", *table(self.headings, self.rows)])


def tables(subject: Subject) -> list[TableData]:
    """Return the tables that apply, except those of the parties."""
    choice = [choice_table(subject)] if subject.saves else []
    errors = [errors_table(subject)] if subject.lightweights else []
    time = [time_table(subject)] if subject.followed else []
    leaks = [table for run in subject.runs for table in _leakage_table(subject, run)]
    return [
        *choice,
        settings_table(subject),
        *_calibration_table(subject),
        *_constant_table(subject),
        *time,
        *_own_table(subject),
        *_subsets_table(subject),
        *errors,
        *leaks,
    ]


def _leakage_table(subject: Subject, run: ReportedRun) -> list[TableData]:
    if run.leakage is None:
        return []
    heading = TITLE if len(subject.runs) == 1 else f"{TITLE}: {run.name}"
    left_out = "".join(f" Not measured: {line}." for line in run.leakage["left_out"])
    return [TableData(heading, f"{verdict(run.leakage)} {EXPLANATION}{left_out}", HEADINGS, audit_rows(run.leakage))]


def _own_table(subject: Subject) -> list[TableData]:
    variants = own_variants(subject)
    headings = ("party", *(variant.label for variant in variants))
    caption = f"Test {title(subject.metric)} of each party's own classifier, mean over the seeds."
    return [TableData("What each owner knows alone", caption, headings, own_rows(variants))] if variants else []


def _subsets_table(subject: Subject) -> list[TableData]:
    variants = tested_variants(subject)
    headings = ("parties", *(variant.label for variant in variants))
    caption = f"Test {title(subject.metric)} of each set of parties, mean over the seeds. {CAPTION}"
    return [TableData("Sets of parties", caption, headings, subset_rows(variants))] if variants else []


def settings_table(subject: Subject) -> TableData:
    """Return scores and costs of every setting, best score first."""
    on_bytes, on_macs = (pareto_front(subject.variants, cost) for cost in (sent_bytes, train_macs))
    reference, several = subject.reference, len(subject.variants) > 1
    rows: list[tuple[str, ...]] = []
    for variant in sorted(subject.variants, key=merit, reverse=True):
        scores = [in_axis_units(subject.metric, run.score) for run in variant.runs]
        spread = f" ({min(scores):.2f} to {max(scores):.2f})" if len(scores) > 1 else ""
        marks = [name for name, front in (("bytes", on_bytes), ("MACs", on_macs)) if variant in front]
        rows.append(
            (
                variant.label,
                str(len(variant.runs)),
                f"{_show_score(variant)}{spread}",
                "" if variant is reference else _show_change(variant, reference),
                f"{amount(sent_bytes(variant))}B",
                _show_percent(variant, lambda run: run.bytes_saved),
                amount(train_macs(variant)).strip(),
                _show_percent(variant, lambda run: run.macs_saved),
                ", ".join(marks) if several else "",
            )
        )
    change = f"; its change is against {reference.label}" if several else ""
    saved = "; saved is against the same steps without lightweighting"
    positive = subject.runs[0].summary.get("positive_class") if subject.metric != "accuracy" else None
    of_class = f" of class {positive!r}" if positive else ""
    caption = (
        f"The {title(subject.metric)}{of_class} is that of the test split at the end, mean over the seeds (lowest to "
        f"highest){change}. Bytes are all that training exchanged, both ways; MACs the multiply-accumulates of "
        f"training the models{'' if all(run.simulated for run in subject.runs) else saved}."
    )
    scores = ("setting", "seeds", axis(subject.metric), f"change ({_axis_unit(subject)})")
    headings = (*scores, "bytes", "saved (%)", "MACs", "saved (%)", "on the front of")
    filled = [any(column) for column in zip(*rows, strict=True)]  # a single run's or clients' table has empty columns
    columns = [tuple(compress(row, filled)) for row in (headings, *rows)]
    return TableData("Settings", caption, columns[0], columns[1:])


def _calibration_table(subject: Subject) -> list[TableData]:
    """Return how far each run's probabilities can be trusted, and what deciding by costs gives; none of amounts."""
    values = {run.name: reached_metrics(run.summary)[1] for run in subject.runs}
    rows = [
        (
            run.name,
            *(f"{values[run.name][name]:.4f}" for name in CALIBRATION),
            _show_number(run.summary.get("constant", {}).get("log_loss")),
        )
        for run in subject.runs
        if values[run.name].keys() >= {*CALIBRATION}
    ]
    if not rows:
        return []
    notes = [
        f"{run.name}: {line}."
        for run in subject.runs
        for line in (worse_than_constant(run.summary), decision_line(run.summary))
        if line
    ]
    caption = (
        "Log loss, beside that of the training rows' class shares, and expected calibration error: by how much "
        "probabilities and the shares that came true differ, mean over ten bins."
    )
    headings = ("run", "log loss", "calibration error", "log loss of the shares")
    return [TableData("Calibration", " ".join([caption, *notes]), headings, rows)]


def _constant_table(subject: Subject) -> list[TableData]:
    """Return the error of each run on amounts beside that of the best constant; none of classes."""
    rows, notes = list[tuple[str, ...]](), list[str]()
    for run in subject.runs:
        values, constants = reached_metrics(run.summary)[1], run.summary.get("constant", {})
        for metric in constants.keys() - {"log_loss"}:
            rows.append((run.name, title(metric), _show_number(values.get(metric)), _show_number(constants[metric])))
            notes += [f"{run.name}: {line}."] if (line := worse_than_constant(run.summary)) else []
            if "coverage" in values:
                notes.append(
                    f"{run.name}: {values['coverage']:.1%} of the values are at or below the predicted quantile."
                )
    caption = "The error beside that of the training rows' best constant: their mean, median or quantile."
    headings = ("run", "metric", "error", "of the constant")
    return [TableData("Against a constant", " ".join([caption, *notes]), headings, rows)] if rows else []


def time_table(subject: Subject) -> TableData:
    """Return the costs of every setting until it reached the target score."""
    target = target_score(subject)
    is_error = subject.metric in LOWER_IS_BETTER
    goal = format_metric(subject.metric, target) if is_error else f"{in_axis_units(subject.metric, target):.1f} %"
    rows: list[tuple[str, ...]] = []
    for variant in subject.variants:
        spent = reached(variant, target)
        if spent is None:
            rows.append((variant.label, "not reached", "", "", ""))
            continue
        rounds, seconds = f"{round(spent.rounds, 1):g}", f"{spent.seconds:.1f} s"
        rows.append((variant.label, rounds, f"{amount(spent.bytes)}B", amount(spent.macs).strip(), seconds))
    clock = "are those of the slowest party's own work, as measured"
    if all(run.clocked for run in subject.runs):
        clock = "are simulated" if subject.on_virtual_clock else "are those of the run's clock"
    caption = (
        f"Until the test {title(subject.metric)} first was as good as {goal}, nine tenths of the best setting's; mean "
        f"over the seeds, not reached where one of them never was. Seconds {clock}."
    )
    headings = ("setting", "rounds", "bytes", "MACs", "seconds")
    return TableData(f"Time to {title(subject.metric)}", caption, headings, rows)


def errors_table(subject: Subject) -> TableData:
    """Return the errors due to lightweighting; for the paper's models also the sums of Corollary 1's bound."""
    title, quantities = "Errors that lightweighting made", _ERRORS
    caption = (
        "Ω is the squared error that sparsification made, mean over rounds and parties; Ψ the one that pruning made, "
        "summed over the rounds, mean over the parties."
    )
    if subject.as_paper:
        title, quantities = "Errors and Corollary 1", _ERRORS | _COROLLARY
        caption += (
            " The bound of the LVFL paper's Corollary 1 grows with the sums of α and β over all rounds and parties."
        )
    rows = [
        (variant.label, *(_show_number(variant.mean(quantity)) for quantity in quantities.values()))
        for variant in subject.variants
    ]
    return TableData(title, caption, ("setting", *quantities), rows)


_ERRORS: dict[str, Quantity] = {"Ω": lambda run: run.omega(), "Ψ": lambda run: run.psi()}
_COROLLARY: dict[str, Quantity] = {
    "sum of α": lambda run: run.corollary_sum("alpha"),
    "sum of β": lambda run: run.corollary_sum("beta"),
}


def party_tables(subject: Subject) -> list[TableData]:
    """Return a table of the parties or clients of each setting's first seed."""
    return [_party_table(variant.runs[0], variant) for variant in subject.variants]


def _party_table(run: ReportedRun, variant: Variant) -> TableData:
    seeds = f", seed {run.config.seed}" if len(variant.runs) > 1 else ""
    title = f"Parties: {variant.label}{seeds}"
    parties: dict[str, dict[str, Any]] = run.summary["parties"]
    if run.simulated:
        return _client_table(title.replace("Parties", "Clients"), parties)
    rows = [
        (
            name,
            f"{party['alpha']:g}",
            f"{party['beta']:g}",
            amount(party["parameters"]).strip(),
            amount(party["macs_per_sample"]).strip(),
            f"{amount(party['uplink_bytes'])}B",
            f"{amount(party['downlink_bytes'])}B",
            f"{party['train_time_s']:.1f} s",
        )
        for name, party in parties.items()
    ]
    caption = "Ratios, parameters and MACs (of one sample's forward pass) at the end; bytes and seconds of all rounds."
    for name, rounds in run.unmet.items():
        caption += f" {name} could not meet the controller's goal in {rounds} of {len(run.rows)} rounds."
    headings = ("party", "α", "β", "parameters", "MACs", "sent up", "sent down", "time")
    return TableData(title, caption, headings, rows)


def _client_table(title: str, clients: dict[str, dict[str, Any]]) -> TableData:
    keys = ("samples", "uplink_bytes", "downlink_bytes", "train_macs", "train_time_s")
    headings = ("client", "samples", "sent up", "sent down", "MACs", "time")
    columns_by_name = {name: [float(client[key]) for key in keys] for name, client in clients.items()}
    caption = "Of all rounds."
    if len(clients) > MOST_PARTIES:
        columns = [sorted(values) for values in zip(*columns_by_name.values(), strict=True)]
        quantiles = (("smallest", 0), ("median", len(clients) // 2), ("largest", -1))
        columns_by_name = {name: [column[place] for column in columns] for name, place in quantiles}
        caption += f" {len(clients)} clients took part; each column by itself."
    rows = [
        (name, f"{v[0]:.0f}", f"{amount(v[1])}B", f"{amount(v[2])}B", amount(v[3]).strip(), f"{v[4]:.1f} s")
        for name, v in columns_by_name.items()
    ]
    return TableData(title, caption, headings, rows)


def choice_table(subject: Subject) -> TableData:
    """Return each setting that is the cheapest for some number of points that may be lost, best score first."""
    costs = (sent_bytes, train_macs, joint_cost(subject))
    best_by_cost = [[cheapest_within(subject, most, cost) for most in MAY_BE_LOST] for cost in costs]
    rows: list[tuple[str, ...]] = []
    for variant in sorted(subject.variants, key=merit, reverse=True):
        allowed = [
            [most for most, best in zip(MAY_BE_LOST, each, strict=True) if best is variant] for each in best_by_cost
        ]
        if any(allowed):
            saved = (
                _show_percent(variant, lambda run: run.bytes_saved),
                _show_percent(variant, lambda run: run.macs_saved),
            )
            spans = (f"for {_show_span(each)} {_axis_unit(subject)}" if each else "" for each in allowed)
            rows.append((variant.label, _show_score(variant), *saved, *spans))
    given_up = f"{_axis_unit(subject)} of {title(subject.metric)} may be lost against {subject.reference.label}"
    caption = (
        f"By how many {given_up} ({_show_span(MAY_BE_LOST)}): the setting with the fewest bytes, the fewest MACs, and "
        f"the least of both. Costs within {TIE:.0%} of each other are ties, which go to the better."
    )
    saved = ("bytes saved (%)", "MACs saved (%)")
    headings = ("setting", axis(subject.metric), *saved, "fewest bytes", "fewest MACs", "both")
    return TableData("What to choose", caption, headings, rows)


def _show_span(losses: Sequence[float]) -> str:
    """Return what may be lost for a setting to be the cheapest; the losses of one setting follow one another."""
    return f"{losses[0]:g}" if len(losses) == 1 else f"{losses[0]:g} to {losses[-1]:g}"


def advice(subject: Subject) -> str:
    """Return one sentence of advice: the setting cheapest in bytes and MACs together that loses at most `ADVISED`."""
    if not subject.saves:
        return ""
    if min(len(variant.runs) for variant in subject.variants) < 2:
        return "One seed: no advice, as one cannot tell a difference from noise; train three."
    reference, best = subject.reference, cheapest_within(subject, ADVISED, joint_cost(subject))
    config = subject.folder / "runs" / best.runs[0].name / "config.yaml"
    if best is reference:
        nearest = min(
            (each for each in subject.variants if each is not best), key=lambda each: lost(each, best), default=None
        )
        remark = noise(nearest, best) if nearest else ""
        worse = f"every cheaper setting is worse by more than {ADVISED:.1f} {_axis_unit(subject)}"
        return f"Choose {best.label}: {worse}{f' ({remark})' if remark else ''}."
    remark = noise(best, reference)
    return (
        f"Choose {best.label}: it saves {_show_saved(best)} of bytes and multiply-accumulates at "
        f"test {title(subject.metric)} {format_metric(subject.metric, best.score)}, {_show_change(best, reference)} "
        f"{_axis_unit(subject)} against {reference.label}{f' ({remark})' if remark else ''}"
        + (f"; train it by: lvfl train {shlex.quote(str(config))}" if config.exists() else "")
    )


def _show_score(variant: Variant) -> str:
    return f"{in_axis_units(variant.runs[0].metric, variant.score):.2f}"


def _show_change(variant: Variant, reference: Variant) -> str:
    """Return a signed change: of a share in points, of an error in percent."""
    worse = lost(variant, reference)
    change = worse if variant.runs[0].metric in LOWER_IS_BETTER else -worse
    return f"{round(change, 2) + 0.0:+.2f}"  # 0.0 takes the sign off a zero


def _axis_unit(subject: Subject) -> str:
    return "percent" if subject.metric in LOWER_IS_BETTER else "points"


def _show_saved(variant: Variant) -> str:
    shares = (variant.mean(lambda run: run.bytes_saved), variant.mean(lambda run: run.macs_saved))
    return " and ".join(f"{100 * (share or 0.0):.1f} %" for share in shares)


def _show_percent(variant: Variant, quantity: Callable[[RunResult], float]) -> str:
    value = variant.mean(quantity)
    return "" if value is None or variant.runs[0].simulated else f"{100 * value:.1f}"


def _show_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first column names its rows and whose other columns are numbers."""
    rule = "|---|" + "--:|" * (len(headings) - 1)
    first, *body = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return [first, rule, *body]


def section(title: str, image: str | None, lines: Sequence[str]) -> str:
    """Return a section with its plot."""
    plot = [f"![{title}]({image})", ""] if image else []
    return "\n".join([f"## {title}", "", *plot, *lines, ""])
