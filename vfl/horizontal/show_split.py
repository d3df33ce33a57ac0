"""Shows at a run's start which client holds what."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from torch import Tensor

from vfl.cli import print_table
from vfl.data.horizontal.partition import SamplePartition
from vfl.data.horizontal.summary import class_counts, draw_split, split_table
from vfl.loop import Callback, TrainingLoop


class ShowSplit(Callback):
    """Prints the split as a table and draws it into the run's folder.

    Args:
        partition: rows of the training samples by client.
        labels: of the training samples.
        classes: names of what labels index.
        path: of the picture.
        console: where the table goes.
    """

    def __init__(
        self, partition: SamplePartition, labels: Tensor, classes: Sequence[str], path: Path, console: Console
    ) -> None:
        self.partition = partition
        self.labels = labels
        self.classes = classes
        self.path = path
        self.console = console

    def on_start(self, loop: TrainingLoop) -> None:
        """Show the split of a run that begins; a resumed one has shown it."""
        if loop.next_round == 0:
            counts = class_counts(self.partition, self.labels, len(self.classes))
            print_table(self.console, split_table(self.partition, counts, self.classes))
            draw_split(self.partition, counts, self.classes, self.path)
