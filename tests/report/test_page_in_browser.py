"""The report in a browser, on a phone and on a desk: nothing overlaps, nothing is cut off, no script fails."""

from pathlib import Path

import numpy as np
import pytest
from chromium import Browse, check_layout
from PIL import Image

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


def test_a_table_that_is_cut_off_shows_that_it_scrolls(browse: Browse, one_run: Path, tmp_path: Path):
    write_report(load_subject(one_run), tmp_path / "report")
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    style, shades = text[text.index("<style>") : text.index("</style>")], dict[int, int]()
    for width in (300, 900):
        table = f'<div class="scroll"><table style="width: {width}px; height: 100px"></table></div>'
        (tmp_path / "table.html").write_text(f"<!doctype html>{style}</style>{table}", encoding="utf-8")
        picture = tmp_path / "table.png"
        browse((tmp_path / "table.html").as_uri(), 600, 300, picture=picture)
        with Image.open(picture) as image:
            grey = np.asarray(image.convert("L"), dtype=int)
        shades[width] = abs(grey[50, 300] - grey[50, -2])
    assert shades[300] == 0
    assert shades[900] > 30
