"""Markdown, as all pages of results are written in."""

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column names its rows, the others are numbers."""
    rule = "|---|" + "--:|" * (len(headings) - 1)
    first, *rest = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return [first, rule, *rest]


def section(title: str, image: str | None, lines: Sequence[str]) -> str:
    """Return a section with its plot."""
    plot = [f"![{title}]({image})", ""] if image else []
    return "\n".join([f"## {title}", "", *plot, *lines, ""])
