"""The TensorBoard page of a run: curves, a layout that opens on the savings, hyperparameters, the configuration."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# SummaryWriter's methods are unannotated in PyTorch.

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams as hparams_summaries

from vfl.loop import Callback, Metrics, TrainingLoop

Layout = dict[str, dict[str, list[str | list[str]]]]
SAVINGS = {
    "test accuracy": "accuracy/test",
    "compute saved": "savings/compute",
    "communication saved": "savings/communication",
}
"""Charts on which the page opens, by title: what was bought, and for how much. A line per run."""
BY_PARTY = {"compute saved, by party": "savings_compute", "communication saved, by party": "savings_communication"}


class TensorBoard(Callback):
    """Writes every metric under its tag, step = round. Rounds that a resume repeats are purged.

    Args:
        run_dir: folder of the event files.
        config: the resolved configuration, shown as text.
        hparams: settings on the page HParams, by dotted key.
    """

    def __init__(self, run_dir: Path, config: str = "", hparams: Mapping[str, Any] | None = None) -> None:
        self.run_dir = run_dir
        self.config = config
        self.hparams = hparams or {}
        self.writer: SummaryWriter | None = None

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
        """Write the round; the first one of a session opens an event file and purges what it will write again."""
        if self.writer is None:
            self.writer = SummaryWriter(str(self.run_dir), purge_step=round_index)
            self._describe(self.writer, metrics)
        for tag, value in metrics.items():
            self.writer.add_scalar(tag, value, round_index)
        self.writer.flush()

    def on_end(self, loop: TrainingLoop) -> None:
        """Close the event file."""
        if self.writer is not None:
            with suppress(OSError):  # the rounds are flushed; closing must not hide why the run ended
                self.writer.close()

    def _describe(self, writer: SummaryWriter, metrics: Metrics) -> None:
        """Write what belongs to the run, not to a round."""
        writer.add_custom_scalars(layout(metrics))
        if self.config:
            writer.add_text("config", f"```yaml\n{self.config}```", 0)
        if self.hparams:
            shown = {key: _plain(value) for key, value in self.hparams.items()}
            columns = dict.fromkeys((*SAVINGS.values(), "loss/test"))
            # add_hparams would write them into a folder of its own, apart from the run's curves.
            for summary in hparams_summaries(shown, columns):
                writer._get_file_writer().add_summary(summary)  # pyright: ignore[reportPrivateUsage]


def layout(metrics: Metrics) -> Layout:
    """Return a layout of the custom scalars: the savings first, then a chart per quantity with a line per owner.

    TensorBoard sorts the sections by name, so they are numbered.
    """
    savings = {title: tag for title, tag in SAVINGS.items() if tag in metrics or tag == "accuracy/test"}
    by_party = {title: name for title, name in BY_PARTY.items() if any(tag.startswith(f"{name}/") for tag in metrics)}
    shown = {"accuracy", "savings", *by_party.values()}
    others = dict.fromkeys(tag.partition("/")[0] for tag in metrics)
    first: dict[str, list[str | list[str]]] = {title: ["Multiline", [f"^{tag}$"]] for title, tag in savings.items()}
    first |= {title: ["Multiline", [f"^{name}/"]] for title, name in by_party.items()}
    rest: dict[str, list[str | list[str]]] = {
        name: ["Multiline", [f"^{name}/"]] for name in others if name not in shown
    }
    return {"1 what lightweighting buys": first} | ({"2 every quantity": rest} if rest else {})


def _plain(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)
