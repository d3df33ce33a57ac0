"""Writes a report: ``report.html`` (one file that loads no other), ``report.md`` and a PNG per figure."""

import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from vfl.config import ConfigError, dotted_settings, dump_config
from vfl.reports.apart import meeting_lines
from vfl.reports.figures import Drawing, draw
from vfl.reports.outcomes import outcome_drawings
from vfl.reports.runs import ReportedRun, Subject
from vfl.reports.tables import TableData, advice, party_tables, tables
from vfl.runs.atomic import write_atomically, write_output
from vfl.runs.diagram_style import for_print, inline_svg, png
from vfl.sweeps.sweep_view import names

PAGE = "report.html"
TEXT = "report.md"


def write_report(subject: Subject, folder: Path) -> list[str]:
    """Write all files of a report into a folder and return their names. Raises ConfigError if that fails."""
    drawings = [*draw(subject), *outcome_drawings(subject)]
    open_tables = tables(subject)
    parties = party_tables(subject)
    contents: dict[str, str | bytes] = {f"{drawing.name}.png": png(drawing.figure) for drawing in drawings}
    contents[TEXT] = markdown(subject, drawings, [*open_tables, *parties])
    contents[PAGE] = page(subject, drawings, open_tables, parties)
    _write_all(folder, contents, "--out")
    return list(contents)


def _write_all(folder: Path, contents: Mapping[str, str | bytes], option: str) -> None:
    """Write files, and remove the pictures of an earlier report on other runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if TEXT in contents:
            for name in _find_pictures(folder / TEXT) - contents.keys():
                (folder / name).unlink(missing_ok=True)
        for name, content in contents.items():
            write_atomically(folder / name, content)
    except OSError as error:
        raise ConfigError(f"{option}: {folder} cannot be written ({error.strerror})") from None


def write_figures(subject: Subject, folder: Path) -> list[str]:
    """Write every figure as PDF and SVG into a folder and return the files' names. Raises ConfigError if that fails."""
    contents = {
        f"{drawing.name}.{ending}": content
        for drawing in [*draw(subject), *outcome_drawings(subject)]
        for ending, content in for_print(drawing.figure).items()
    }
    _write_all(folder, contents, "--figures")
    return list(contents)


def write_page(subject: Subject, file: Path) -> None:
    """Write only the page. Raises ConfigError if that fails."""
    content = page(subject, [*draw(subject), *outcome_drawings(subject)], tables(subject), party_tables(subject))
    try:
        write_output(file, content)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error.strerror})") from None


def page(subject: Subject, drawings: list[Drawing], open_tables: list[TableData], party_tables: list[TableData]) -> str:
    """Return the page as one HTML text."""
    template = files("vfl.reports").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    run = subject.reference.runs[0]
    return environment.from_string(template).render(
        subject=subject,
        about=about(subject),
        first=first(subject),
        missing=names(subject.missing),
        drawings=[
            (drawing, inline_svg(drawing.figure, drawing.name, escape(drawing.title, quote=True), drawing.hover))
            for drawing in drawings
        ],
        open_tables=open_tables,
        party_tables=party_tables,
        config_title=f"of {run.name}",
        config=dump_config(run.config),
    )


def markdown(subject: Subject, drawings: list[Drawing], all_tables: list[TableData]) -> str:
    """Return the report as Markdown, with links to PNGs beside it."""
    lines = [f"# {subject.name}", ""]
    lines += [f"**{each}**\n" for each in first(subject)]
    lines += [about(subject), ""]
    if subject.missing:
        lines += [f"Unfinished and left out: {names(subject.missing)}.", ""]
    for drawing in drawings:
        lines += [f"![{drawing.title}]({drawing.name}.png)", "", f"{drawing.title}. {drawing.caption}".strip(), ""]
    # Names are the user's and their owners': Markdown would take HTML in them for its own.
    return escape("\n".join([*lines, *(table.markdown() for table in all_tables)]), quote=False)


def _find_pictures(text: Path) -> set[str]:
    """Return the file names of a report's pictures."""
    page = text.read_text(encoding="utf-8", errors="replace") if text.exists() else ""
    return set(re.findall(r"^!\[.*\]\(([\w-]+\.png)\)$", page, flags=re.MULTILINE))


def first(subject: Subject) -> list[str]:
    """Return a report's first sentences: what the other owners add, by ``lvfl compare``, and the advice, if known."""
    comparisons = [run.summary.get("comparison", {}).get("text", "") for run in subject.runs]
    return [each for each in (*dict.fromkeys(comparisons), *meeting_lines(subject), advice(subject)) if each]


def about(subject: Subject) -> str:
    """Return a sentence about the trained models for each mode and kind of data."""
    alike: dict[tuple[str, str], list[ReportedRun]] = {}
    for run in sorted(subject.runs, key=lambda run: run not in subject.reference.runs):  # told of the reference's
        alike.setdefault((run.config.mode, run.config.data.dataset.kind), []).append(run)
    return " ".join(map(_about, alike.values()))


def _about(runs: list[ReportedRun]) -> str:
    run, config = runs[0], runs[0].config
    rounds = " to ".join(map(str, sorted({f(each.summary["rounds"] for each in runs) for f in (min, max)})))
    many = "runs" if len(runs) > 1 else "run"
    settings = dotted_settings(config)
    owners = f"{settings['horizontal.clients']} clients" if run.simulated else f"{len(run.summary['parties'])} parties"
    model = settings["models.classifier.kind" if run.simulated else "models.feature.kind"]
    scale = settings.get("models.feature.width", 1)
    width = "" if scale == 1 else f" of width {scale:g}"
    samples = "all" if config.data.train_samples is None else str(config.data.train_samples)
    return (
        f"{config.mode.capitalize()} learning, {len(runs)} {many} of {rounds} rounds on "
        f"{config.data.dataset.kind} ({samples} training samples), {owners}, {model}{width}, "
        f"batch {config.training.batch_size}, on {config.device}."
    )
