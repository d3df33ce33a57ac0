"""Predictions of a trained split model, also where a party is absent.

Shapes: B batch, N test samples, D embedding width, C classes.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's own signatures are partly untyped.

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from parties.feature_party import FeatureParty
from parties.head_server import HeadServer
from parties.trained import parties_of
from vfl.config import ConfigError, ExperimentConfig
from vfl.config.fields import nearest
from vfl.data.samples import Samples
from vfl.data.split import Split
from vfl.data.vertical import grid_partition, standardise

WhenAbsent = Literal["refuse", "zeros", "mean"]


class PartyAbsent(RuntimeError):  # noqa: N818 - says what is, not what went wrong
    """A party is absent and nothing may stand for its embeddings."""


def read_samples(path: Path, image_shape: tuple[int, ...], classes: int) -> Samples:
    """Read whole images from a ``.npz`` file: ``images`` uint8 [N, C, H, W], and where known ``labels`` and ``ids``.

    Raises ConfigError, one line, for a file without them, with images of another shape than ``image_shape``
    [C, H, W], or with labels that are no class.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files if name in ("images", "labels", "ids")}
    except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
        raise ConfigError(f"--data: {path} cannot be read as .npz ({error})") from None
    images = arrays.get("images")
    if images is None or images.dtype != torch.uint8 or tuple(images.shape[1:]) != image_shape:
        got = "no images" if images is None else f"{images.dtype} {list(images.shape)}"
        raise ConfigError(f"--data: {path} needs images uint8 [N, {', '.join(map(str, image_shape))}], got {got}")
    if len(images) == 0:
        raise ConfigError(f"--data: {path} holds no image")
    labels = arrays.get("labels")
    if labels is not None and not bool(((labels >= 0) & (labels < classes)).all()):
        raise ConfigError(f"--data: labels must be 0 to {classes - 1}")
    ids = arrays.get("ids", torch.arange(len(images)))
    return Samples(ids.long(), images, None if labels is None else labels.long())


def image_shape(config: ExperimentConfig, split: Split) -> tuple[int, ...]:
    """Return channels, height and width of a whole image, of which every party holds a block."""
    channels, height, width = split.parties[0].test.features.shape[1:]
    return channels, height * config.data.partition.rows, width * config.data.partition.columns


def use_samples(server: HeadServer, split: Split, samples: Samples) -> None:
    """Give every party its block of other samples in place of its test samples, scaled as its training features."""
    grid = server.config.data.partition
    parts = grid_partition(samples, grid.rows, grid.columns)
    for party, own, part in zip(parties_of(server), split.parties, parts, strict=True):
        party.test = standardise(own.train, part)[1]
    unknown = torch.zeros(len(samples), dtype=torch.int64)  # never read where there are no labels
    server.test_labels_N = unknown if samples.labels is None else samples.labels


def predict(server: HeadServer, absent: str | None = None, when_absent: WhenAbsent = "refuse") -> Tensor:
    """Return the class probabilities [N, C] of the test samples.

    ``absent`` names a party that is not asked; ``when_absent`` says what stands for its embeddings: nothing
    (PartyAbsent is raised), zeros, or the mean of its embeddings of the training samples, which the server would have
    to have kept from before. Raises ConfigError for a party that there is not.
    """
    names = [link.name for link in server.links]
    if absent is not None and absent not in names:
        raise ConfigError(f"--absent: no party is called {absent!r}{nearest(absent, names)}")
    if absent is not None and when_absent == "refuse":
        raise PartyAbsent(f"{absent} is absent; --when-absent zeros or mean would predict without it")
    stand_in: dict[str, Tensor] = {}
    for party in parties_of(server):
        if party.name == absent:
            mean_D = mean_embedding(party)
            stand_in[party.name] = mean_D if when_absent == "mean" else torch.zeros_like(mean_D)
    present = [link for link in server.links if link.name != absent]
    probabilities: list[Tensor] = []
    for start, stop in server.test_batches():
        embeddings = server.test_embeddings(start, stop, present)
        embeddings |= {name: value_D.expand(stop - start, -1) for name, value_D in stand_in.items()}
        probabilities.append(server.logits(embeddings).softmax(dim=1).cpu())
    return torch.cat(probabilities)


def mean_embedding(party: FeatureParty) -> Tensor:
    """Return the mean [D] of a party's embeddings of its training samples, in evaluation mode."""
    size = party.config.evaluation.batch_size
    total_D = torch.zeros((), dtype=torch.float64)
    with torch.inference_mode():
        for rows_B in torch.arange(len(party.train)).split(size):
            embedding_BD = party.runtime.forward(party.model, party.runtime.batch(party.train.features, rows_B))
            total_D = total_D + embedding_BD.double().sum(dim=0).cpu()
    return (total_D / len(party.train)).float()


def predictions_rows(
    ids_N: Tensor, labels_N: Tensor | None, probabilities_NC: Tensor, classes: tuple[str, ...]
) -> tuple[list[str], list[list[Any]]]:
    """Return the heading and the lines of a table of predictions: the class and how probable it is, and all others."""
    best_N = probabilities_NC.argmax(dim=1)
    labels = [] if labels_N is None else [classes[int(label)] for label in labels_N]
    heading = ["id", *(["label"] if labels else []), "prediction", "probability", *(f"p_{name}" for name in classes)]
    rows: list[list[Any]] = []
    for row, (identity, best) in enumerate(zip(ids_N.tolist(), best_N.tolist(), strict=True)):
        values = [f"{value:.6f}" for value in probabilities_NC[row].tolist()]
        rows.append([identity, *labels[row : row + 1], classes[best], values[best], *values])
    return heading, rows


def accuracy(probabilities_NC: Tensor, labels_N: Tensor) -> float:
    """Return the share of samples whose most probable class is their label."""
    return float((probabilities_NC.argmax(dim=1) == labels_N).double().mean())


def describe(accuracies: Mapping[str, float]) -> str:
    """Return accuracies in one line."""
    return ", ".join(f"{name} {value:.2%}" for name, value in accuracies.items())
