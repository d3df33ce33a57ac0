"""State of this process under torchrun, from the environment."""

import os


def under_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return {"WORLD_SIZE", "RANK", "LOCAL_RANK"} <= os.environ.keys()


def is_printing_process() -> bool:
    """Return whether this process is the one of its machine that prints messages common to all."""
    return not under_torchrun() or os.environ["LOCAL_RANK"] == "0"
