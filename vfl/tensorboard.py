"""The TensorBoard page of a run: curves, a layout that opens on the savings, hyperparameters, the configuration."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# SummaryWriter's methods are unannotated in PyTorch.

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams as hparams_summaries

from vfl.loop import Callback, Metrics, TrainingLoop
from vfl.results import CLOCK

Layout = dict[str, dict[str, list[str | list[str]]]]


@dataclass(frozen=True)
class FrontPage:
    """The charts on which the page opens; those whose quantity a run does not have are left out."""

    title: str = "what is reached"
    tags: Mapping[str, str] = field(default_factory=lambda: {"test accuracy": "accuracy/test"})
    """Tag by title, with a line per run; the columns of the page HParams as well."""
    by_owner: Mapping[str, str] = field(default_factory=dict[str, str])
    """Quantity by title, with a line per owner."""


class TensorBoard(Callback):
    """Writes every metric under its tag, step = round, time = that of the run's clock if it has one.

    Rounds that a resume repeats are purged.

    Args:
        run_dir: folder of the event files.
        config: the resolved configuration, shown as text.
        hparams: settings on the page HParams, by dotted key.
        front_page: what the page opens on.
    """

    def __init__(
        self,
        run_dir: Path,
        config: str = "",
        hparams: Mapping[str, Any] | None = None,
        front_page: FrontPage = FrontPage(),
    ) -> None:
        self.run_dir = run_dir
        self.config = config
        self.hparams = hparams or {}
        self.front_page = front_page
        self.writer: SummaryWriter | None = None

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
        """Write the round; the first one of a session opens an event file and purges what it will write again."""
        if self.writer is None:
            self.writer = SummaryWriter(str(self.run_dir), purge_step=round_index)
            self._describe(self.writer, metrics)
        for tag, value in metrics.items():  # with a clock of its own, "relative" is the axis of its seconds
            self.writer.add_scalar(tag, value, round_index, walltime=metrics.get(CLOCK))
        self.writer.flush()

    def on_end(self, loop: TrainingLoop) -> None:
        """Close the event file."""
        if self.writer is not None:
            with suppress(OSError):  # the rounds are flushed; closing must not hide why the run ended
                self.writer.close()

    def _describe(self, writer: SummaryWriter, metrics: Metrics) -> None:
        """Write what belongs to the run, not to a round."""
        writer.add_custom_scalars(layout(metrics, self.front_page))
        if self.config:
            writer.add_text("config", f"```yaml\n{self.config}```", 0)
        if self.hparams:
            shown = {key: _plain(value) for key, value in self.hparams.items()}
            columns = dict.fromkeys((*self.front_page.tags.values(), "loss/test"))
            # add_hparams would write them into a folder of its own, apart from the run's curves.
            for summary in hparams_summaries(shown, columns):
                writer._get_file_writer().add_summary(summary)  # pyright: ignore[reportPrivateUsage]


def layout(metrics: Metrics, page: FrontPage) -> Layout:
    """Return a layout of the custom scalars: the front page, then a chart per quantity with a line per owner.

    TensorBoard sorts the sections by name, so they are numbered. A run's first round may have no evaluation yet.
    """
    tags = {title: tag for title, tag in page.tags.items() if tag in metrics or tag == "accuracy/test"}
    by_owner = {title: name for title, name in page.by_owner.items() if any(t.startswith(f"{name}/") for t in metrics)}
    others = dict.fromkeys(tag.partition("/")[0] for tag in metrics if tag not in tags.values())
    first: dict[str, list[str | list[str]]] = {title: ["Multiline", [f"^{tag}$"]] for title, tag in tags.items()}
    first |= {title: ["Multiline", [f"^{name}/"]] for title, name in by_owner.items()}
    rest: dict[str, list[str | list[str]]] = {
        name: ["Multiline", [f"^(?!({'|'.join(tags.values())})$){name}/"]]  # what the front page has is not shown twice
        for name in others
        if name not in by_owner.values()
    }
    return {f"1 {page.title}": first} | ({"2 every quantity": rest} if rest else {})


def _plain(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)
