"""What torchrun tells its processes in the environment."""

import os


def under_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return {"WORLD_SIZE", "RANK", "LOCAL_RANK"} <= os.environ.keys()


def speaks() -> bool:
    """Return whether this process is the one of its machine that tells the user what all of them find."""
    return not under_torchrun() or os.environ["LOCAL_RANK"] == "0"
