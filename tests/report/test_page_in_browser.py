"""The report in a browser, on a phone and on a desk: nothing overlaps, nothing is cut off, no script fails."""

from pathlib import Path

import pytest
from chromium import Browse, check_layout

from vfl.reports.runs import load_subject
from vfl.reports.write import write_report

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("kind", ["sweep", "one_run", "horizontal_run"])
def test_the_page_fits(browse: Browse, kind: str, width: int, request: pytest.FixtureRequest, tmp_path: Path):
    names = write_report(load_subject(request.getfixturevalue(kind)), tmp_path / "report")
    seen = check_layout(browse, tmp_path / "report" / "report.html", tmp_path, width)
    assert seen["width"] == width
    assert seen["scrolled"] <= width
    assert seen["errors"] == []
    assert len(seen["pictures"]) == sum(name.endswith(".png") for name in names)
    assert min(seen["pictures"]) > 280
    assert min(seen["lines"]) > 5
    assert seen["overlaps"] == []
    assert seen["outside"] == []
    assert seen["smallest"] >= 7, "exponents; other letters are larger"


def test_the_check_sees_an_overlap_and_a_page_too_wide(browse: Browse, one_run: Path, tmp_path: Path):
    write_report(load_subject(one_run), tmp_path / "report")
    page = tmp_path / "report" / "report.html"
    broken = """<style>
      figcaption, figure h2 { margin-bottom: -3rem }
      pre { min-width: 900px; display: block }
      .scroll { overflow: visible }
    </style></head>"""
    text = page.read_text(encoding="utf-8").replace("</head>", broken).replace("<details>", "<details open>")
    page.write_text(text, encoding="utf-8")
    seen = check_layout(browse, page, tmp_path, 360)
    assert seen["overlaps"]
    assert seen["scrolled"] > 360
