"""A party's view for its owner: a line per round, the party's TensorBoard page, and totals of the data it gave away.

The party's folder then contains ``metrics.jsonl`` and TensorBoard events beside its checkpoints: the server's tags of
this party, and under ``given`` the totals since round 0.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from vfl.base.costs import savings
from vfl.config import ExperimentConfig, dump_config
from vfl.core.party import FeatureParty
from vfl.core.presence import batch_rows
from vfl.core.privacy.message_recorder import write_recording
from vfl.data.files import numbered
from vfl.data.samples import Samples
from vfl.data.source import Prepared, far_cells
from vfl.messages.control import (
    ColumnImportance,
    Explained,
    LocalReports,
    LocalRounds,
    RoundReport,
    RoundStart,
    SampleRange,
)
from vfl.messages.messages import MEASURING, Kind, Message
from vfl.parties.network.action_log import ActionLog
from vfl.parties.network.party.dialer import Dialer
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.training_page import TrainingPage
from vfl.runs.atomic import csv_text, escape_formula, write_csv
from vfl.runs.callbacks import JsonLines, ShowProgress
from vfl.runs.loop import Metrics, Viewer
from vfl.runs.run_folder import private_files, whole_rows

IMPORTANCE = "importance.csv"
"""File in a party's folder: what the test loses without each of its columns."""
MOST_BYTES = 64 << 20
"""Size from which a file is set aside for a new one."""
OF_REPORT = ("alpha", "beta", "macs_per_sample", "parameters", "omega", "psi")


class OwnRows(JsonLines):
    """A party's rows; rounds that were trained without it (``network.on_party_loss: drop``) have none."""

    def lost(self, rows: Collection[int], next_round: int) -> list[int]:
        """Return none: missing rows do not show that the party took part in a round."""
        return []


@dataclass(eq=False)
class PartyMonitor:
    """Observes a party's answers, round by round.

    A round is shown when the next one begins, or at the end, as its evaluation comes after its report. Rounds that are
    trained again, in a resumed session, replace what was written of them.
    """

    name: str
    config: ExperimentConfig
    run_dir: Path
    console: Console
    train_samples: int
    test_samples: int
    """Number of test samples, or of samples to predict."""
    wanted: Samples | None = None
    """Raw samples to predict in place of the test samples."""
    wanted_row: Callable[[int], str] = numbered
    """Name of a sample to predict, for its owner."""
    log_action: Callable[[str, str], None] = lambda event, detail: None
    """Notes an action of the server, with a detail, in the folder's log."""
    page: TrainingPage = field(default_factory=lambda: TrainingPage((SERVER,)))
    """The page of this process."""

    def __post_init__(self) -> None:
        self.rounds = self.config.training.rounds
        self.next_round = 0
        """The next round to be shown."""
        self.last_metrics: Metrics = {}
        self.metric = "accuracy"
        """The server's metric, if it sends it."""
        self.watching: list[Viewer] = []
        self.warnings = set[str]()
        """Those shown: every session restores the party."""
        self.given = {"embeddings": 0.0, "bytes": 0.0}
        """Totals since round 0; bytes include those of evaluations."""
        self.macs = {"train_macs": 0.0, "unpruned_train_macs": 0.0}
        """Multiply-accumulates of training since round 0, as pruned and unpruned."""
        self._given_N = torch.zeros(self.train_samples, dtype=torch.bool)
        self._tested_M = torch.zeros(self.test_samples, dtype=torch.bool)
        self._round: Metrics = {}
        self._report: RoundReport | None = None

    def note(self, party: FeatureParty, samples: Samples, request: Message, reply: Message) -> None:
        """Record a request of the server and the reply, and write what of it is the owner's."""
        if request.kind is Kind.IMPORTANCE:
            path = self.run_dir / IMPORTANCE
            write_importance(path, ColumnImportance.of(request), party.data)
            self.console.print(f"{self.name}: what the test loses without each of its columns: {path}")
        if request.kind is Kind.ATTRIBUTE:
            explained = Explained.of(request)
            self.log_action("explained", f"samples {explained.start} to {explained.stop}")
        self._note_costs(party, samples, request, reply)
        if party.recorder is not None and request.kind == Kind.END_ROUND and party.recorder.rows:
            write_recording(party.recorder.recording(self.name), self.run_dir)

    def warn_of_unseen_values(self, party: FeatureParty) -> None:
        """Warn, once, of samples to predict that are unlike those of the training."""
        wanted, columns = self.wanted, party.column_names
        assert wanted is not None
        line = party.preparation.unseen_values(wanted, columns)
        far = far_cells(self.name, party.preparation, columns, wanted, self.wanted_row)
        for each in (*[f"{self.name}: {line}"] * bool(line), *far):
            if each not in self.warnings:
                self.warnings.add(each)
                self.console.print(f"warning: {each}")

    def _note_costs(self, party: FeatureParty, samples: Samples, request: Message, reply: Message) -> None:
        if request.kind is Kind.START_ROUND:
            self._start_round(party, request.round_index, RoundStart.of(request))
        elif request.kind is Kind.TRAIN_ALONE:
            self._note_local(party, request, reply)
            return
        elif request.kind is Kind.END_ROUND:
            self._report = RoundReport.of(reply)
        elif request.kind is Kind.EVALUATE:
            span = SampleRange.of(request)
            self._give(samples.held_rows(torch.arange(span.start, span.stop)), self._tested_M)
        elif request.kind is Kind.EMBED:
            self._give(party.batches[request.exchange], self._given_N)
            for callback in self.watching:
                if isinstance(callback, ShowProgress):
                    callback.on_step(request.exchange + 1, party.steps)
        self._count(request, reply)

    def _note_local(self, party: FeatureParty, request: Message, reply: Message) -> None:
        """Record rounds that the party trained alone; the bytes are those of the first, as at the server."""
        done = zip(LocalRounds.of(request).rounds, LocalReports.of(reply).reports, strict=True)
        for round_index, (ordered, report) in enumerate(done, request.round_index):
            self._start_round(party, round_index, ordered)
            if round_index == request.round_index:
                self._count(request, reply)
            self._report = report

    def _count(self, request: Message, reply: Message) -> None:
        self.given["bytes"] += reply.size
        measuring = request.kind in MEASURING
        for direction, message in (("uplink", reply), ("downlink", request)):
            tag = f"{'evaluation_' if measuring else ''}{direction}_bytes/{self.name}"
            self._round[tag] = self._round.get(tag, 0) + message.size

    def close(self) -> None:
        """Show the last round, and end."""
        self._close_round()
        span = "so far" if self.watching else "for this prediction"
        for callback in self.watching:
            callback.on_end(self)
        self.watching = []
        if totals := self.given["embeddings"]:
            what = f"{totals:,.0f} embeddings of {self._rows():,} of its rows, {self.given['bytes'] / 1e6:.2f} MB"
            self.console.print(f"{self.name} gave away {span}: {what}")

    def _give(self, rows_n: Tensor, taken_n: Tensor) -> None:
        self.given["embeddings"] += len(rows_n)
        taken_n[rows_n] = True

    def _start_round(self, party: FeatureParty, round_index: int, ordered: RoundStart) -> None:
        tested = ordered.tested or {}
        self.metric = next(iter(tested), self.metric)
        self._close_round({f"{metric}/test": value for metric, value in tested.items()})
        if not self.watching or round_index != self.next_round:
            self._begin(party, round_index)
        self._round = {}

    def _begin(self, party: FeatureParty, round_index: int) -> None:
        """Observe from a round on: at the start, or after a loss. The rows of all earlier rounds count as given."""
        from vfl.runs.tensorboard import TensorBoard  # takes as long as the rest of a party's imports

        for callback in self.watching:
            callback.on_end(self)
        before = [row for row in whole_rows(self.run_dir) if row["round"] < round_index]
        self.macs = {what: sum(row.get(f"{what}/{self.name}", 0.0) for row in before) for what in self.macs}
        if not self.watching and before:  # this process continues for another
            self.given = {what: before[-1].get(f"given/{what}", 0.0) for what in self.given}
        self.next_round = round_index
        for earlier in range(self.config.training.local_rounds, round_index):  # trained alone, they gave none
            self._given_N[_rows_of_round(party, earlier)] = True
        columns = {
            f"alpha/{self.name}": "alpha {:g}",
            f"beta/{self.name}": "beta {:g}",
            f"uplink_bytes/{self.name}": "sent {:,.0f} B",
            f"downlink_bytes/{self.name}": "received {:,.0f} B",
            f"train_time_s/{self.name}": "{:.1f} s",
        }
        # The page HParams is the server's, as are the results; a chart of a metric that nobody sends would stay empty.
        board = TensorBoard(self.run_dir, dump_config(self.config), front_page={})
        self.watching = [board, OwnRows(self.run_dir / "metrics.jsonl"), ShowProgress(self.console, columns)]
        self.watching.append(self.page)
        for callback in self.watching:
            callback.on_start(self)

    def _close_round(self, tested: Metrics | None = None) -> None:
        report, self._report = self._report, None
        if report is None:
            return
        own = {tag: float(getattr(report, tag)) for tag in (*OF_REPORT, *self.macs)}
        own["train_macs"] += report.refit_macs or 0
        if self.config.lightweighting.sizes_of(self.name) or report.resolution:
            own["resolution"] = report.resolution or 1.0
        self.macs = {what: before + own[what] for what, before in self.macs.items()}
        own |= {"train_time_s": report.elapsed_s, "savings_compute": savings(*self.macs.values())}
        metrics = self._round | {f"{tag}/{self.name}": value for tag, value in own.items()} | (tested or {})
        metrics |= {f"given/{what}": value for what, value in self.given.items()} | {"given/rows": float(self._rows())}
        round_index, self.next_round = self.next_round, self.next_round + 1
        self.last_metrics |= metrics
        for callback in self.watching:
            callback.on_round(self, round_index, metrics)

    def _rows(self) -> int:
        return int(self._given_N.sum() + self._tested_M.sum())


def _rows_of_round(party: FeatureParty, round_index: int) -> Tensor:
    """Return the rows of a round's batches, as if the party took part with all rows that it has."""
    batch_size = party.config.training.batch_size
    batches = batch_rows(party.config.seed, round_index, party.steps, len(party.train), batch_size)
    return party.train.held_rows(torch.cat(batches))


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


def write_importance(path: Path, importance: ColumnImportance, data: Prepared) -> None:
    """Write a line for each of a party's columns, which have numbers where they have no names."""
    columns = data.column_names if data.raw.get("names") else range(len(importance.lost))
    write_csv(path, [("column", "lost"), *zip(columns, importance.lost, strict=True)])


def note_action(audit: ActionLog, dialer: Dialer, event: str, detail: str) -> None:
    """Add an action of the present server to the folder's log. Raises OSError."""
    audit.note(event, dialer.server, detail)
