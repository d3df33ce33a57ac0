"""What an owner keeps of its own columns' reasons: a private file of bounded size in its folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vfl.runs.atomic import csv_text, escape_formula
from vfl.runs.run_folder import private_files

MOST_BYTES = 64 << 20
"""Size from which a file is set aside for a new one."""


@dataclass(frozen=True)
class OwnReasons:
    """A file with a line for each sample that was explained. The one before it stays; earlier ones go."""

    path: Path
    names: Sequence[str]
    """Names of the owner's columns."""
    named_by: str = "id"
    """Name of the first column: what names a sample."""

    @property
    def before(self) -> Path:
        """The file that was full before this one."""
        return self.path.with_suffix(".before.csv")

    def append(self, samples: Sequence[object], moved_nC: Tensor, errors_n: Tensor) -> None:
        """Add samples by name, with what each column moved and the completeness errors. Raises OSError."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size >= MOST_BYTES:
            self.path.replace(self.before)
            size = 0
        rows = zip(samples, moved_nC.tolist(), errors_n.tolist(), strict=True)
        lines = [[escape_formula(name), *(f"{each:.6g}" for each in (*moved, error))] for name, moved, error in rows]
        heading = [] if size else [[self.named_by, *map(escape_formula, self.names), "error"]]
        with private_files(), self.path.open("a", encoding="utf-8") as file:
            file.write(csv_text([*heading, *lines]))
