"""What many tests make or look at: samples of one of our origins, feature models of images, a server's parties."""

import copy
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from tiny_training import timeless
from torch import Tensor, nn

from vfl.config import ExperimentConfig, parse_config, parse_experiment
from vfl.config.components import SOURCES
from vfl.config.data import DataConfig
from vfl.config.files import lay_over, parse_overrides, read_settings
from vfl.core import build
from vfl.core.local import InProcess, LocalLink, build_in_process
from vfl.core.party import FeatureParty
from vfl.core.reference import Reference
from vfl.core.server import HeadServer
from vfl.data.samples import Dataset, Samples
from vfl.data.source import Source
from vfl.data.sources.images import Standardisation
from vfl.horizontal.components import CLASSIFIERS
from vfl.horizontal.config import HorizontalExperiment
from vfl.models.features import ClassifierSpec, Features, ModelSpec
from vfl.runs.loop import Algorithm, Metrics
from vfl.runs.runtime import start_runtime

TWO = {"partition": {"rows": 1, "columns": 2}}
"""Two parties in the place of four, where what is said of one holds for all."""
IMAGE_CLASSIFIERS = [kind for kind in CLASSIFIERS.built_in if kind != "char_lstm"]


@contextmanager
def as_before() -> Iterator[None]:
    """Put back what a command sets for its process."""
    shown, failed, handler = warnings.showwarning, threading.excepthook, signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        warnings.showwarning, threading.excepthook = shown, failed
        signal.signal(signal.SIGTERM, handler)


def parse_horizontal(values: Mapping[str, Any]) -> HorizontalExperiment:
    """Check the settings of a horizontal experiment."""
    config = parse_experiment(values)
    assert isinstance(config, HorizontalExperiment)
    return config


def load_horizontal(path: Path, overrides: Sequence[str] = ()) -> HorizontalExperiment:
    """Read a horizontal experiment."""
    return parse_horizontal(lay_over(read_settings(path), parse_overrides(overrides)))


def release(*values: Any) -> Any:
    """Values of a parametrized test that are for a release."""
    return pytest.param(*values, marks=pytest.mark.release)


def at_every_run(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Values of a parametrized test, or tuples of them; those whose first is not chosen are for a release."""
    parts = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*part, marks=() if part[0] in chosen else pytest.mark.release) for part in parts]


@torch.no_grad()
def masked_copy(dense: nn.Module, pruned: nn.Module) -> nn.Module:
    """The dense model with zeros for every value that the pruned one does not have."""
    masked, left = copy.deepcopy(dense), pruned.state_dict()
    for name, tensor in masked.state_dict().items():
        if tensor.is_floating_point():
            tensor.mul_(torch.isin(tensor, left[name]))
    return masked


def wait_until(true: Callable[[], bool], patience_s: float = 300.0) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def examples(number: int, **options: Any) -> settings:
    """Examples of a property: as many as a release tries, which is four times what every run does."""
    return settings(max_examples=max(4, number * settings().max_examples // 100), **options)


def load_dataset(
    kind: str,
    root: Path | None,
    *,
    train_samples: int | None,
    test_samples: int | None,
    seed: int,
    image_size: int | None = None,
) -> Dataset:
    dataset = {"kind": kind, "root": root, "image_size": image_size}
    data = DataConfig.model_validate({"dataset": dataset, "train_samples": train_samples, "test_samples": test_samples})
    source: Source = SOURCES.make(kind, data, seed)
    return source.load()


def standardise(train: Samples, test: Samples) -> tuple[Samples, Samples]:
    preparation = Standardisation(train)
    return preparation.apply(train), preparation.apply(test)


def build_feature_model(
    kind: str,
    *,
    in_channels: int,
    image_size: tuple[int, int],
    embedding_size: int,
    width: float = 1.0,
    batch_norm: bool = True,
) -> Any:
    features = Features("images", (in_channels, *image_size))
    return build.build_feature_model(kind, ModelSpec(features, embedding_size, width, batch_norm))


def build_classifier(
    kind: str, *, input_shape: tuple[int, ...], classes: int, label_shape: tuple[int, ...] = ()
) -> Any:
    return CLASSIFIERS.make(kind, ClassifierSpec(input_shape, classes, label_shape))


def check_rows(parts: list[Tensor], samples: int, *, all_of_them: bool = False) -> None:
    """int64, ascending, in range, nobody's row another's, and with all_of_them none left over."""
    together = torch.cat(parts)
    assert together.dtype == torch.int64
    assert all(bool((rows.diff() > 0).all()) for rows in parts)
    assert len(together.unique()) == len(together)
    assert together.min() >= 0
    assert together.max() < samples
    assert not all_of_them or len(together) == samples


def links_of(server: HeadServer) -> list[Any]:
    return [party.link for party in server.roster]


def replace_links(server: HeadServer, links: Sequence[Any]) -> None:
    for party, link in zip(server.roster, links, strict=True):
        party.link = link


def build_here(settings: ExperimentConfig | Mapping[str, Any], **given: Any) -> InProcess:
    """Build all parties and the server of an experiment in this process."""
    config = settings if isinstance(settings, ExperimentConfig) else parse_config(settings)
    return build_in_process(config, start_runtime(config), **given)


def parties_of(server: HeadServer) -> list[FeatureParty]:
    return [
        link.party for link in links_of(server) if isinstance(link, LocalLink) and isinstance(link.party, FeatureParty)
    ]


def reference_of(server: HeadServer, kind: type[Reference] = Reference, **settings: Any) -> Any:
    """Algorithm 1 from the models that a server and its parties have now, with the server's settings or others."""
    training = server.config.training
    parties = parties_of(server)
    values: dict[str, Any] = {"iterations": training.local_iterations, "beta": 0.0, "labels": training.labels}
    values |= {"learning_rate": 0.05, "momentum": 0.9} | settings
    return kind(
        [copy.deepcopy(party.model) for party in parties],
        copy.deepcopy(server.trainer.head),
        [party.train.features for party in parties],
        server.exchanges.labels_N,
        **values,
    )


def train_rounds(server: Algorithm, stop: int, start: int = 0) -> list[Metrics]:
    """Train rounds and return what is said of each."""
    return [server.train_round(round_index) for round_index in range(start, stop)]


def digest(server: HeadServer) -> str:
    return server.summary()["model_digest"]


def assert_models(server: HeadServer, models: Sequence[nn.Module], head: nn.Module, **close: Any) -> None:
    """Assert that a server's head and its parties' models are near to others."""
    ours = [*(party.model for party in parties_of(server)), server.trainer.head]
    for found, wanted in zip(ours, [*models, head], strict=True):
        torch.testing.assert_close(found.state_dict(), wanted.state_dict(), **close)


def check_resumed(build: Callable[..., HeadServer], split: int, rounds: int, **sections: Any) -> HeadServer:
    """Assert that a training resumed after ``split`` rounds differs in seconds only; return the uninterrupted one."""
    whole, resumed = build(**sections), build(**sections)
    train_rounds(whole, split)
    whole.evaluate()
    torch.rand(7)  # what else has drawn in a process does not matter
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    ours, theirs = (
        [
            [server.summary(), server.evaluate()],
            [server.train_round(round_index) | server.evaluate() for round_index in range(split, rounds)],
            server.summary(),
        ]
        for server in (resumed, whole)
    )
    assert timeless(ours) == timeless(theirs)
    return whole
