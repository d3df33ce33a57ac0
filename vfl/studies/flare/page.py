"""What FLARE's figures leave in their folder: plots, tables, numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from types import MappingProxyType

from vfl.reports.markdown import section, table
from vfl.results import CLOCK
from vfl.studies.flare.gap import gap_table, measure_gaps
from vfl.studies.flare.studies import (
    DATA_SETS,
    FIG_7_DEADLINE_S,
    FIG_8_DEADLINES_S,
    MATCHED,
    POLICIES,
    SPLITS,
    Planner,
    Split,
    fig_4_study,
    policy_study,
)
from vfl.studies.page import Values, beats, last_accuracies, matched, percent, spread, write_page
from vfl.studies.plots import Curve, Panel, curves_of, draw_bars, draw_panels
from vfl.studies.runs import StudyResult, StudyRun

GAP_CASES = 1000
GAP_GAMMAS = (0.0, 0.1, 1.0, 10.0)
BASELINES = tuple(name for name in POLICIES if name not in ("SPF", "SP"))


def write_results(planners: Sequence[Planner], runs: Sequence[StudyRun], folder: Path, figures: Sequence[int]) -> int:
    """Draw, tabulate and report the runs that are finished; return how many they are. Raises ConfigError for none.

    With ``figures`` of scheduling come participation and the selections' gaps, which need no training.
    """
    data_set = planners[0].data_set

    def sections(results: list[StudyResult]) -> list[str]:
        written = [
            _figure_3(results, data_set, folder),
            _figure_4(results, data_set, folder),
            _policies(results, data_set, folder),
        ]
        if not set(figures) - {3, 4}:
            return written
        written.append(_schedules(planners, folder))
        return [*written, _figure_8(results, folder), _gaps()] if data_set == "mnist" else written

    return write_page(runs, folder, f"FLARE's figures on {data_set}, scaled down", sections)


def _gaps() -> str:
    about = (
        f"Objective (19a) over the best set's, minus 1, over {GAP_CASES} random cells of 1 to 10 devices with "
        "deadlines of 0.2 to 3 s. The linear program is made for gamma = 0; it selects one device."
    )
    return section("Selection against the best set", None, [about, "", *gap_table(measure_gaps(GAP_CASES, GAP_GAMMAS))])


def _figure_3(results: Sequence[StudyResult], data_set: str, folder: Path) -> str:
    own = _of(results, "fig3")
    if not own:
        return ""
    draw_panels(
        [Panel("training loss, non-i.i.d.", "round", "loss", curves_of(own, "loss/train"))], folder / "fig3.png"
    )
    losses: Values = {}
    for result in own:
        losses.setdefault(result.method, {})[result.seed] = -mean(row["loss/train"] for row in _last(result))
    lines = _not_in_paper(data_set) + [
        f"- {name}: training loss {-mean(values.values()):.3f} over the last tenth of the rounds"
        for name, values in losses.items()
    ]
    lines += ["", *(beats(losses, "FLARE", other, unit="loss", scale=1.0) for other in ("flexible", "fixed"))]
    return section("Figure 3: FLARE, flexible and fixed aggregation", "fig3.png", lines)


def _figure_4(results: Sequence[StudyResult], data_set: str, folder: Path) -> str:
    panels: list[Panel] = []
    lines = _not_in_paper(data_set)
    for split, split_name in SPLITS.items():
        for uniform in (True, False):
            own = _of(results, fig_4_study(split, uniform=uniform))
            if own:
                title = f"{split_name}, {'uniform' if uniform else 'non-uniform'} sampling"
                panels.append(Panel(title, "round", "test accuracy (%)", curves_of(own, scale=100)))
                values = last_accuracies(own)
                lines += [f"**{title}**", "", *accuracy_table(values, {"MaS": MATCHED}), ""]
                lines += [beats(values, name, "FedAvg") for name in ("MaS", "MeS") if name in values] + [""]
    if not panels:
        return ""
    draw_panels(panels, folder / "fig4.png")
    return section("Figure 4: strategies for tau_bar", "fig4.png", lines)


def _not_in_paper(data_set: str) -> list[str]:
    """Return what to say of Figures 3 and 4, which the paper has for MNIST alone."""
    return [] if data_set == "mnist" else ["Not in the paper, which shows MNIST; here in the same setting.", ""]


def _policies(results: Sequence[StudyResult], data_set: str, folder: Path) -> str:
    panels: list[Panel] = []
    lines: list[str] = []
    for split, split_name in SPLITS.items():
        for deadline_s in DATA_SETS[data_set].deadlines_s:
            own = _of(results, policy_study(data_set, split, deadline_s))
            if own:
                title = f"{split_name}, t_thr = {deadline_s:g} s"
                panels.append(
                    Panel(title, "simulated time (s)", "test accuracy (%)", curves_of(own, across=CLOCK, scale=100))
                )
                values = last_accuracies(own)
                lines += [f"**{title}**", "", *accuracy_table(values), "", beats(values, "SPF", "SP")]
                lines += [beats(values, "SP", name) for name in BASELINES] + [""]
    if not panels:
        return ""
    number = 5 if data_set == "mnist" else 6
    draw_panels(panels, folder / f"fig{number}.png")
    return section(f"Figure {number}: policies at equal simulated time", f"fig{number}.png", lines)


def _schedules(planners: Sequence[Planner], folder: Path) -> str:
    per_seed = [planner.schedules() for planner in planners]
    means = {name: tuple(mean(each[name][part] for each in per_seed) for part in (0, 1)) for name in per_seed[0]}
    named = {("SPF / SP" if name == "SP" else name): values for name, values in means.items()}
    quantities = ("devices per round", "local steps per device")
    draw_bars(
        {title: {name: values[part] for name, values in named.items()} for part, title in enumerate(quantities)},
        folder / "fig7.png",
    )
    about = f"t_thr = {FIG_7_DEADLINE_S:g} s. Schedules do not depend on the data's split, nor on what is learned."
    return section("Figure 7: participation", "fig7.png", [about, "", *participation_table(named, quantities)])


def _figure_8(results: Sequence[StudyResult], folder: Path) -> str:
    panels: list[Panel] = []
    tables: list[str] = []
    for split, split_name in SPLITS.items():
        by_deadline = {each: last_accuracies(_of_both(results, split, each)) for each in FIG_8_DEADLINES_S}
        by_deadline = {each: values for each, values in by_deadline.items() if len(values) == 2}
        if by_deadline:
            title = f"{split_name}, accuracy at the end"
            panels.append(Panel(title, "t_thr (s)", "test accuracy (%)", _against_deadline(by_deadline)))
            tables += [f"**{split_name}**", "", *figure_8_table(by_deadline), ""]
    if not panels:
        return ""
    draw_panels(panels, folder / "fig8.png")
    return section("Figure 8: accuracy after the same simulated time, against t_thr", "fig8.png", tables)


def _against_deadline(by_deadline: dict[float, Values]) -> dict[str, list[Curve]]:
    everywhere = [set(values["SP"]) & set(values["SPF"]) for values in by_deadline.values()]
    seeds = sorted(everywhere[0].intersection(*everywhere[1:]))
    return {
        name: [(list(by_deadline), [100 * by_deadline[each][name][seed] for each in by_deadline]) for seed in seeds]
        for name in ("SPF", "SP")
    }


def _of(results: Sequence[StudyResult], study: str) -> list[StudyResult]:
    return [result for result in results if result.study == study]


def _of_both(results: Sequence[StudyResult], split: Split, deadline_s: float) -> list[StudyResult]:
    own = _of(results, policy_study("mnist", split, deadline_s))
    return [result for result in own if result.method in ("SPF", "SP")]


def _last(result: StudyResult) -> Sequence[dict[str, float]]:
    return [row for row in result.evaluated if "loss/train" in row][-max(1, len(result.evaluated) // 10) :]


def accuracy_table(values: Values, controls: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return mean and standard deviation over the seeds, in percent, and points over controls, if there are any."""
    rows = [[name, spread(list(each.values())).text(percent), str(len(each))] for name, each in values.items()]
    if not controls:
        return table(("method", "accuracy", "seeds"), rows)
    compared = [[*row, matched(values, row[0], controls)] for row in rows]
    return table(("method", "accuracy", "seeds", "matched"), compared)


def participation_table(values: Mapping[str, Sequence[float]], quantities: Sequence[str]) -> list[str]:
    """Return devices per round and local steps per device of every policy."""
    return table(("policy", *quantities), [[name, *(f"{each:.1f}" for each in row)] for name, row in values.items()])


def figure_8_table(by_deadline: Mapping[float, Values]) -> list[str]:
    """Return the accuracy of SPF and SP for every deadline."""
    rows = [
        [f"{deadline_s:g}", *(spread(list(values[name].values())).text(percent) for name in ("SPF", "SP"))]
        for deadline_s, values in by_deadline.items()
    ]
    return table(("t_thr (s)", "SPF", "SP"), rows)
