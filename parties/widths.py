"""An image in TensorBoard at every pruning: how many channels of each layer every party has left."""
# pyright: reportUnknownMemberType=false
# matplotlib's and SummaryWriter's signatures are partly untyped.

from typing import Any

import numpy as np

from parties.head_server import HeadServer
from vfl.loop import Callback, Metrics, TrainingLoop
from vfl.tensorboard import TensorBoard

FULL, KEPT = "#D9D9D9", "#0072B2"


class ShowWidths(Callback):
    """Draws ``widths/PARTY`` in the rounds in which a party's alpha rose.

    Into the file of ``tensorboard``, which comes before it: a second file would keep TensorBoard from reading on.
    """

    def __init__(self, server: HeadServer, tensorboard: TensorBoard) -> None:
        self.server = server
        self.tensorboard = tensorboard
        self.alphas: dict[str, float] = {}

    def on_start(self, loop: TrainingLoop) -> None:
        """Take the ratios of a resumed run as drawn."""
        self.alphas = {name: report.alpha for name, report in self.server.reports.items()}

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
        """Draw the parties that were pruned in this round."""
        tags = {link.name: f"alpha/{link.name}" for link in self.server.links}
        alphas = {name: metrics[tag] for name, tag in tags.items() if tag in metrics}  # none of who never reported
        pruned = [name for name, alpha in alphas.items() if alpha > self.alphas.get(name, 0.0)]
        self.alphas = alphas
        if not pruned:
            return
        described = self.server.describe()
        writer = self.tensorboard.writer
        assert writer is not None
        for name in pruned:
            if not described[name].widths:  # a stand-in for a lost party has none
                continue
            title = f"{name}, alpha {alphas[name]:g}, round {round_index}"
            image_HWC = draw_widths(title, described[name].widths, described[name].original_widths)
            writer.add_image(f"widths/{name}", image_HWC, round_index, dataformats="HWC")


def draw_widths(title: str, widths: dict[str, int], original_widths: dict[str, int]) -> "np.ndarray[Any, Any]":
    """Return a picture [H, W, 4] uint8 of the channels left of every layer, by layer name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second: only prunings draw
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 1.1 + 0.24 * len(widths)), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = list(widths)
    axes.barh(names, [original_widths[name] for name in names], color=FULL, label="as built")
    bars = axes.barh(names, [widths[name] for name in names], color=KEPT, label="left")
    axes.bar_label(bars, fontsize=7, padding=2)
    axes.invert_yaxis()
    axes.set_xlabel("channels")
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=8)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
