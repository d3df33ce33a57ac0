"""Pictures in TensorBoard of every party's remaining channels by layer, at every pruning."""
# pyright: reportUnknownMemberType=false
# matplotlib's and SummaryWriter's signatures are partly untyped.

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from vfl.core.server import HeadServer
from vfl.messages.control import Description
from vfl.runs.loop import Callback, Metrics, TrainingLoop
from vfl.runs.tensorboard import MOST_OWNERS, TensorBoard

FULL, KEPT = "#D9D9D9", "#0072B2"


class ShowWidths(Callback):
    """Draws ``widths``, one picture of all parties, in the rounds in which a party's alpha rose.

    It writes to the file of ``tensorboard``, which must run before it: with a second file, TensorBoard would stop
    reading the first.
    """

    def __init__(self, server: HeadServer, tensorboard: TensorBoard) -> None:
        self.server = server
        self.tensorboard = tensorboard
        self.alphas: dict[str, float] = {}

    def on_start(self, loop: TrainingLoop) -> None:
        """Regard the ratios of a resumed run as drawn."""
        self.alphas = {name: report.alpha for name, report in self.server.reports.last.items()}

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
        """Draw the parties if one was pruned in this round."""
        tags = {name: f"alpha/{name}" for name in self.server.roster.names}
        alphas = {name: metrics[tag] for name, tag in tags.items() if tag in metrics}  # not every one has reported
        pruned = any(alpha > self.alphas.get(name, 0.0) for name, alpha in alphas.items())
        self.alphas = alphas
        if not pruned:
            return
        described = self.server.describe()
        widths_by_owner = {  # a stand-in for a lost party has no widths
            f"{name}, alpha {alpha:g}": described[name] for name, alpha in alphas.items() if described[name].widths
        }
        writer = self.tensorboard.writer
        assert writer is not None
        if widths_by_owner:
            image_HWC = draw_widths(f"round {round_index + 1}", dict(islice(widths_by_owner.items(), MOST_OWNERS)))
            writer.add_image("widths", image_HWC, round_index, dataformats="HWC")


def draw_widths(title: str, parties: Mapping[str, Description]) -> "np.ndarray[Any, Any]":
    """Return a picture [H, W, 4] uint8 of the remaining channels of every layer, by party."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second: only prunings draw
    from matplotlib.figure import Figure

    columns = min(2, len(parties))
    rows = -(-len(parties) // columns)
    layers = max(len(party.widths) for party in parties.values())
    figure = Figure(figsize=(1 + 3.2 * columns, 0.8 + rows * (0.7 + 0.24 * layers)), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    every = figure.subplots(rows, columns, squeeze=False).flat
    for axes in every[len(parties) :]:
        axes.remove()
    for axes, (name, party) in zip(every, parties.items(), strict=False):
        layer_names = sorted(party.widths, key=by_number)
        axes.barh(layer_names, [party.original_widths[layer] for layer in layer_names], color=FULL, label="as built")
        bars = axes.barh(layer_names, [party.widths[layer] for layer in layer_names], color=KEPT, label="left")
        axes.bar_label(bars, fontsize=7, padding=2)
        axes.invert_yaxis()
        axes.set_xlabel("channels", fontsize=8)
        axes.set_title(name, fontsize=10)
        axes.tick_params(labelsize=8)
    figure.suptitle(title, fontsize=10)
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def by_number(layer: str) -> list[str]:
    """Return a sort key by number, features.3 before features.10; on the wire layers' names are sorted as text."""
    return [part.zfill(6) if part.isdigit() else part for part in layer.split(".")]
