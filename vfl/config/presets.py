"""Settings for tables that need no search: Python's estimators begin with them.

Chosen on one set of validation days of the flights and on seeds of scikit-learn's small tables that report nothing
(docs/results/tables/README.md#encoded-numbers).
"""

import math
from typing import Any

PASSES = 4
"""Over the training rows at least, of ten rounds."""
STEPS = 1000
"""Exchanges at least, of ten rounds: small tables need more passes."""
LARGEST_BATCH = 1024
SMALLEST_BATCH = 16
BATCHES = 16
"""Of a pass at least, where batches stay as large as `SMALLEST_BATCH`."""
ROUNDS = 10
RATE = 0.002


def table_settings(rows: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the settings of an experiment on tables of so many training rows, without its data.

    More than ten rounds train longer, each as long as one of ten. The learning rate falls to 0 as half a cosine wave
    (Loshchilov and Hutter, ICLR 2017, without restarts).
    """
    fitting = 2 ** int(math.log2(max(1, rows // BATCHES)))
    batch = max(2, min(rows, LARGEST_BATCH, max(SMALLEST_BATCH, fitting)))
    steps = max(STEPS, PASSES * (rows // batch))
    rates = {each: RATE * (1 + math.cos(math.pi * (each + 0.5) / rounds)) / 2 for each in range(rounds)}
    return {
        "data": {},
        "models": {
            "feature": {"kind": "mlp", "width": 0.25, "embedding_size": 8, "dropout": 0.2},
            "head": {"hidden": [16]},
        },
        "training": {
            "rounds": rounds,
            "steps_per_round": math.ceil(steps / ROUNDS),
            "batch_size": batch,
            "labels": "server",
            "optimizer": {"kind": "adamw", "weight_decay": 0.3, "learning_rate": rates},
        },
    }
