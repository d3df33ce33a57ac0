"""Markdown of the pages of results."""

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first column names its rows and whose other columns are numbers."""
    rule = "|---|" + "--:|" * (len(headings) - 1)
    first, *body = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return [first, rule, *body]


def section(title: str, image: str | None, lines: Sequence[str]) -> str:
    """Return a section with its plot."""
    plot = [f"![{title}]({image})", ""] if image else []
    return "\n".join([f"## {title}", "", *plot, *lines, ""])
