"""What a party's owner sees: a line per round, TensorBoard's page of the party, and what it gave away so far.

Beside its checkpoints a party's folder then has ``metrics.jsonl`` and TensorBoard events: the server's tags of this
party, and under ``given`` the totals since round 0.
"""

from collections.abc import Collection
from pathlib import Path

import torch
from rich.console import Console

from vfl.callbacks import JsonLines, ShowProgress
from vfl.config import ExperimentConfig, dump_config
from vfl.costs import savings
from vfl.loop import Metrics, Viewer
from vfl.run_folder import whole_rows
from vfl.vertical.batches import batch_rows, steps_in_round
from vfl.wire.control import Report, RoundStart, SampleRange
from vfl.wire.messages import MEASURING, Kind, Message, PartKind

OF_REPORT = ("alpha", "beta", "macs_per_sample", "parameters", "omega", "psi")


class OwnRows(JsonLines):
    """A party's rows: it has none of the rounds that were trained without it, under ``network.on_party_loss: drop``."""

    def lost(self, rows: Collection[int], next_round: int) -> list[int]:
        """Return none: no row says of a round before it that the party took part."""
        return []


class OwnView:
    """Watches a party's answers, round by round.

    A round is shown when the next one begins, or at the end: its evaluation comes after its report. Rounds that are
    trained again, as a resumed session does, replace what was written of them.

    Args:
        name: the party's name.
        config: its experiment.
        run_dir: its folder.
        console: where the rounds are shown.
        samples: its training rows.
    """

    def __init__(self, name: str, config: ExperimentConfig, run_dir: Path, console: Console, samples: int) -> None:
        self.name = name
        self.config = config
        self.run_dir = run_dir
        self.console = console
        self.samples = samples
        self.rounds = config.training.rounds
        self.steps = steps_in_round(config.training, samples)
        self.next_round = 0
        """The round that is not shown yet."""
        self.last_metrics: Metrics = {}
        self.metric = "accuracy"
        """The server's, where it tells."""
        self.watching: list[Viewer] = []
        self.given = {"embeddings": 0.0, "bytes": 0.0}
        """Since round 0; bytes of evaluations included."""
        self._seen_N = torch.zeros(samples, dtype=torch.bool)
        self._tested_rows = 0
        self._exchanges = 0
        self._round: Metrics = {}
        self._report: Report | None = None

    def note(self, request: Message, reply: Message) -> None:
        """Take note of what the server asked for and what it got."""
        if request.kind is Kind.START_ROUND:
            self._start_round(request)
        elif request.kind is Kind.END_ROUND:
            self._report = Report.of(reply)
        elif request.kind is Kind.EVALUATE:
            asked = SampleRange.of(request)
            self._tested_rows = max(self._tested_rows, asked.stop)
            self.given["embeddings"] += asked.stop - asked.start
        elif request.kind not in MEASURING and reply.payloads(PartKind.EMBEDDING):
            self._note_exchange()
        self.given["bytes"] += reply.size
        measuring = request.kind in MEASURING
        for direction, message in (("uplink", reply), ("downlink", request)):
            tag = f"{'evaluation_' if measuring else ''}{direction}_bytes/{self.name}"
            self._round[tag] = self._round.get(tag, 0) + message.size

    def close(self) -> None:
        """Show what is left, and end."""
        self._close_round()
        span = "so far" if self.watching else "for this prediction"
        for callback in self.watching:
            callback.on_end(self)
        self.watching = []
        if self.given["embeddings"]:
            self.console.print(f"{self.name} gave away {span}: {self._account()}")

    def _start_round(self, request: Message) -> None:
        ordered = RoundStart.of(request)
        tested = ordered.tested or {}
        self.metric = next(iter(tested), self.metric)
        self._close_round({f"{metric}/test": value for metric, value in tested.items()})
        if not self.watching or request.round_index != self.next_round:
            self._begin(request.round_index)
        self._exchanges, self._round = 0, {}

    def _begin(self, round_index: int) -> None:
        """Watch from a round on: as at the start, or after a loss."""
        from vfl.tensorboard import TensorBoard  # takes as long as the rest of a party's imports

        for callback in self.watching:
            callback.on_end(self)
        before = [row for row in whole_rows(self.run_dir) if row["round"] < round_index]
        if not self.watching and before:  # this process goes on for another
            self.given = {what: before[-1].get(f"given/{what}", 0.0) for what in self.given}
        self.next_round = round_index
        for number in range(round_index):
            self._see(number, self.steps)
        shown = {
            f"alpha/{self.name}": "alpha {:g}",
            f"beta/{self.name}": "beta {:g}",
            f"uplink_bytes/{self.name}": "sent {:,.0f} B",
            f"downlink_bytes/{self.name}": "received {:,.0f} B",
            f"train_time_s/{self.name}": "{:.1f} s",
        }
        board = TensorBoard(self.run_dir, dump_config(self.config))  # page HParams: the server's row, with its results
        self.watching = [board, OwnRows(self.run_dir / "metrics.jsonl"), ShowProgress(self.console, shown)]
        for callback in self.watching:
            callback.on_start(self)

    def _note_exchange(self) -> None:
        self._exchanges += 1
        self.given["embeddings"] += self.config.training.batch_size
        for callback in self.watching:
            if isinstance(callback, ShowProgress):
                callback.on_step(self._exchanges, self.steps)

    def _see(self, round_index: int, exchanges: int) -> None:
        batch_size = self.config.training.batch_size
        for rows_B in batch_rows(self.config.seed, round_index, exchanges, self.samples, batch_size):
            self._seen_N[rows_B] = True

    def _close_round(self, tested: Metrics | None = None) -> None:
        """Show the round that has ended, if one has."""
        report, self._report = self._report, None
        if report is None:
            return
        own = {tag: float(getattr(report, tag)) for tag in OF_REPORT} | {
            "train_time_s": report.elapsed_s,
            "savings_compute": savings(report.train_macs, report.unpruned_train_macs),
        }
        self._see(self.next_round, self._exchanges)
        metrics = self._round | {f"{tag}/{self.name}": value for tag, value in own.items()} | (tested or {})
        metrics |= {f"given/{what}": value for what, value in self.given.items()} | {"given/rows": float(self._rows())}
        round_index, self.next_round = self.next_round, self.next_round + 1
        self.last_metrics |= metrics
        for callback in self.watching:
            callback.on_round(self, round_index, metrics)

    def _rows(self) -> int:
        return int(self._seen_N.sum()) + self._tested_rows

    def _account(self) -> str:
        given = self.given
        return f"{given['embeddings']:,.0f} embeddings of {self._rows():,} of its rows, {given['bytes'] / 1e6:.2f} MB"
