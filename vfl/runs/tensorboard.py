"""The TensorBoard page of a run: curves, a layout that opens on the savings, hyperparameters, the configuration."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# SummaryWriter's methods are unannotated in PyTorch.

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from torch.utils.tensorboard import SummaryWriter

from vfl.base.metrics import title as metric_title
from vfl.config.shipped import SWEEP
from vfl.runs.atomic import naming
from vfl.runs.loop import Metrics, Viewer, Watched
from vfl.runs.results import CLOCK
from vfl.runs.tensorboard_hparams import hparams_summaries

Layout = dict[str, dict[str, list[str | list[str]]]]

ADDRESS = "http://localhost:6006/?{}&smoothing=0#timeseries"
"""Default address of TensorBoard, without the smoothing that hides the last values; pinned charts have a table of
these."""
MOST_OWNERS = 8
"""Most owners with curves in units for people."""
SHARE_OF_OWNER: Mapping[str, tuple[str, float]] = {
    "compute saved": ("savings_compute", 1.0),
    "communication saved": ("savings_communication", 1.0),
    "sent up in MB": ("uplink_bytes", 1e-6),
    "sent down in MB": ("downlink_bytes", 1e-6),
    "model in MMAC per sample": ("macs_per_sample", 1e-6),
    "alpha": ("alpha", 1.0),
    "beta": ("beta", 1.0),
    "resolution": ("resolution", 1.0),
    "own work in seconds": ("train_time_s", 1.0),
    "an exchange in seconds": ("exchange_s", 1.0),
}
"""An owner's quantities in units for people: metric and factor by title.

Titles have no brackets: TensorBoard draws no line for a tag that has one.
"""
BY_PARTY = "by party"


FrontPage = Mapping[str, str]
"""Charts on which the page opens, with a line per run: tag by title. They are also the metrics of the page HParams."""
REACHED = {"test accuracy": "accuracy/test"}
"""First chart; replaced if models are compared by another metric."""


@dataclass(eq=False)
class TensorBoard(Viewer):
    """Writes every metric under its tag, step = round, time = that of the run's clock if it has one.

    Rounds that a resume repeats are purged. A run that is compared with no other also has its owners' curves in units
    for people. All is in one folder: of more than 40, TensorBoard selects none and shows an empty page.
    """

    run_dir: Path
    """Folder of the event files."""
    config: str = ""
    """The resolved configuration, shown as text."""
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    """All settings, by dotted key, for the page HParams."""
    varied: Collection[str] = ()
    """Keys of settings that a sweep varies; they come first."""
    front_page: FrontPage = field(default_factory=lambda: REACHED)
    """Charts on which the page opens."""
    writer: SummaryWriter | None = field(default=None, init=False)
    _owners: Sequence[str] = field(default=(), init=False)

    def on_round(self, loop: Watched, round_index: int, metrics: Metrics) -> None:
        """Write the round; the first one of a session opens the event files and purges rounds that will be repeated."""
        with naming(self.run_dir):
            if self.writer is None:
                self.writer = SummaryWriter(str(self.run_dir), purge_step=round_index)
                self.front_page = opening(self.front_page, loop.metric)
                self._owners = () if self.varied else owners_of(metrics)[:MOST_OWNERS]
                self._describe(self.writer, metrics)
            for each in (metrics, *(of_owner(metrics, name) for name in self._owners)):
                _write(self.writer, each, round_index, metrics.get(CLOCK))

    def on_end(self, loop: Watched) -> None:
        """Write the final values as text, for which no curve need be read, and close the event files."""
        if self.writer is None:
            return
        with suppress(OSError):  # the rounds are flushed; closing must not hide why the run ended
            last = loop.last_metrics.items()
            shown = {tag: value for tag, value in last if tag.endswith("/test") or tag in self.front_page.values()}
            lines = ["| last | value |", "|---|---|", *(f"| {tag} | {value:.6g} |" for tag, value in shown.items())]
            self.writer.add_text("result", "\n".join(lines), loop.next_round - 1)
            self.writer.close()

    def _describe(self, writer: SummaryWriter, metrics: Metrics) -> None:
        """Write what belongs to the run as a whole."""
        writer.add_custom_scalars(layout(metrics, self.front_page, self._owners))
        if self.config:
            writer.add_text("config", f"```yaml\n{self.config}```", 0)
        if self.settings:
            tags = {tag: title for title, tag in self.front_page.items()} | {"loss/test": "test loss"}
            # add_hparams would write them into a folder of its own, apart from the run's curves.
            for summary in hparams_summaries(run_name(self.run_dir), self.settings, self.varied, tags):
                writer._get_file_writer().add_summary(summary)  # pyright: ignore[reportPrivateUsage]


def how_to_watch(run_dir: Path, page: FrontPage) -> str:
    """Return the command that shows a folder, valid where this process was started, and an address that pins charts."""
    beside = Path(sys.executable).with_name("tensorboard")
    if shutil.which("tensorboard") == str(beside):
        command = ["tensorboard"]
    elif beside.exists():
        command = [os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)]
    else:
        command = [sys.executable, "-m", "tensorboard.main"]
    return f"watch it with: {shlex.join([*command, '--logdir', str(run_dir)])}\nat {address(page)}"


def address(page: FrontPage) -> str:
    """Return TensorBoard's address with the page's charts pinned."""
    cards = [{"plugin": "scalars", "tag": tag} for tag in page.values()]
    return ADDRESS.format(urlencode({"pinnedCards": json.dumps(cards, separators=(",", ":"))}))


def run_name(run_dir: Path) -> str:
    """Return a run's name for the page HParams, which shows a dozen letters: its own folder first."""
    folder = run_dir.resolve()
    in_sweep = (folder.parents[1] / SWEEP).exists()
    return f"{folder.name} ({folder.parents[1].name})" if in_sweep else folder.name


def owners_of(metrics: Metrics) -> list[str]:
    """Return the owners with savings among the metrics: the parties of a vertical run."""
    return [tag.partition("/")[2] for tag in metrics if tag.startswith("savings_compute/")]


def of_owner(metrics: Metrics, name: str) -> Metrics:
    """Return one owner's part of a round's metrics, by the tags of its own curves."""
    shown = {f"{title}/{name}": (f"{metric}/{name}", factor) for title, (metric, factor) in SHARE_OF_OWNER.items()}
    return {f"{BY_PARTY}/{chart}": factor * metrics[tag] for chart, (tag, factor) in shown.items() if tag in metrics}


def layout(metrics: Metrics, page: FrontPage, owners: Iterable[str] = ()) -> Layout:
    """Return a layout of the custom scalars: the front page, the owners' curves, then a chart per quantity.

    TensorBoard merges the layouts of several runs and shows equal charts once: so a chart does not depend on what else
    a run has. A run's first round may have no evaluation yet.
    """
    front = {title: tag for title, tag in page.items() if tag in metrics or tag.endswith("/test")}
    shares = dict.fromkeys(tag.split("/")[1] for name in owners for tag in of_owner(metrics, name))
    names = dict.fromkeys(tag.partition("/")[0] for tag in metrics if tag not in front.values())
    sections = {
        "1 what is reached": {title: f"^{tag}$" for title, tag in front.items()},
        f"2 {BY_PARTY}": {chart: f"^{re.escape(f'{BY_PARTY}/{chart}/')}" for chart in shares},
        "3 every quantity": {name: _all_but(name, front.values()) for name in names},
    }
    return {
        title: {chart: ["Multiline", [pattern]] for chart, pattern in charts.items()}
        for title, charts in sections.items()
        if charts
    }


def opening(page: FrontPage, metric: str) -> FrontPage:
    """Return the charts of a run whose models are compared by ``metric``."""
    if not page:  # a party may not know the metric: its chart would stay empty
        return page
    rest = {title: tag for title, tag in page.items() if tag not in REACHED.values()}
    return {f"test {metric_title(metric)}": f"{metric}/test"} | rest


def _all_but(name: str, tags: Iterable[str]) -> str:
    """Return the pattern of a quantity's tags, except those on the front page."""
    shown = "|".join(tag for tag in tags if tag.startswith(f"{name}/"))
    return f"^(?!({shown})$){name}/" if shown else f"^{name}/"


def _write(writer: SummaryWriter, metrics: Metrics, round_index: int, walltime: float | None) -> None:
    """Write a round; ``walltime``, if given, is the time axis "relative"."""
    for tag, value in metrics.items():
        writer.add_scalar(tag, value, round_index, walltime=walltime)
    writer.flush()
