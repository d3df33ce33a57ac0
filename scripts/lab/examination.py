"""What it costs to examine a model before it is pruned: docs/results/pruning/examination.csv.

    OMP_NUM_THREADS=1 PYTHONPATH=. python scripts/lab/examination.py WHAT

WHAT is a classification model of torchvision, whose pruner is built for an image of 224 x 224; or ``unpruned`` or
``pruned``: the parties of configs/quickstart.yaml, built for alpha 0 or for the file's. It prints a line of the
table: the size of the model's weights, the process's peak of memory before and after, and seconds of processor.
PYTHONPATH says which checkout is measured: this file needs nothing that commit 2ba7f87b lacks.
"""

import resource
import sys
import time
import warnings
from pathlib import Path

import torch
from torchvision import models

from vfl.compression.pruning import StructuredPruner
from vfl.config import load_config
from vfl.core.local import build_in_process
from vfl.runs.runtime import start_runtime

SIDE = 224


def main(what: str) -> int:
    """Examine, and print the line; return the exit code."""
    warnings.simplefilter("ignore")  # of weights' initialization
    torch.manual_seed(0)
    if what in ("unpruned", "pruned"):
        overrides = ["threads=1", "lightweighting.alpha=0"][: 2 if what == "unpruned" else 1]
        config = load_config(Path("configs/quickstart.yaml"), overrides)
        runtime = start_runtime(config)
        before_mb, started_s = peak_mb(), time.process_time()
        build_in_process(config, runtime)
        model_mb = 0
    else:
        model, image = models.get_model(what, weights=None).eval(), torch.zeros(1, 3, SIDE, SIDE)
        model_mb = sum(each.numel() for each in model.parameters()) * 4 >> 20
        before_mb, started_s = peak_mb(), time.process_time()
        StructuredPruner(model, image)
    print(f"{what},{model_mb or ''},{before_mb},{peak_mb()},{time.process_time() - started_s:.1f}")
    return 0


def peak_mb() -> int:
    """Return the process's largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
