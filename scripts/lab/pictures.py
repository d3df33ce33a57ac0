"""Make the pictures of the documents from today's product: python -m scripts.lab.pictures WORK [--docs DOCS].

Trains quickstart_tables and a sweep of its ratios below WORK, writes the sweep's report to DOCS/report.html, and takes
its picture on a desk and on a phone, TensorBoard's after the quickstart, and WORK/hparams.png. Needs Chromium.
Minutes on one core; the same command continues where it was interrupted.
"""

import argparse
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from PIL import Image

from vfl.base.errors import ConfigError
from vfl.console import DONE, OneLineParser, ShowConsole, command

DOCS = Path(__file__).parents[2] / "docs"
SWEEP = """name: sweep_tables
base: quickstart_tables
grid:
  lightweighting.alpha: [0, 0.2, 0.4, 0.6]
  lightweighting.beta: [0, 0.2, 0.4, 0.6]
  seed: [0, 1, 2]
"""
DESK, PHONE, TABLE = (1440, 1000), (390, 1500), (1280, 700)
"""Sizes of windows; 1280 is the width at which HParams must show the metric and both savings."""
NARROWEST = 500
"""Pixels of the narrowest window; a phone is a frame in it."""
BAR = "custom_scalars&_smoothingWeight=0"
UNTICK = b"<script>localStorage.setItem('_ignoreYOutliers', 'false')</script>"
"""Unticks TensorBoard's "Ignore outliers in chart scaling": no address can, a browser keeps it by host and port."""


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("work", type=Path, metavar="WORK", help="folder of the runs")
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DOCS", help="folder of the pictures")


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Train what is shown, and take the pictures."""
    docs, first, second = arguments.docs.resolve(), arguments.work / "one_run", arguments.work / "sweep"
    for folder in (first, second):
        folder.mkdir(parents=True, exist_ok=True)
    (second / "sweep_tables.yaml").write_text(SWEEP, encoding="utf-8")
    if not (first / "runs/quickstart_tables/summary.json").exists():
        _lvfl(first, "train", "quickstart_tables", "--run-dir", "runs/quickstart_tables")
    _lvfl(second, "sweep", "sweep_tables.yaml", "--out", "runs/sweep_tables")
    _lvfl(second, "report", "runs/sweep_tables", "--out", str(docs / "report.html"))
    page = (docs / "report.html").as_uri()
    _picture(page, DESK, docs / "report.png")
    frame = second.resolve() / "phone.html"
    width, height = PHONE
    style = f"border: 0; width: {width}px; height: {height}px"
    frame.write_text(f'<body style="margin: 0"><iframe src="{page}" style="{style}"></iframe>', encoding="utf-8")
    _picture(frame.as_uri(), (NARROWEST, height), docs / "report_phone.png")
    with Image.open(docs / "report_phone.png") as image:
        image.crop((0, 0, width, height)).save(docs / "report_phone.png")
    for folder, tab, size, picture in (
        (first, BAR, (1440, 1490), docs / "tensorboard.png"),
        (second, "hparams", TABLE, arguments.work.resolve() / "hparams.png"),
    ):
        profile = arguments.work.resolve() / "browser"
        with _tensorboard(folder, profile) as address:
            _picture(f"{address}?smoothing=0#{tab}", size, picture, wait_ms=20_000, profile=profile)
        console.print(str(picture))
    return DONE


def _lvfl(folder: Path, *arguments: str) -> None:
    """Run a command in a folder, whose paths the pictures show."""
    subprocess.run([sys.executable, "-m", "vfl", *arguments], check=True, cwd=folder)


def _picture(url: str, size: tuple[int, int], file: Path, wait_ms: int = 3000, profile: Path | None = None) -> None:
    """Save a picture of a page in a window of some size; ``profile`` keeps what pages store."""
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    browser = next((path for path in found if path), None)
    if not browser:
        raise ConfigError("no Chromium was found: apt-get install chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--virtual-time-budget={wait_ms}"]
    options += [f"--window-size={size[0]},{size[1]}", f"--screenshot={file}"]
    options += [f"--user-data-dir={profile}"] if profile else []
    subprocess.run([browser, *options, url], check=True, capture_output=True, timeout=300)


class Untick(BaseHTTPRequestHandler):
    """Answers with a page that unticks the box for its host and port."""

    def do_GET(self) -> None:
        """Send the page."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(UNTICK)


@contextmanager
def _tensorboard(folder: Path, profile: Path) -> Iterator[str]:
    """Serve a folder's runs, outliers shown to the browser's ``profile``, while the block runs; yields the address."""
    with HTTPServer(("localhost", 0), Untick) as page:
        port = page.server_port
        threading.Thread(target=page.serve_forever, daemon=True).start()
        _picture(f"http://localhost:{port}/", PHONE, profile.with_suffix(".png"), profile=profile)
        page.shutdown()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "runs", "--load_fast=false", f"--port={port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder) as process:
        assert process.stdout is not None
        try:
            yield next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
