"""What tests of models by name share: a few colour images of two classes, and an experiment that two parties train."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 32


def write_images(root: Path, side: int = SIDE) -> Path:
    """Write images of random colours, darker ones in one class; return the folder."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 2)):
        for place, name in enumerate(("dark", "light")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(100 * place, 120 + 100 * place, (side, side, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def image_sections(root: Path, feature: dict[str, Any], **training: Any) -> dict[str, Any]:
    """Sections of an experiment on the images, the left halves at one party and the right ones at the other."""
    optimizer = {"learning_rate": 0.05, "momentum": 0.9}
    return {
        "name": "small",
        "seed": 3,
        "threads": 1,
        "data": {"dataset": {"kind": "image_folder", "root": str(root)}, "partition": {"rows": 1, "columns": 2}},
        "models": {"feature": {"embedding_size": 4, **feature}, "head": {"hidden": [8]}},
        "training": {"rounds": 1, "batch_size": 8, "optimizer": optimizer, **training},
        "checkpoint": {"every": 1},
    }
