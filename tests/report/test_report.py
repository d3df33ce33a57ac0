"""The report's files: every number where it belongs, one page that needs nothing else."""

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_runs import vertical_rows, vertical_summary, write_run
from PIL import Image
from shorthand import at_every_run, release
from tiny_training import Ended

from vfl.reports.figures import draw
from vfl.reports.runs import Subject, Variant, load_subject, setting_label
from vfl.reports.tables import choice_table, errors_table, party_tables, settings_table, tables, time_table
from vfl.reports.write import about, markdown, write_report

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Reads a page: whether its elements are closed, its ids, what it would load, its figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action") and not (value or "").startswith(
                ("#", "data:image/png;base64,")
            ):
                self.loaded.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


DRAWN = {
    "sweep": {"methods", "accuracy_alpha", "accuracy_beta", "bytes", "macs", "grid", "omega", "psi"},
    "one_run": {"accuracy", "ratios", "bytes", "macs", "errors"},
    "horizontal_run": {"accuracy", "bytes", "macs", "time"},
}


@pytest.mark.parametrize("kind", at_every_run(DRAWN, "sweep"))
def test_the_page_is_whole_and_needs_nothing_else(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    if kind == "sweep":
        report: Path = request.getfixturevalue("report_of_sweep")
        names = sorted(path.name for path in report.iterdir())
    else:
        report = tmp_path / "report"
        names = write_report(load_subject(request.getfixturevalue(kind)), report)
    text = (report / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.loaded == []
    assert "script" not in page.tags
    assert "url(http" not in text
    assert "@import" not in text
    assert len(page.ids) == len(set(page.ids))
    references = set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', text))
    assert references <= set(page.ids)
    pictures = [name for name in names if name.endswith(".png")]
    assert {name.removesuffix(".png") for name in pictures} == DRAWN[kind]
    assert page.tags.count("svg") == page.tags.count("figure") == len(pictures) >= 3
    for name in pictures:
        with Image.open(report / name) as image:
            assert min(image.size) > 400
    markdown = (report / "report.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\((.+?)\)", markdown)) == sorted(pictures)


def test_what_is_said_of_a_sweep(report_of_sweep: Path):
    text = (report_of_sweep / "report.html").read_text(encoding="utf-8")
    assert "Unfinished and left out: alpha0.9-seed0." in text
    assert "On the front (circled), cheapest first:" in text


def test_the_colours_follow_the_readers_setting_and_no_figure_has_its_own(report_of_sweep: Path):
    text = (report_of_sweep / "report.html").read_text(encoding="utf-8")
    figures = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)).lower()
    assert "var(--ink)" in figures
    assert "var(--series-2)" in figures
    for color in ("#111111", "#d55e00", "#0072b2", "#dddddd"):
        assert color not in figures
    dark = text[text.index("prefers-color-scheme: dark") :]
    declared = set(re.findall(r"(--[\w-]+):", text[: text.index("prefers-color-scheme: dark")]))
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= declared
    assert all(f"{name}:" in dark for name in declared)


def text_of(folder: Path) -> str:
    """Return what ``report.md`` says, without the figures."""
    subject = load_subject(folder)
    return markdown(subject, [], [*tables(subject), *party_tables(subject)])


def test_no_name_of_a_run_is_html_in_the_text(sweep: Path):
    text = text_of(sweep.rename(sweep.with_name("<img src=x onerror=alert(1)>")))
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_the_tables_have_the_numbers_of_the_runs(sweep: Path):
    subject = load_subject(sweep)
    rows = {row[0]: row[1:] for row in settings_table(subject).rows}
    assert rows["α 0, β 0"][:3] == ("2", "90.50 (90.00 to 91.00)", "")
    # Half of the uplink's 0.4 is saved of both ways; a fifth of the multiply-accumulates; 2 + 0.8 points are lost.
    assert rows["α 0.2, β 0.4"] == ("2", "87.70 (87.20 to 88.20)", "-2.80", "2.56 kB", "20.0", "6.4 k", "20.0", "")
    assert rows["α 0, β 0.8"][-1] == "bytes"
    errors = {row[0]: row[1:] for row in errors_table(subject).rows}
    assert errors["α 0.2, β 0.4"] == ("0.16", "0.2", "3.2", "6.4")
    times = {row[0]: row[1:] for row in time_table(subject).rows}
    assert times["α 0, β 0"] == ("4", "3.2 kB", "8 k", "2.0 s")
    rows = choice_table(subject).rows
    assert ("α 0, β 0.8", "88.90", "40.0", "0.0") in [row[:4] for row in rows]
    assert len({row[0] for row in rows}) == len(rows), "no choice is repeated"


def test_clients_are_summed_up_where_they_are_many(horizontal_run: Path):
    text = text_of(horizontal_run)
    assert "| smallest | 1 | 10 B | 12 B | 200 | 1.0 s |" in text
    assert "| largest | 20 |" in text
    assert "20 clients took part" in text
    assert "| made | 4 | 440 B | 4 k | 8.0 s |" in text  # to 72 %: nine tenths of 80 %


def test_a_folder_without_runs_is_one_line(call: Callable[..., Ended], tmp_path: Path, sweep: Path):
    (tmp_path / "empty").mkdir()
    for path in sweep.glob("runs/*/summary.json"):
        path.unlink()
    for folder, expected in ((tmp_path / "empty", "holds no finished run"), (sweep, "no run of the sweep is finished")):
        assert expected in call("report", folder).error
        assert not (folder / "report").exists()


def test_a_run_alone_is_compared_with_nothing(one_run: Path, horizontal_run: Path):
    vertical, horizontal = (settings_table(load_subject(run)) for run in (one_run, horizontal_run))
    assert [name for name in vertical.headings if name not in horizontal.headings] == ["saved (%)"] * 2
    assert "without lightweighting" in vertical.caption
    assert not {"change (points)", "on the front of"} & {*vertical.headings}
    assert "its change" not in vertical.caption
    assert "without lightweighting" not in horizontal.caption


def test_the_page_alone_is_written_where_the_name_says_html(call: Callable[..., Ended], one_run: Path):
    page = one_run.with_name("page.html")
    assert call("report", one_run, "--out", page)[::2] == (0, "")
    assert Page(page.read_text(encoding="utf-8")).loaded == []
    assert not (one_run / "report").exists()


def test_a_damaged_run_is_one_line(call: Callable[..., Ended], one_run: Path):
    (one_run / "summary.json").write_text('{"rounds": 4, ')
    assert "cannot be read" in call("report", one_run).error


def test_what_is_lost_without_a_party_is_drawn_and_listed(one_run: Path):
    summary = json.loads((one_run / "summary.json").read_text())
    reached = {"a+b": 0.9, "a": 0.8, "b": 0.3}
    summary["subsets"] = {parties: {"accuracy": value} for parties, value in reached.items()}
    (one_run / "summary.json").write_text(json.dumps(summary))
    subject = load_subject(one_run)
    (drawing,) = [each for each in draw(subject) if each.name == "subsets"]
    heights = [bar.get_height() for bar in drawing.figure.axes[0].containers[0]]
    assert heights == pytest.approx([60.0, 10.0])
    (table,) = [each for each in tables(subject) if each.title == "Sets of parties"]
    assert table.rows == [("a, b", "90.00%"), ("a", "80.00%"), ("b", "30.00%")]


def test_runs_of_other_parties_stand_side_by_side(tmp_path: Path):
    rows, summary = vertical_rows(0.0, 0.0, 0.8), vertical_summary(0.0, 0.0, 0.8)
    for folder, (first, second) in {"left": "ab", "right": "bc"}.items():
        sets = {f"{first}+{second}": {"accuracy": 0.9}, first: {"accuracy": 0.8}, second: {"accuracy": 0.3}}
        alpha = {f"party_{number}": {step: step / 10 for step in range(1 + len(folder))} for number in range(1, 4)}
        settings = {"lightweighting": {"alpha": alpha}}
        write_run(tmp_path / folder, settings, rows, summary | {"subsets": sets})
    subject = load_subject(tmp_path / "left", tmp_path / "right")
    assert [each.label for each in subject.variants] == ["left", "right"]  # not their long settings
    (table,) = [each for each in tables(subject) if each.title == "Sets of parties"]
    assert table.headings == ("parties", "left", "right")
    assert table.rows[:3] == [("a, b", "90.00%", ""), ("a", "80.00%", ""), ("b", "30.00%", "80.00%")]
    (drawing,) = [each for each in draw(subject) if each.name == "subsets"]
    (axes,) = drawing.figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b", "c"]
    places = [[round(bar.get_x() + bar.get_width() / 2, 6) for bar in bars] for bars in axes.containers]
    assert places == [[0.0, 1.0], [1.4, 2.4]]


def test_rounds_of_a_finished_run_that_goes_on_are_not_yet_counted(one_run: Path):
    before = load_subject(one_run).runs[0]
    with (one_run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**before.rows[-1], "round": len(before.rows)}) + "\n")
    assert load_subject(one_run).runs[0].rows == before.rows


def test_runs_of_any_kinds_are_compared_by_name(one_run: Path, horizontal_run: Path, tmp_path: Path):
    names = write_report(load_subject(one_run, horizontal_run), tmp_path / "report")
    drawn = {name for name in names if name.endswith(".png")}
    assert {"accuracy_run.png", "bytes.png", "macs.png", "bytes_by_round.png", "macs_by_round.png"} <= drawn
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (one|horizontal) \| 1 \|", text, flags=re.MULTILINE) == ["one", "horizontal"]
    assert "Vertical learning, 1 run of 4 rounds on digits (all training samples), 4 parties, vgg16" in text
    assert "Horizontal learning, 1 run of 4 rounds on digits (all training samples), 20 clients, mlp" in text


def test_folders_of_one_name_are_no_seeds_of_one_setting(one_run: Path, horizontal_run: Path, tmp_path: Path):
    places = [tmp_path / owner / "run" for owner in ("bank", "insurer")]
    for each, place in zip((one_run, horizontal_run), places, strict=True):
        shutil.copytree(each, place)
    subject = load_subject(*places, one_run)
    assert [(each.label, len(each.runs)) for each in subject.variants] == [
        ("bank/run", 1),
        ("insurer/run", 1),
        (one_run.name, 1),
    ]
    assert subject.name == f"bank/run, insurer/run, {one_run.name}"


def test_the_curve_of_multiply_accumulates_ends_at_their_sum(tmp_path: Path):
    """Rounds of dropped parties cost less without lightweighting too, and a later pruning has its refit."""
    rows = vertical_rows(0.5, 0.0, 0.9)
    for row, saved in zip(rows, (0.5, 0.4, 0.3, 0.25), strict=True):
        row |= {"savings/compute": saved, "round_savings/compute": 0.5}
    run = write_run(tmp_path / "run", {}, rows, vertical_summary(0.25, 0.0, 0.9))
    (found,) = load_subject(run).runs
    assert found.macs_by_round() == pytest.approx([1000, 2400, 4200, 6000])
    assert found.macs_by_round()[-1] == found.macs


@pytest.mark.filterwarnings("ignore:.*have no row")  # made without them
def test_runs_on_different_data_are_told_apart_and_none_is_advised(sweep: Path, tmp_path: Path):
    other = {"data": {"dataset": {"kind": "mnist"}}}
    summary = vertical_summary(0.6, 0.8, 0.99) | {"rounds": 7}
    subject = load_subject(sweep, write_run(tmp_path / "other", other, vertical_rows(0.6, 0.8, 0.99), summary))
    assert "18 runs of 4 rounds on digits" in about(subject)
    assert "1 run of 7 rounds on mnist" in about(subject)
    assert "What to choose" not in {each.title for each in tables(subject)}
    assert "What to choose" in {each.title for each in tables(load_subject(sweep))}


def test_a_sweep_and_a_run_are_compared_run_by_run(sweep: Path, one_run: Path):
    subject = load_subject(sweep, one_run)
    assert subject.keys == ["lightweighting.alpha", "lightweighting.beta"]  # few settings differ: they tell runs apart
    assert len(subject.runs) == 19


def test_runs_of_no_common_first_values_are_drawn_beside_the_first(one_run: Path):
    run = load_subject(one_run).runs[0]
    settings = ({"a": 1, "b": 2, "c": 2}, {"a": 2, "b": 1, "c": 1}, {"a": 1, "b": 3, "c": 2})
    variants = tuple(Variant(str(place), each, (run,)) for place, each in enumerate(settings))
    subject = Subject("listed", one_run, variants, ())
    assert subject.reference is variants[0]
    assert subject.find({"b": 3}) is variants[2]
    curves = {each.name: len(each.figure.axes[0].lines) for each in draw(subject) if each.name.startswith("accuracy")}
    assert curves == {"accuracy_b": 2}, "and a chart of one line shows nothing"


def test_what_horizontal_settings_reach_over_their_time_and_bytes(horizontal_run: Path, tmp_path: Path):
    run = load_subject(horizontal_run).runs[0]
    settings = ({"horizontal.algorithm": name} for name in ("fedavg", "a_rather_long_name_of_an_algorithm"))
    variants = tuple(Variant(setting_label(*next(iter(each.items()))), each, (run,)) for each in settings)
    subject = Subject("methods", horizontal_run, variants, ())
    drawings = {drawing.name: drawing for drawing in draw(subject)}
    assert {"time_by_round", "bytes_by_round"} <= drawings.keys()
    lines = drawings["time_by_round"].figure.axes[0].lines
    assert [list(line.get_xydata().flat) for line in lines] == [[4.0, 40.0, 8.0, 80.0]] * 2  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]


@pytest.mark.parametrize("letters", [release(3), 25, release(60)])
def test_legends_fit_the_figure(horizontal_run: Path, letters: int):
    run = load_subject(horizontal_run).runs[0]
    labels = [f"{number}".ljust(letters, "m") for number in range(7)]
    variants = tuple(Variant(label, {"x": label}, (run,)) for label in labels)
    for drawing in draw(Subject("s", horizontal_run, variants, ())):
        figure = drawing.figure
        figure.draw_without_rendering()
        (legend,) = figure.legends
        frame = legend.get_window_extent()
        if letters < 60:
            assert figure.bbox.x0 <= frame.x0
            assert frame.x1 <= figure.bbox.x1
        assert figure.axes[0].get_window_extent().height > 150


def test_a_point_and_a_curve_tell_their_setting_where_the_pointer_rests(report_of_sweep: Path):
    text = (report_of_sweep / "report.html").read_text(encoding="utf-8")
    assert "<title>α 0.2, β 0.4: 87.7, 2.56 kB</title>" in text
    assert text.count("<title>α ") >= 18 + 10  # a point per setting and cost, and the curves


@pytest.mark.release
def test_pictures_of_an_earlier_report_go_and_others_stay(sweep: Path, one_run: Path, tmp_path: Path):
    write_report(load_subject(sweep), tmp_path / "report")
    (tmp_path / "report" / "mine.png").touch()
    names = write_report(load_subject(one_run), tmp_path / "report")
    assert {path.name for path in (tmp_path / "report").iterdir()} == {*names, "mine.png"}
