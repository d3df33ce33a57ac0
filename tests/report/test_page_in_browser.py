"""Reports and TensorBoard's pages in a browser: nothing overlaps, charts are drawn, no script fails."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from chromium import Browse, check_layout
from fake_algorithm import Fake
from made_runs import vertical_rows
from PIL import Image

from vfl.predict.mode import VERTICAL
from vfl.reports.runs import load_subject
from vfl.reports.write import write_report
from vfl.runs.loop import TrainingLoop
from vfl.runs.tensorboard import TensorBoard, address

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


HEADER = 70
"""Pixels of TensorBoard's own bar."""


class Replayed(Fake):
    """An algorithm whose rounds are given."""

    def __init__(self, rows: list[dict[str, float]]) -> None:
        super().__init__()
        self.rows = rows

    def train_round(self, round_index: int) -> dict[str, float]:
        return {tag: value for tag, value in self.rows[round_index].items() if tag != "round"}

    def evaluate(self) -> dict[str, float]:
        return {}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of TensorBoard over two runs."""
    folder = tmp_path_factory.mktemp("runs")
    for name, alpha in (("light", 0.6), ("dense", 0.0)):
        rows = vertical_rows(alpha, 0.5, 0.9)
        board = TensorBoard(folder / name, "name: made\n", {"alpha": alpha, "beta": 0.5, "seed": 0})
        TrainingLoop(Replayed(rows), len(rows), [board]).run()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", "0", "--load_fast=false"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        address = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        yield address
        process.terminate()


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("tab", ["custom_scalars", "hparams"])
def test_the_page_draws_without_an_error(browse: Browse, page: str, tab: str, width: int, tmp_path: Path):
    picture = tmp_path / "page.png"
    seen = browse(f"{page}?smoothing=0#{tab}&_smoothingWeight=0", width, 1000, picture=picture, wait_ms=20_000)
    assert "Uncaught" not in seen.console, seen.console
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=int)[HEADER:]
    if tab == "custom_scalars" and width > 1000:
        coloured = pixels.max(axis=2) - pixels.min(axis=2) > 60
        assert coloured.sum() > 500  # the lines of the charts
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_the_printed_address_shows_the_last_values_of_the_pinned_charts(browse: Browse, page: str):
    query = urlsplit(address(VERTICAL.front_page))
    seen = browse(f"{page}?{query.query}#{query.fragment}", 1280, 1000, wait_ms=20_000)
    assert "Uncaught" not in seen.console, seen.console
    shown = " ".join(re.sub("<[^>]*>", " ", seen.dom).split())
    assert "Pinned 3 cards" in shown
    for last in ("dense 0 3", "light 0.6 3", "dense 0.9 3"):  # run, value, step
        assert last in shown
