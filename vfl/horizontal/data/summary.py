"""An overview of the split: each client's samples, as a table and as stacked bars, for ten clients or thousands."""
# pyright: reportUnknownMemberType=false
# torch's and matplotlib's signatures are partly untyped.

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from vfl.horizontal.data.partition import SamplePartition

LISTED_CLIENTS = 20
"""Largest number of clients for which all are listed; otherwise `SHOWN_OF_MANY` are."""
SHOWN_OF_MANY = 11
COUNTED_CLASSES = 10
"""Largest number of classes with a column or legend entry each."""
FREQUENT = 3
"""Classes named per client if there are more."""
NAMED_BARS = 40
"""Largest number of clients whose bars are named and separate; more are ordered by size."""


def class_counts(partition: SamplePartition, labels: Tensor, classes: int) -> Tensor:
    """Return the number of each client's labels in each class, int64 [clients, classes].

    labels: int64 [N], or [N, T] for text with a label per character: then characters are counted.
    """
    return torch.stack([torch.bincount(labels[rows].flatten(), minlength=classes) for rows in partition.rows])


def split_table(partition: SamplePartition, counts: Tensor, classes: Sequence[str]) -> Table:
    """Return a table of sizes and class counts [clients, classes], with a row per client.

    Of many clients some are listed, from the smallest to the largest at even ranks of size.
    """
    rows = _client_rows(partition.sizes)
    table = Table(title=_split_headline(partition.sizes, counts), box=SIMPLE_HEAD, pad_edge=False)
    if len(rows) < len(partition):
        table.caption = f"{len(rows)} of {len(partition)} clients, from the smallest to the largest"
    table.add_column("client", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    few = len(classes) <= COUNTED_CLASSES
    if few:
        for name in classes:
            table.add_column(escape(_visible_name(name)), justify="right")
    else:
        table.add_column("classes", justify="right")
        table.add_column("most frequent")
    for client in rows:
        mine = cast(list[int], counts[client].tolist())
        cells = [str(count or "·") for count in mine] if few else _frequent_cells(mine, classes)
        table.add_row(escape(partition.names[client]), str(partition.sizes[client]), *cells)
    return table


def draw_split(partition: SamplePartition, counts: Tensor, classes: Sequence[str], path: Path) -> None:
    """Write a PNG with a bar per client, stacked by class from counts [clients, classes].

    More than `NAMED_BARS` clients are ordered by size, the largest first, and clients of equal size by their main
    classes.
    """
    names_fit = len(partition) <= NAMED_BARS
    order = list(range(len(partition))) if names_fit else _by_size_and_class(partition.sizes, counts)
    colors = _class_colors(len(classes))
    figure = Figure(figsize=(9, 4.8), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    _stack_bars(
        axes, counts[order].numpy(), [colors(index) for index in range(len(classes))], width=0.8 if names_fit else 1.0
    )
    axes.set_title(_split_headline(partition.sizes, counts), fontsize=10, loc="left")
    axes.set_xlabel("Client" if names_fit else f"{len(partition)} clients, ordered by size")
    axes.set_ylabel("Samples" if int(counts.sum()) == sum(partition.sizes) else "Labels (characters)")
    if names_fit:
        # A name is text, not TeX: a dollar sign would be read as its beginning.
        axes.set_xticks(range(len(partition)), partition.names, rotation=90, fontsize=8, parse_math=False)
    if len(classes) <= COUNTED_CLASSES:
        names = [_visible_name(name) for name in classes]
        legend = figure.legend(axes.collections, names, loc="outside right upper", frameon=False, reverse=True)
        for text in legend.get_texts():
            text.set_parse_math(False)
    else:
        norm = BoundaryNorm([index - 0.5 for index in range(len(classes) + 1)], len(classes))
        figure.colorbar(
            ScalarMappable(norm, colors), ax=axes, label="Class", ticks=range(0, len(classes), -(-len(classes) // 10))
        )
    FigureCanvasAgg(figure).print_png(path)


def _stack_bars(axes: Axes, counts_NK: NDArray[np.int64], colors: Sequence[tuple[float, ...]], width: float) -> None:
    """Draw the rectangles of each class as one collection: axes.bar makes an object of every single one."""
    tops_NK = counts_NK.cumsum(axis=1)
    for index, color in enumerate(colors):
        client = np.flatnonzero(counts_NK[:, index])
        left, right = client - width / 2, client + width / 2
        top = tops_NK[client, index]
        bottom = top - counts_NK[client, index]
        corners = [(left, bottom), (left, top), (right, top), (right, bottom)]
        rectangles = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)  # [n, 4, 2]
        axes.add_collection(PolyCollection(rectangles, facecolor=color, linewidth=0))  # pyright: ignore[reportArgumentType]  # its stub wants a list, which is slower
    axes.set_xlim(-0.6, len(counts_NK) - 0.4)
    axes.set_ylim(0, 1.05 * tops_NK[:, -1].max())


def _split_headline(sizes: Sequence[int], counts: Tensor) -> str:
    class_counts = (counts > 0).sum(dim=1)
    clients = "1 client" if len(sizes) == 1 else f"{len(sizes)} clients"
    samples = _show_spread(torch.tensor(sizes))
    return f"{clients}, {sum(sizes)} samples, each {samples} samples and {_show_spread(class_counts)} classes"


def _show_spread(values: Tensor) -> str:
    """Return the range and median of whole numbers, or the number that they all are."""
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high} (median {int(values.median())})"


def _by_size_and_class(sizes: Sequence[int], counts: Tensor) -> list[int]:
    main = cast(list[list[int]], counts.argsort(dim=1, descending=True, stable=True)[:, :2].tolist())
    return sorted(range(len(sizes)), key=lambda client: (-sizes[client], main[client]))


def _client_rows(sizes: Sequence[int]) -> list[int]:
    """Return the clients that the table lists."""
    if len(sizes) <= LISTED_CLIENTS:
        return list(range(len(sizes)))
    by_size = sorted(range(len(sizes)), key=lambda client: sizes[client])
    # Ranks at equal distances, the first and the last included.
    return [by_size[rank * (len(sizes) - 1) // (SHOWN_OF_MANY - 1)] for rank in range(SHOWN_OF_MANY)]


def _frequent_cells(counts: Sequence[int], classes: Sequence[str]) -> list[str]:
    """Return the number of classes held and the most frequent ones with their counts."""
    present = sorted((index for index, count in enumerate(counts) if count), key=lambda index: -counts[index])
    most_frequent = [f"{_visible_name(classes[index])}: {counts[index]}" for index in present[:FREQUENT]]
    return [str(len(present)), escape(", ".join(most_frequent))]


def _visible_name(name: str) -> str:
    """Return a class name that is visible: characters of a text may be blanks or quotes."""
    return name if any(map(str.isalnum, name)) else repr(name)


def _class_colors(classes: int) -> Colormap:
    if classes <= COUNTED_CLASSES:
        return mpl.colormaps["tab10"]
    return ListedColormap(mpl.colormaps["turbo"](torch.linspace(0, 1, classes).numpy()))
