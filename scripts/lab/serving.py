"""Time a running service of scores: python -m scripts.lab.serving --url URL --keys TABLE --column KEY --out OUT.

Sends requests by hey (Debian's package; github.com/rakyll/hey): one key, back to back on one connection; one at 50
requests a second, evenly; as many, five at the same moment; 64 keys as fast as two connections take them. Writes
OUT/latency.csv, a row per request, and OUT/latency.png, and prints what docs/results/serving states. Keys that a party
did not look up and requests without an answer make it fail: both are quick. The service and its parties are started by
hand, as docs/serve.md says, the parties with network.consent.scored_keys=100000000.
"""

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import urlopen

import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console

from scripts.lab.benchmarks.report import describe_machine
from vfl.console import DONE, OneLineParser, command
from vfl.runs.atomic import write_csv

LOADS = {
    "1 key, back to back": (1, ["-c", "1"]),
    "1 key, 50 requests/s": (1, ["-c", "1", "-q", "50"]),
    "1 key, 50 requests/s, 5 at a moment": (1, ["-c", "5", "-q", "10"]),
    "64 keys, 2 connections": (64, ["-c", "2"]),
}
"""Keys of a request, and hey's options."""
GOALS_MS = {50: 5.0, 99: 12.0}
"""Milliseconds of one key, by percentile."""


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1/predict")
    parser.add_argument("--keys", type=Path, required=True, metavar="TABLE", help="the label owner's served table")
    parser.add_argument("--column", required=True, help="its key")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--out", type=Path, required=True)


def send(url: str, keys: list[str], options: list[str], seconds: int) -> list[tuple[float, float, int]]:
    """Return (offset in seconds, milliseconds, status) of every request."""
    body = ["-m", "POST", "-T", "application/json", "-d", json.dumps({"keys": keys})]
    hey = ["hey", "-z", f"{seconds}s", "-o", "csv", *options, *body, url]
    text = subprocess.run(hey, capture_output=True, text=True, check=True).stdout
    rows = csv.DictReader(io.StringIO(text))
    return [(float(row["offset"]), 1000 * float(row["response-time"]), int(row["status-code"])) for row in rows]


def outcomes(url: str) -> Counter[str]:
    """Return the service's counts of keys by outcome, over all parties."""
    with urlopen(urljoin(url, "/metrics"), timeout=10) as reply:
        text = reply.read().decode()
    counts: Counter[str] = Counter()
    for outcome, count in re.findall(r'^lvfl_keys_total\{outcome="(\w+)".*\} (\S+)$', text, re.MULTILINE):
        counts[outcome] += round(float(count))
    return counts


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Send all loads and write what came back."""
    if shutil.which("hey") is None:
        raise ValueError("hey is missing; apt-get install hey")
    with arguments.keys.open(newline="", encoding="utf-8") as file:
        keys = [row[arguments.column] for row in islice(csv.DictReader(file), 64)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    about = describe_machine()
    console.print(f"{about['cpu']}, {about['cores']} cores")
    rows: list[list[object]] = [["load", "offset_s", "milliseconds"]]
    for name, (count, options) in LOADS.items():
        before = outcomes(arguments.url)
        found = send(arguments.url, keys[:count], options, arguments.seconds)
        if (asked := outcomes(arguments.url) - before).keys() != {"row"}:
            raise ValueError(f"{name}: not all keys were looked up at all parties: {dict(asked)}")
        if wrong := sum(status != 200 for *_, status in found):
            raise ValueError(f"{name}: {wrong} of {len(found)} requests were not answered")
        for offset, taken, _ in found:
            rows.append([name, f"{offset:.4f}", f"{taken:.2f}"])
        times_ms = np.array([taken for _, taken, _ in found])
        shown = ", ".join(f"p{percent} {np.percentile(times_ms, percent):.1f} ms" for percent in (50, 90, 99))
        console.print(f"{name}: {shown}, {count * len(found) / arguments.seconds:.0f} rows/s, {len(found)} requests")
        axes.plot(np.linspace(0, 100, len(times_ms)), np.sort(times_ms), label=name)
    axes.plot(list(GOALS_MS), list(GOALS_MS.values()), "k+", label="goals for one key")
    axes.set(xlabel="percentile of requests", ylabel="milliseconds", yscale="log")
    axes.legend()
    figure.savefig(arguments.out / "latency.png", dpi=150)
    write_csv(arguments.out / "latency.csv", rows)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
