"""The results page of FLARE's figures: plots, tables, numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from scripts.lab.studies.comparison import READING, accuracy_panel, of_study, told_of
from scripts.lab.studies.flare.gap import gap_table, measure_gaps
from scripts.lab.studies.flare.studies import (
    FIG_7_DEADLINE_S,
    FIG_8_DEADLINES_S,
    SPLITS,
    figures,
    policy_study,
    schedules,
)
from scripts.lab.studies.page import Values, beats, by_method_and_seed, last_accuracies, percent, spread, write_page
from scripts.lab.studies.plots import Curve, Panel, curves_of, draw_bars, draw_panels
from scripts.lab.studies.runs import StudyResult, StudyRun
from scripts.lab.studies.study import Settings, Study
from vfl.reports.markdown import section, table
from vfl.runs.atomic import write_csv
from vfl.runs.results import CLOCK

GAP_CASES = 1000
GAP_GAMMAS = (0.0, 0.1, 1.0, 10.0)


def write_results(
    data_set: str,
    seeds: Sequence[int],
    further: Settings,
    runs: Sequence[StudyRun],
    folder: Path,
    numbers: Sequence[int],
) -> int:
    """Draw, tabulate and report the finished runs; return their number. Raises ConfigError for none.

    If ``numbers`` contain figures of scheduling, participation by ``seeds`` and ``further`` settings and the
    selections' gaps are added; neither needs training.
    """
    studies = figures(data_set)

    def sections(results: list[StudyResult]) -> list[str]:
        strategies = _figure("Figure 4: strategies for tau_bar", "fig4.png", studies[4], results, folder)
        paper = [f"*Figures 3 and 4 are not in the paper, which shows MNIST; here {data_set} in the same setting.*\n"]
        written = [READING, *(paper if data_set != "mnist" else []), _figure_3(results, studies[3], folder), strategies]
        if not set(numbers) - {3, 4}:
            return written
        number = 5 if data_set == "mnist" else 6
        title = f"Figure {number}: policies at equal simulated time"
        written.append(_figure(title, f"fig{number}.png", studies[number], results, folder, CLOCK))
        written.append(_figure_7({seed: schedules(data_set, seed, further) for seed in seeds}, folder))
        return [*written, _figure_8(results, folder), _gaps()] if data_set == "mnist" else written

    return write_page(runs, folder, f"FLARE's figures on {data_set}, scaled down", sections)


def _gaps() -> str:
    about = (
        f"Objective (19a) over the best set's, minus 1, over {GAP_CASES} random cells of 1 to 10 devices with "
        "deadlines of 0.2 to 3 s. The linear program is made for gamma = 0; it selects one device."
    )
    return section("Selection against the best set", None, [about, "", *gap_table(measure_gaps(GAP_CASES, GAP_GAMMAS))])


def _figure_3(results: Sequence[StudyResult], studies: Mapping[str, Study], folder: Path) -> str:
    study, own = studies["fig3"], of_study(results, "fig3")
    if not own:
        return ""
    draw_panels([Panel(study.title, "round", "loss", curves_of(own, "loss/train"))], folder / "fig3.png")
    losses = by_method_and_seed(own, lambda run: -_last_loss(run))  # negative: of ``Values`` the larger is the better
    lines = [
        f"- {name}: training loss {-mean(values.values()):.3f} over the last tenth of the rounds"
        for name, values in losses.items()
    ]
    lines += ["", *(beats(losses, *pair, unit="loss", scale=1.0) for pair in study.orderings)]
    return section("Figure 3: FLARE, flexible and fixed aggregation", "fig3.png", lines)


def _figure(
    title: str,
    image: str,
    studies: Mapping[str, Study],
    results: Sequence[StudyResult],
    folder: Path,
    across: str = "round",
) -> str:
    """Draw a panel of every study that has results, and describe each."""
    by_study = [(study, of_study(results, name)) for name, study in studies.items()]
    finished = [(study, own) for study, own in by_study if own]
    if not finished:
        return ""
    draw_panels([accuracy_panel(study.title, own, across) for study, own in finished], folder / image)
    lines = [line for study, own in finished for line in (f"**{study.title}**", "", *told_of(study, own), "")]
    return section(title, image, lines)


def _figure_7(by_seed: Mapping[int, Mapping[str, tuple[float, float]]], folder: Path) -> str:
    rows: list[list[object]] = [
        [policy, seed, *(f"{each:.4f}" for each in values)]
        for seed, found in by_seed.items()
        for policy, values in found.items()
    ]
    write_csv(folder / "fig7.csv", [["policy", "seed", "devices", "local_steps"], *rows])
    per_seed = list(by_seed.values())
    means = {name: tuple(mean(each[name][part] for each in per_seed) for part in (0, 1)) for name in per_seed[0]}
    named = {("SPF / SP" if name == "SP" else name): values for name, values in means.items()}
    quantities = ("devices per round", "local steps per device")
    draw_bars(
        {title: {name: values[part] for name, values in named.items()} for part, title in enumerate(quantities)},
        folder / "fig7.png",
    )
    about = f"t_thr = {FIG_7_DEADLINE_S:g} s. Schedules do not depend on the data's split, nor on what is learned."
    shown = [[name, *(f"{each:.1f}" for each in values)] for name, values in named.items()]
    return section("Figure 7: participation", "fig7.png", [about, "", *table(("policy", *quantities), shown)])


def _figure_8(results: Sequence[StudyResult], folder: Path) -> str:
    panels: list[Panel] = []
    tables: list[str] = []
    for split, split_name in SPLITS.items():
        both = [each for each in results if each.method in ("SPF", "SP")]
        own = {s: last_accuracies(of_study(both, policy_study("mnist", split, s))) for s in FIG_8_DEADLINES_S}
        by_deadline = {each: values for each, values in own.items() if len(values) == 2}
        if by_deadline:
            title = f"{split_name}, accuracy at the end"
            panels.append(Panel(title, "t_thr (s)", "test accuracy (%)", _against_deadline(by_deadline)))
            rows = [
                [f"{deadline_s:g}", *(spread(list(values[name].values()), percent) for name in ("SPF", "SP"))]
                for deadline_s, values in by_deadline.items()
            ]
            tables += [f"**{split_name}**", "", *table(("t_thr (s)", "SPF", "SP"), rows), ""]
    if not panels:
        return ""
    draw_panels(panels, folder / "fig8.png")
    return section("Figure 8: accuracy after the same simulated time, against t_thr", "fig8.png", tables)


def _against_deadline(by_deadline: dict[float, Values]) -> dict[str, list[Curve]]:
    """Return accuracies in percent over the deadlines, a curve for every seed that has a run for each of them."""
    everywhere = [set(values["SP"]) & set(values["SPF"]) for values in by_deadline.values()]
    seeds = sorted(everywhere[0].intersection(*everywhere[1:]))
    return {
        name: [(list(by_deadline), [100 * by_deadline[each][name][seed] for each in by_deadline]) for seed in seeds]
        for name in ("SPF", "SP")
    }


def _last_loss(result: StudyResult) -> float:
    """Return the mean training loss of the evaluated rounds in the last tenth, as far as they have one."""
    losses = [row["loss/train"] for row in result.evaluated if "loss/train" in row]
    return mean(losses[-max(1, len(result.evaluated) // 10) :])
