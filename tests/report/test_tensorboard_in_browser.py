"""TensorBoard's pages of runs in a browser: charts are drawn and no script fails."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from chromium import Browse
from made_runs import vertical_rows
from PIL import Image

from vfl.predict.mode import VERTICAL
from vfl.runs.loop import TrainingLoop
from vfl.runs.tensorboard import TensorBoard, address

pytestmark = pytest.mark.browser
HEADER = 70
"""Pixels of TensorBoard's own bar."""


class Replayed:
    """An algorithm whose rounds are given."""

    def __init__(self, rows: list[dict[str, float]]) -> None:
        self.rows = rows

    def train_round(self, round_index: int) -> dict[str, float]:
        return {tag: value for tag, value in self.rows[round_index].items() if tag != "round"}

    metric = "accuracy"
    rounds_ahead = 0

    def evaluate(self) -> dict[str, float]:
        return {}

    def summary(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, dict[str, float]]:
        return {}

    def load_state_dict(self, state: object) -> None:
        pass

    def close(self) -> None:
        pass


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
