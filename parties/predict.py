"""Predictions of a trained split model, also where parties are absent.

Shapes: B batch, N samples, D embedding width, C classes.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's own signatures are partly untyped.

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from parties.head_server import HeadServer
from parties.trained import load_trained, parties_of
from vfl.config import ConfigError
from vfl.data.prediction_files import unknown_labels
from vfl.data.source import NewSamples, open_source
from vfl.data.split import split_data
from vfl.errors import PeerLost
from vfl.registry import nearest

WhenAbsent = Literal["refuse", "zeros", "mean"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """What was predicted of which samples."""

    ids_N: Tensor
    labels_N: Tensor | None
    """None where they are not known."""
    probabilities_NC: Tensor
    classes: tuple[str, ...]
    accuracies: Mapping[str, float]
    """By what they are of; none without labels."""

    def rows(self) -> list[list[Any]]:
        """Return a table's heading and lines: a sample's class and how probable that and all others are.

        Nine digits hold all bits of a float32.
        """
        best_N = self.probabilities_NC.argmax(dim=1)
        known = self.labels_N is not None
        heading = ["id", *(["label"] if known else []), "prediction", "probability"]
        rows: list[list[Any]] = [[*heading, *(f"p_{name}" for name in self.classes)]]
        for row, (identity, best) in enumerate(zip(self.ids_N.tolist(), best_N.tolist(), strict=True)):
            label = [] if self.labels_N is None else [self.classes[int(self.labels_N[row])]]
            values = [f"{value:.9g}" for value in self.probabilities_NC[row].tolist()]
            rows.append([identity, *label, self.classes[best], values[best], *values])
        return rows


def check_absent(absent: Collection[str], names: Sequence[str], when_absent: WhenAbsent) -> None:
    """Raise ConfigError for a party that there is not, PeerLost where nothing may stand for one that is absent."""
    for name in absent:
        if name not in names:
            raise ConfigError(f"--absent: no party is called {name!r}{nearest(name, names)}")
    if absent and when_absent == "refuse":
        who = f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} absent"
        raise PeerLost(f"{who}; --when-absent zeros or mean would predict without")
    if len(absent) == len(names):
        raise ConfigError("--absent: no party is left to predict with; name fewer")


def predict(server: HeadServer, stand_ins: Mapping[str, Tensor]) -> Tensor:
    """Return the class probabilities [N, C] of the test samples.

    ``stand_ins`` [D] stand for the embeddings of the parties that they are given for; those are not asked.
    """
    present = [link for link in server.links if link.name not in stand_ins]
    probabilities: list[Tensor] = []
    for start, stop in server.test_batches():
        embeddings = server.test_embeddings(start, stop, present)
        embeddings |= {name: value_D.expand(stop - start, -1) for name, value_D in stand_ins.items()}
        probabilities.append(server.outputs(embeddings).softmax(dim=1).cpu())
    return torch.cat(probabilities)


def zero_embeddings(server: HeadServer, names: Collection[str]) -> dict[str, Tensor]:
    """Return zeros [D] for some parties."""
    return {receiver.sender: torch.zeros(receiver.width) for receiver in server.receivers if receiver.sender in names}


def accuracy(probabilities_NC: Tensor, labels_N: Tensor) -> float:
    """Return the share of samples whose most probable class is their label."""
    return float((probabilities_NC.argmax(dim=1) == labels_N).double().mean())


def accuracy_name(absent: Collection[str], when_absent: WhenAbsent) -> str:
    """Return what an accuracy is of."""
    return f"accuracy without {', '.join(absent)} ({when_absent})" if absent else "accuracy"


def predict_in_process(
    run_dir: Path, data: Path | None, absent: Collection[str], when_absent: WhenAbsent
) -> Prediction:
    """Predict the test samples, or the whole images of a file, with all parties rebuilt in this process.

    Parties in ``absent`` are not asked; their mean embedding is what the server would have kept from before. With
    labels known, the accuracy with all parties is there for comparison. Raises as ``load_trained``, ``check_absent``
    and ``Source.read_samples``.
    """
    server = load_trained(run_dir)
    check_absent(absent, [link.name for link in server.links], when_absent)
    split = split_data(server.config)
    classes, ids_N, labels_N = split.labels.classes, split.labels.test.ids, split.labels.test.values
    if data is not None:
        samples = open_source(server.config).read_samples(data, split.parties[0].train, len(classes))
        use_samples(server, samples)
        ids_N, labels_N = samples.whole.ids, samples.whole.labels
    stand_ins = zero_embeddings(server, absent)
    if when_absent == "mean":
        stand_ins = server.mean_embeddings([link for link in server.links if link.name in absent])
    probabilities_NC = predict(server, stand_ins)
    accuracies: dict[str, float] = {}
    if labels_N is not None:
        accuracies[accuracy_name(absent, when_absent)] = accuracy(probabilities_NC, labels_N)
        if absent:
            accuracies["with all parties"] = accuracy(predict(server, {}), labels_N)
    return Prediction(ids_N, labels_N, probabilities_NC, classes, accuracies)


def use_samples(server: HeadServer, samples: NewSamples) -> None:
    """Give every party its part of other samples in place of its test samples, prepared as its training samples."""
    for party, part in zip(parties_of(server), samples.parts, strict=True):
        party.test = party.preparation.apply(part)
    whole = samples.whole
    server.test_labels_N = unknown_labels(len(whole)) if whole.labels is None else whole.labels
