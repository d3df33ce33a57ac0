"""Headless Chromium, and what it measures of a page. Tests that need it: ``pytest -m browser``, as .ci/run does."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Seen(NamedTuple):
    """What the browser made of a page."""

    dom: str
    console: str
    """Errors and messages of the page's scripts."""


Browse = Callable[..., Seen]


def open_browser(profile: Path) -> Browse:
    """Return what opens a page in a window of some size and, where one is asked for, saves a picture of it."""
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    browser = next((path for path in found if path), None)
    assert browser, "these tests need Chromium: apt-get install chromium"

    def open_page(url: str, width: int, height: int, *, picture: Path | None = None, wait_ms: int = 0) -> Seen:
        action = f"--screenshot={picture}" if picture else "--dump-dom"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
        options += [f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        options += [f"--virtual-time-budget={wait_ms}"] if wait_ms else []
        done = subprocess.run([browser, *options, action, url], capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        console = "\n".join(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
        return Seen(done.stdout, console)

    return open_page


CHECK = """
<script>
const errors = [];
addEventListener('error', event => errors.push(event.message));
const meets = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
const named = element => element.tagName + ' ' + element.textContent.trim().slice(0, 40);
function overlaps(elements) {
  const found = [];
  for (const [index, one] of elements.entries()) for (const other of elements.slice(index + 1)) {
    if (one.contains(other) || other.contains(one)) continue;
    if (meets(one.getBoundingClientRect(), other.getBoundingClientRect()))
      found.push(named(one) + ' / ' + named(other));
  }
  return found;
}
addEventListener('load', () => {
  const blocks = [...document.querySelectorAll('h1, h2, p, li, figcaption, figure svg, .scroll, summary')]
    .filter(block => block.checkVisibility());  // what a closed <details> hides keeps a place of its own
  const pictures = [...document.querySelectorAll('figure svg')];
  const texts = picture => [...picture.querySelectorAll('text')];
  const outside = pictures.flatMap(picture => texts(picture).filter(text => {
    const [inner, outer] = [text.getBoundingClientRect(), picture.getBoundingClientRect()];
    return inner.left < outer.left - 2 || inner.right > outer.right + 2 || inner.bottom > outer.bottom + 2;
  }).map(named));
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    scrolled: document.documentElement.scrollWidth,
    errors,
    pictures: pictures.map(picture => picture.getBoundingClientRect().width),
    lines: pictures.map(picture => picture.querySelectorAll('path').length),
    overlaps: [...overlaps(blocks), ...pictures.flatMap(picture => overlaps(texts(picture)))],
    outside,
    smallest: Math.min(...pictures.flatMap(texts).map(text => text.getBoundingClientRect().height)),
  }), '*');
});
</script>
"""

FRAME = """<!doctype html><body style="margin: 0"><script>
addEventListener('message', event => { document.body.dataset.check = event.data; });
</script><iframe src="%s" style="border: 0; width: %dpx; height: 900px"></iframe></body>"""
"""A window is at least 500 pixels wide, a frame in it as narrow as a phone."""
LOADING_MS = 5000


def check_layout(browse: Browse, page: Path, folder: Path, width: int) -> dict[str, Any]:
    """Return what the browser measures of a report's page in a window of some width."""
    text = page.read_text(encoding="utf-8")
    checked, frame = folder / f"checked-{width}.html", folder / f"frame-{width}.html"
    checked.write_text(text.replace("<head>", f"<head>{CHECK}", 1), encoding="utf-8")
    frame.write_text(FRAME % (checked.as_uri(), width), encoding="utf-8")
    dom = browse(frame.as_uri(), max(width, 600), 1000, wait_ms=LOADING_MS).dom
    found = re.search(r'data-check="([^"]*)"', dom)
    assert found, dom[:2000]
    return json.loads(html.unescape(found[1]))
