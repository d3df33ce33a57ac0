"""What an owner learns of its party's answers: lines on its console, and private files in its folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from torch import Tensor

from vfl.core.party import FeatureParty
from vfl.core.privacy.message_recorder import MessageRecorder, write_recording
from vfl.data.samples import Samples
from vfl.data.source import Prepared, far_cells
from vfl.messages.control import ColumnImportance, Explained
from vfl.messages.messages import Kind, Message
from vfl.parties.network.action_log import ActionLog
from vfl.parties.network.party.dialer import Dialer
from vfl.parties.network.party.party_monitor import PartyMonitor
from vfl.runs.atomic import csv_text, escape_formula, write_csv
from vfl.runs.run_folder import private_files

IMPORTANCE = "importance.csv"
"""File in a party's folder: what the test loses without each of its columns."""
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


@dataclass(frozen=True, eq=False)
class Notes:
    """Shows and writes what an owner learns of its party's answers."""

    name: str
    run_dir: Path
    wanted: Samples | None
    """Raw samples to predict in place of the test samples."""
    wanted_row: Callable[[int], str]
    """Name of a sample to predict, for its owner."""
    view: PartyMonitor
    console: Console
    log_action: Callable[[str, str], None] = lambda event, detail: None
    """Notes an action of the server, with a detail, in the folder's log."""
    said: set[str] = field(default_factory=set[str])
    """Warnings that were shown: every session restores the party."""

    def answer(self, party: FeatureParty, samples: Samples, request: Message, reply: Message) -> None:
        """Note a request of the server and the reply."""
        self.view.note(party, samples, request, reply)
        if request.kind is Kind.IMPORTANCE:
            path = self.run_dir / IMPORTANCE
            write_importance(path, ColumnImportance.of(request), party.data)
            self.console.print(f"{self.name}: what the test loses without each of its columns: {path}")
        if request.kind is Kind.ATTRIBUTE:
            explained = Explained.of(request)
            self.log_action("explained", f"samples {explained.start} to {explained.stop}")
        if isinstance(party.protocol, MessageRecorder) and request.kind == Kind.END_ROUND and party.protocol.rows:
            write_recording(party.protocol.recording(self.name), self.run_dir)

    def warn_of_unseen_values(self, party: FeatureParty) -> None:
        """Warn, once, of samples to predict that are unlike those of the training."""
        wanted, columns = self.wanted, party.column_names
        assert wanted is not None
        line = party.preparation.unseen_values(wanted, columns)
        far = far_cells(self.name, party.preparation, columns, wanted, self.wanted_row)
        for each in (*[f"{self.name}: {line}"] * bool(line), *far):
            if each not in self.said:
                self.said.add(each)
                self.console.print(f"warning: {each}")


def write_importance(path: Path, importance: ColumnImportance, data: Prepared) -> None:
    """Write a line for each of a party's columns, which have numbers where they have no names."""
    columns = data.column_names if data.raw.get("names") else range(len(importance.lost))
    write_csv(path, [("column", "lost"), *zip(columns, importance.lost, strict=True)])


def note_action(audit: ActionLog, dialer: Dialer, event: str, detail: str) -> None:
    """Add an action of the present server to the folder's log. Raises OSError."""
    audit.note(event, dialer.server, detail)
