"""The plots of the paper's Fig. 2 and 3."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.lab.studies.lvfl.plan import Plan
from scripts.lab.studies.lvfl.prunings import prunings
from scripts.lab.studies.plots import Panel, curves_of, draw_panels
from scripts.lab.studies.runs import StudyResult

TITLES = {
    "2": "Fig. 2: dynamic ratios",
    "3a": "Fig. 3a: one pruning at round {round}",
    "3b": "Fig. 3b: constant β, no pruning",
}
FILES = {"2": "fig2_accuracy.png", "3a": "fig3a.png", "3b": "fig3b.png"}
RATIOS = {"alpha": "α (filters removed)", "beta": "β (entries not sent)"}
RATIO_FILE = "fig2_ratios.png"


def draw_figures(plan: Plan, results: Sequence[StudyResult], folder: Path) -> list[str]:
    """Draw every figure with a finished run; return the names of the files."""
    drawn: list[str] = []
    for figure, methods in plan.curves.items():
        by_label = {label: [each for each in results if each.method == method] for label, method in methods.items()}
        if any(by_label.values()):
            draw_panels([accuracy_panel(figure, by_label)], folder / FILES[figure])
            drawn.append(FILES[figure])
        if figure == "2" and by_label["L"]:
            draw_panels([ratio_panel(by_label["L"][0])], folder / RATIO_FILE)
            drawn.append(RATIO_FILE)
    return drawn


def accuracy_panel(figure: str, by_label: Mapping[str, Sequence[StudyResult]]) -> Panel:
    """Return test accuracy in percent over the rounds, a curve per label, marks where a run was pruned."""
    pruned = sorted({each.round_index for results in by_label.values() for run in results for each in prunings(run)})
    seeds = max(len(results) for results in by_label.values())
    band = f" (mean and range of {seeds} seeds)" if seeds > 1 else " (1 seed)"
    title = TITLES[figure].format(round=", ".join(map(str, pruned))) + band
    curves = {
        label: [curve for own in curves_of(results, scale=100).values() for curve in own]
        for label, results in by_label.items()
        if results
    }
    return Panel(title, "round", "test accuracy (%)", curves, pruned, "pruning")


def ratio_panel(result: StudyResult) -> Panel:
    """Return alpha and beta over the rounds."""
    rounds = range(len(result.rows))
    curves = {symbol: [(rounds, result.mean_over_parties(name))] for name, symbol in RATIOS.items()}
    return Panel("Fig. 2: lightweighting ratios of every party", "round", "ratio (share, 0 to 1)", curves, steps=True)
