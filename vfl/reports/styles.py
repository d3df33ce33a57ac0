"""Styles of a report's settings: one has the same colour, marker and dashes in every chart.

In a grid the colour shows the first setting (alpha if it varies), the marker the others. Where the first setting has
its first value, for instance alpha 0, the colour shows the others as well.
"""

from typing import Any

from vfl.reports.runs import ALPHA, Subject, Variant, setting_label
from vfl.runs.diagram_style import COLORS, MARKERS, curve_style

HATCHES = ("", "//", "..", "xx", "--", "||", "++")


def style_of(subject: Subject, variant: Variant, points: int) -> dict[str, Any]:
    """Return the style of a setting's curve of so many points."""
    return _make_style(*_style_index(subject, variant), points)


def point_style(subject: Subject, variant: Variant) -> dict[str, Any]:
    """Return the style of a setting's only point."""
    return _as_point(style_of(subject, variant, 1))


def group_style(subject: Subject, key: str, value: object, points: int) -> dict[str, Any]:
    """Return the style of all variants with a value of a setting."""
    place = subject.values(key).index(value) if key in subject.keys else 0
    if not _is_grid(subject):
        return _make_style(place, place, points)
    return (
        _make_style(place, 0, points)
        if key == _color_key(subject)
        else _make_style(_beside(subject, 0, place), place, points)
    )


def legend_styles(subject: Subject) -> list[tuple[str, dict[str, Any]]]:
    """Return the entries of a legend of all settings' points: of a grid its values, else every setting."""
    if not _is_grid(subject):
        return [(variant.label, point_style(subject, variant)) for variant in subject.variants[: len(COLORS)]]
    first, *other_keys = [_color_key(subject), *(key for key in subject.keys if key != _color_key(subject))]
    listed = [first, *other_keys] if len(other_keys) == 1 else [first]
    return [
        (setting_label(key, value), _as_point(group_style(subject, key, value, 1)))
        for key in listed
        for value in subject.values(key)
    ]


def bar_style(subject: Subject, variant: Variant) -> dict[str, Any]:
    """Return the style of a setting's bars, which are hatched where curves have another marker."""
    color, marker = _style_index(subject, variant)
    return {"color": COLORS[color % len(COLORS)], "hatch": HATCHES[marker % len(HATCHES)] if color != marker else ""}


def _style_index(subject: Subject, variant: Variant) -> tuple[int, int]:
    """Return the places of colour and marker."""
    if not _is_grid(subject):
        place = subject.variants.index(variant)
        return place, place
    first = _color_key(subject)
    other_keys = [key for key in subject.keys if key != first]
    if len(other_keys) == 1:
        second = subject.values(other_keys[0]).index(variant.settings.get(other_keys[0]))
    else:
        combinations = [[each.settings.get(key) for key in other_keys] for each in subject.variants]
        second = combinations.index([variant.settings.get(key) for key in other_keys])
    return _beside(subject, subject.values(first).index(variant.settings.get(first)), second), second


def _beside(subject: Subject, first: int, second: int) -> int:
    """Return the place of a grid's colour: that of the first setting, or the second's after all of the first's."""
    return first or (second and len(subject.values(_color_key(subject))) - 1 + second)


def _is_grid(subject: Subject) -> bool:
    """Return whether colour and marker tell different settings: two vary, or too many variants for the colours."""
    return len(subject.keys) == 2 or (len(subject.keys) > 2 and len(subject.variants) > len(COLORS))


def _color_key(subject: Subject) -> str:
    return ALPHA if ALPHA in subject.keys else subject.keys[0]


def _make_style(color: int, marker: int, points: int) -> dict[str, Any]:
    """Return a style whose dashes differ as well, for print in grey."""
    return curve_style(color + marker, points) | {
        "color": COLORS[color % len(COLORS)],
        "marker": MARKERS[marker % len(MARKERS)],
    }


def _as_point(style: dict[str, Any]) -> dict[str, Any]:
    return style | {"linestyle": "none", "markersize": 7}
