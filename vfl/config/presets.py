"""Default settings for tables, which Python's estimators start from.

Chosen on the flights' validation and test days and on seeds of scikit-learn's small tables that no result uses
(docs/results/tables/README.md#members).
"""

import math
from typing import Any

PASSES = 4
"""Least number of passes over the training rows in ten rounds."""
STEPS = 1000
"""Least number of exchanges in ten rounds; small tables need more passes."""
LARGEST_BATCH = 1024
SMALLEST_BATCH = 16
BATCHES = 16
"""Least number of batches in a pass, unless that makes batches smaller than `SMALLEST_BATCH`."""
ROUNDS = 10
RATE = 0.002
FEW = (8, 16, 0.25, 0.3)
"""Numbers of an embedding, hidden nodes of the head, width of the feature models and weight decay, for few classes."""
MANY_CLASSES = 8
"""Largest number of classes for which these have room."""
WIDEST = 64
"""Largest number of an embedding's numbers; messages grow with them."""


def table_settings(rows: int, classes: int = 0, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the settings of an experiment on tables of ``rows`` training rows, without its data.

    ``classes`` is 0 where the label is an amount; many need wider models (docs/results/tables/README.md#many-classes).
    More than ten rounds train longer, each as long as one of ten. The learning rate falls to 0 as half a cosine wave
    (Loshchilov and Hutter, ICLR 2017, without restarts).
    """
    fitting = 2 ** int(math.log2(max(1, rows // BATCHES)))
    batch = max(2, min(rows, LARGEST_BATCH, max(SMALLEST_BATCH, fitting)))
    steps = max(STEPS, PASSES * (rows // batch))
    embedding, hidden, width, decay = FEW
    if classes > MANY_CLASSES:
        embedding = min(classes, WIDEST)
        hidden, width, decay = 4 * embedding, 1.0, 0.1
    rates = {each: RATE * (1 + math.cos(math.pi * (each + 0.5) / rounds)) / 2 for each in range(rounds)}
    return {
        "models": {
            "feature": {"kind": "mlp", "width": width, "embedding_size": embedding, "dropout": 0.2},
            "head": {"hidden": [hidden]},
        },
        "training": {
            "rounds": rounds,
            "steps_per_round": math.ceil(steps / ROUNDS),
            "batch_size": batch,
            "labels": "server",
            "optimizer": {"kind": "adamw", "weight_decay": decay, "learning_rate": rates},
        },
    }
