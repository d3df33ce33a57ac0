"""Output of a benchmark: tables for people, JSON with every raw value, and the machine it ran on."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from scripts.lab.benchmarks.paired import Options, Result, as_text
from vfl.runs.atomic import write_atomically
from vfl.sweeps.pool import cores

_SCALES = {"s": ((1e-3, "ms"), (1e-6, "µs")), "bytes": ((1e6, "MB"),)}


def describe_machine() -> dict[str, Any]:
    """Return the processor, its support of bfloat16, the threads in use and the versions."""
    info = _cpu_info()
    flags = info.get("flags", "").split()
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "avx512_bf16": "avx512_bf16" in flags,
        "amx_bf16": "amx_bf16" in flags,
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def show(results: Sequence[Result], console: Console) -> None:
    """Print one table per group: medians of the sides, median ratio and spread, details, requirement."""
    for title, group in groupby(results, key=lambda result: result.group):
        console.print(_table(title, list(group)))


def provenance(command: str) -> dict[str, Any]:
    """Return the command, the time and the machine of a measurement."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return {"command": command, "date": when, "machine": describe_machine()}


def check_output(path: Path | None) -> None:
    """Raise ValueError, before anything is measured, if the file of results cannot be written."""
    if path is not None and not path.absolute().parent.is_dir():
        raise ValueError(f"--json: there is no folder {path.parent}")


def write_json(path: Path, benchmark: str, command: str, options: Options, results: Sequence[Result]) -> None:
    """Write all measurements with their command, time and machine."""
    content = {
        "benchmark": benchmark,
        **provenance(command),
        "options": asdict(options),
        "results": [result.as_json() for result in results],
    }
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def _table(title: str, results: Sequence[Result]) -> Table:
    first = results[0]
    sides, details = list(first.raw), list(first.details)
    scale, unit = _scale(results)
    judged = any(result.requirement for result in results)
    table = Table(title=title, title_justify="left")
    table.add_column("case", no_wrap=True)
    ratio = f"{first.ratio_of[0]} / {first.ratio_of[1]}"
    for heading in (*(f"{side} [{unit}]" for side in sides), ratio):
        table.add_column(_heading(heading), justify="right")
    table.add_column("min - max", justify="right", no_wrap=True)
    for heading in details:
        table.add_column(_heading(heading), justify="right")
    if judged:
        table.add_column("requirement", no_wrap=True)
    for result in results:
        quotients = result.ratios
        table.add_row(
            result.case,
            *(as_text(median(result.raw[side]) / scale) for side in sides),
            f"{median(quotients):.4g}",
            f"{min(quotients):.3g} - {max(quotients):.3g}",
            *(as_text(result.details[name]) for name in details),
            *([str(result.requirement or "")] if judged else []),
        )
    return table


def _scale(results: Sequence[Result]) -> tuple[float, str]:
    """Return the largest unit in which every median is at least 1, else the smallest."""
    scales = _SCALES[results[0].unit]
    smallest = min(median(values) for result in results for values in result.raw.values())
    return next((scale for scale in scales if smallest >= scale[0]), scales[-1])


def _heading(name: str) -> str:
    return name.replace("_", " ").replace("[", r"\[")  # rich reads [..] as markup


def _cpu_info() -> dict[str, str]:
    """Return the first processor's fields as listed by the system (Linux); empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
