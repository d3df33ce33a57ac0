"""The figures of a report: a setting looks alike in all of them, and they exist for print."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import vertical_rows, vertical_summary, write_run
from matplotlib.lines import Line2D
from refusals import refuses

from scripts.report import main
from vfl.reports import write
from vfl.reports.figures import draw
from vfl.reports.runs import ALPHA, BETA, load_subject
from vfl.reports.write import write_figures


def styles_by_setting(folders: list[Path]) -> dict[str, set[tuple[str, str, str]]]:
    """Return the colours, markers and charts of every setting."""
    found: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for drawing in draw(load_subject(*folders)):
        for line in drawing.figure.findobj(Line2D):
            label = drawing.hover.get(str(line.get_gid()))
            if label is not None:
                found[label.partition(":")[0]].add((str(line.get_color()), str(line.get_marker()), drawing.name))
    return found


def test_a_setting_has_one_colour_and_marker_in_all_charts_of_a_grid(made_sweep: Path):
    found = styles_by_setting([made_sweep])
    assert len(found) == 9
    assert {label for label, styles in found.items() if len({style[:2] for style in styles}) > 1} == set()
    assert len({style[:2] for styles in found.values() for style in styles}) == 9
    charts = {name for _, _, name in found["α 0, β 0"]}
    assert {"methods", "accuracy_alpha", "accuracy_beta", "bytes", "macs"} <= charts


def test_a_few_runs_of_any_settings_differ_in_colour_and_marker(tmp_path: Path):
    folders: list[Path] = []
    for name, alpha in (("none", 0.0), ("some", 0.2), ("many", 0.4)):
        rows, summary = vertical_rows(alpha, 0, 0.9), vertical_summary(alpha, 0, 0.9)
        folders.append(write_run(tmp_path / name, {"name": name}, rows, summary))
    found = styles_by_setting(folders)
    assert len(found) == 3
    styles = [{style[:2] for style in each} for each in found.values()]
    assert [len(each) for each in styles] == [1, 1, 1]
    assert len(set.union(*styles)) == 3


@pytest.mark.release
def test_figures_are_written_for_print(one_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "figures"
    monkeypatch.setattr(
        "sys.argv", ["report", str(one_run), "--out", str(tmp_path / "report"), "--figures", str(folder)]
    )
    assert main() == 0
    drawn = {path.stem for path in (tmp_path / "report").glob("*.png")}
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{ending}" for name in drawn for ending in ("pdf", "svg")
    }
    assert all(path.read_bytes().startswith(b"%PDF") for path in folder.glob("*.pdf"))
    assert all("<svg" in path.read_text(encoding="utf-8") for path in folder.glob("*.svg"))
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    write_figures(load_subject(one_run), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_a_folder_of_figures_that_cannot_be_written_is_named(
    one_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(write, "draw", lambda subject: draw(subject)[:1])
    refuses("--figures", lambda: write_figures(load_subject(one_run), tmp_path / "file"), "written")


def test_no_chart_of_a_setting_has_a_single_line(made_sweep: Path):
    """Of a list of settings, not a grid, there may be no two runs that differ in one of them alone."""
    both = load_subject(made_sweep)
    pairs = zip(both.values(ALPHA), both.values(BETA), strict=True)
    apart = [both.find({ALPHA: alpha, BETA: beta}) for alpha, beta in pairs]
    listed = replace(both, variants=tuple(each for each in apart if each is not None))
    assert len(listed.variants) == 3
    curves = [each for each in draw(listed) if each.figure.axes[0].get_xlabel() == "Round"]
    assert curves
    for drawing in curves:
        assert len(drawing.figure.axes[0].lines) > 1, drawing.title
