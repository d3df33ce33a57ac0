"""Places at which the training command can be struck: killed, or its disk full."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fork_server import Strike, around

from vfl.runs.checkpoint import CheckpointStore


def at_update(strike: Strike) -> None:
    from vfl.core.party import FeatureParty

    around(FeatureParty, "update", strike)


def at_half_a_row(strike: Strike) -> None:
    from vfl.runs.callbacks import JsonLines

    write_row = JsonLines.on_round

    def write_half(self: JsonLines, *arguments: Any) -> None:
        size = self.path.stat().st_size
        write_row(self, *arguments)
        if strike.due():
            os.truncate(self.path, (size + self.path.stat().st_size) // 2)
            strike.act()

    JsonLines.on_round = write_half  # pyright: ignore[reportAttributeAccessIssue]


def at_half_a_file(strike: Strike) -> None:
    import vfl.runs.atomic
    import vfl.runs.checkpoint
    import vfl.runs.tensor_file

    write = vfl.runs.atomic.write_durably

    def write_half(path: Path, *arguments: Any) -> Any:
        written = write(path, *arguments)
        if strike.due():
            os.truncate(path, path.stat().st_size // 2)
            strike.act()
        return written

    vfl.runs.atomic.write_durably = vfl.runs.checkpoint.write_durably = vfl.runs.tensor_file.write_durably = write_half


def at_open(strike: Strike, folder: str, mode_then: str = "wb") -> None:
    open_file = Path.open

    def open_full(self: Path, mode: str = "r", **options: Any) -> Any:
        if mode == mode_then and folder in str(self.parent) and strike.due():
            return open_file(Path("/dev/full"), mode, **options)
        return open_file(self, mode, **options)

    Path.open = open_full  # pyright: ignore[reportAttributeAccessIssue]


def at_row_without_checkpoint(strike: Strike) -> None:
    """Strike when the row is written and neither the bar nor the checkpoint has followed."""
    from vfl.runs.callbacks import ShowProgress

    around(ShowProgress, "on_round", strike)


def at_summary(strike: Strike) -> None:
    import vfl.runs.run

    around(vfl.runs.run, "write_summary", strike)


def at_removal(strike: Strike) -> None:
    """Strike when a checkpoint that is no longer needed is about to step aside, and to be deleted."""
    around(CheckpointStore, "_remove", strike)
    around(shutil, "rmtree", strike)


PLACES: dict[str, Callable[[Strike], None]] = {
    "update": at_update,
    "half a row": at_half_a_row,
    "half a file": at_half_a_file,
    "evaluated": at_row_without_checkpoint,
    "rename": lambda strike: around(Path, "rename", strike),
    "rename over": lambda strike: around(Path, "replace", strike),
    "remove": at_removal,
    "summary": at_summary,
    "checkpoint file": lambda strike: at_open(strike, "checkpoints"),
    "row": lambda strike: at_open(strike, "", "a"),
    "any file": lambda strike: at_open(strike, ""),
}
