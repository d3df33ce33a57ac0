"""Prune every classification model of torchvision by half: docs/results/pruning/torchvision.csv.

    python -m scripts.lab.torchvision_models [MODEL ...] [--out FILE]
    python -m scripts.lab.torchvision_models --page

The second form examines nothing, and writes what the rows say into README.md beside them.

Each model, with random weights, is examined in a process of its own, one after the other. A row is written as soon
as it is known, and a model that has one is left out: an interrupted study goes on. Images are as small as the model
allows (``SIDES``), which changes the share of attention in the multiply-accumulates a little.

Columns: ``removed_macs`` and ``removed_parameters`` are shares that alpha 0.5 removes, ``whole_macs`` that of layers
of which nothing can go, without those of the output. ``difference`` is the largest one between the outputs of the
pruned model and of its mask form, in double precision, relative to the largest value: below 1e-8 a model is exact,
and 0 where both add the same products in the same order.
``seconds`` of processor and ``peak_mb`` are of the examination before training, ``model_mb`` of the process before it.
"""

import argparse
import copy
import csv
import multiprocessing
import re
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torchvision import models

from vfl.base.macs import count_macs, count_parameters
from vfl.compression.mask_form import differ
from vfl.compression.pruning import StructuredPruner

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "results" / "pruning" / "torchvision.csv"
PAGE = OUT.with_name("README.md")
BLOCK = re.compile(r"(<!-- torchvision -->\n).*?(<!-- end -->)", re.DOTALL)
EXACT, GOAL = 1e-8, 0.3
ALPHA = 0.5
SIDES = {"alexnet": 64, "inception_v3": 96, "maxvit_t": 224, "vit": 224, "vit_h": 224, "swin": 64, "squeezenet": 64}
"""Pixels of an image's side by the beginning of the model's name; 32 for the others."""
COLUMNS = (
    "model",
    "side",
    "parameters",
    "macs",
    "removed_macs",
    "removed_parameters",
    "groups",
    "layers_pruned",
    "layers_whole",
    "whole_macs",
    "difference",
    "seconds",
    "peak_mb",
    "model_mb",
    "failed",
)


def main(arguments: list[str] | None = None) -> int:
    """Examine the models that have no row yet; return the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("models", nargs="*", help="names; all of torchvision's by default")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", action="store_true", help="write what the rows say into the page")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(with_summary(PAGE.read_text()))
        return 0
    names = options.models or models.list_models(module=models)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torchvision", "vfl.compression.pruning"])
    done = {row["model"] for row in read_rows(options.out)}
    for name in (each for each in names if each not in done):
        with context.Pool(1) as pool:  # anew, so that the peak of memory is the model's own
            row = pool.apply(examine, (name,))
        write_rows(options.out, [*read_rows(options.out), row])
        print(*(f"{key}={value}" for key, value in row.items()), flush=True)
    return 0


def with_summary(page: str) -> str:
    """Return the page with what the committed rows say between its marks."""
    return BLOCK.sub(lambda found: f"{found[1]}{summary(read_rows(OUT))}\n{found[2]}", page)


def summary(rows: list[dict[str, Any]]) -> str:
    """Return what the rows say: how many models are exact and lose ``GOAL`` or more, and which do not."""
    tried = {row["model"] for row in rows}
    exact = {row["model"] for row in rows if not row["failed"] and float(row["difference"]) < EXACT}
    lose = {row["model"] for row in rows if row["model"] in exact and float(row["removed_macs"]) >= GOAL}
    shares = sorted(float(row["removed_macs"]) for row in rows if row["model"] in lose)
    every = set(models.list_models(module=models))
    others = ", ".join(sorted(tried - lose)) or "none"
    lines = [
        "| | models |",
        "|---|---|",
        f"| torchvision has | {len(every)} |",
        f"| tried | {len(tried)} |",
        f"| pruned equals masked | {len(exact)} |",
        f"| and {GOAL:.0%} or more of the multiply-accumulates go | {len(lose)} |",
        f"| fewer go, or not exact | {others} |",
        f"| not tried yet | {', '.join(sorted(every - tried)) or 'none'} |",
        f"| share that goes, of those that lose {GOAL:.0%}: least, median, most | "
        f"{shares[0]:.0%}, {shares[len(shares) // 2]:.0%}, {shares[-1]:.0%} |",
    ]
    return "\n".join(lines)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows that are there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table, sorted by the model's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row[key] for key in COLUMNS] for row in sorted(rows, key=lambda row: row["model"]))


def examine(name: str) -> dict[str, Any]:
    """Return the row of a model: shares of what alpha removes, and the difference of the pruned from the mask form."""
    warnings.simplefilter("ignore")  # of weights' initialization
    side = next((side for start, side in SIDES.items() if name.startswith(start)), 32)
    model, image = _model(name), torch.zeros(1, 3, side, side)
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {"model": name, "side": side}
    row |= {"parameters": count_parameters(model), "macs": count_macs(model, image), "model_mb": _peak_mb()}
    started_s = time.process_time()
    try:
        pruner = StructuredPruner(model, image)
    except ValueError as error:
        return row | {"failed": str(error)}
    row |= {"seconds": f"{time.process_time() - started_s:.1f}", "peak_mb": _peak_mb()}
    dense, structure = copy.deepcopy(model), cast(Any, pruner)._structure  # as it was before the pruning
    pruner.prune_to(ALPHA)
    layers = len(pruner.widths())
    row |= {
        "removed_macs": f"{1 - count_macs(model, image) / row['macs']:.3f}",
        "removed_parameters": f"{1 - count_parameters(model) / row['parameters']:.3f}",
        "groups": len(pruner.state_dict()["history"][0]["removed"]),
        "layers_pruned": layers,
        "layers_whole": len(pruner.whole),
        "whole_macs": f"{sum(pruner.whole_macs.values()) / row['macs']:.3f}",
    }
    removed = pruner.state_dict()["history"][0]["removed"]
    difference, scale, live = differ(dense, (image,), structure, removed)
    return row | {"difference": f"{difference / scale:.1e}", "failed": f"other inputs of {live[0]}" if live else ""}


def _model(name: str) -> nn.Module:
    torch.manual_seed(0)
    auxiliary = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return cast(nn.Module, models.get_model(name, weights=None, **auxiliary)).eval()


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    sys.exit(main())
