"""Shows at a run's start which client holds what."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from torch import Tensor

from vfl.cli import print_table
from vfl.data.horizontal.partition import SamplePartition
from vfl.data.horizontal.summary import class_counts, draw_split, split_table
from vfl.loop import Callback, TrainingLoop


@dataclass(frozen=True, eq=False)
class ShowSplit(Callback):
    """Prints the split as a table and draws it into the run's folder."""

    partition: SamplePartition
    """Rows of the training samples by client."""
    labels: Tensor
    """Of the training samples."""
    classes: Sequence[str]
    """Names of what labels index."""
    path: Path
    """Of the picture."""
    console: Console

    def on_start(self, loop: TrainingLoop) -> None:
        """Show the split of a run that begins; a resumed one has shown it."""
        if loop.next_round == 0:
            counts = class_counts(self.partition, self.labels, len(self.classes))
            print_table(self.console, split_table(self.partition, counts, self.classes))
            draw_split(self.partition, counts, self.classes, self.path)
