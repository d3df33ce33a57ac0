"""torchvision's models by name: the bits of the same module given in Python, and one line for what does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from rich.console import Console
from shorthand import parties_of, release
from small_images import image_sections, write_images
from torchvision import models as vision

from vfl.base.random import seeded
from vfl.config import ExperimentConfig, parse_config
from vfl.core.build import GivenModules
from vfl.core.feature_models import build_feature_model
from vfl.core.local import InProcess, build_in_process
from vfl.models.features import Features, ModelSpec
from vfl.runs.run import run_experiment
from vfl.runs.runtime import start_runtime
from vfl.runs.stored_run import Run

SMALL = {"kind": "torchvision", "options": {"name": "mobilenet_v3_small"}}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


def trained_digest(config: ExperimentConfig, given: GivenModules | None = None) -> str:
    built: InProcess = build_in_process(config, start_runtime(config), given=given)
    built.server.train_round(0)
    return built.server.summary()["model_digest"]


@pytest.mark.parametrize("name", ["mobilenet_v3_small", release("resnet18"), release("squeezenet1_1")])
def test_a_model_by_name_has_the_bits_of_the_same_module_given_in_python(images: Path, name: str):
    sections = image_sections(images, {"kind": "torchvision", "options": {"name": name}})
    if name == "squeezenet1_1":
        sections["data"]["partition"] = {"rows": 1, "columns": 1}
    config = parse_config(sections)
    models: dict[str, torch.nn.Module] = {}
    for party in config.parties:
        with seeded(config.seed, "init", owner=party):
            models[party] = vision.get_model(name, weights=None, num_classes=4)
    assert trained_digest(config) == trained_digest(config, GivenModules(models))


def test_each_party_may_have_a_model_of_its_own(images: Path):
    sections = image_sections(images, {"kind": "cnn", "width": 0.2})
    sections["models"]["parties"] = {"party_2": SMALL | {"embedding_size": 3}}
    config = parse_config(sections)
    first, second = parties_of(build_in_process(config, start_runtime(config)).server)
    assert type(first.model).__name__ == "ConvolutionalFeatures"
    assert isinstance(second.model, vision.MobileNetV3)
    assert second.model(torch.zeros(2, 3, 32, 16)).shape == (2, 3)


@pytest.mark.release
def test_a_run_by_name_prunes_resumes_and_predicts(images: Path, tmp_path: Path):
    sections = image_sections(images, SMALL) | {"lightweighting": {"alpha": {1: 0.5}}}
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    two = parse_config(sections | {"training": sections["training"] | {"rounds": 2}})
    quiet = Console(quiet=True)
    outcome = run_experiment(two, whole, resume=False, console=quiet)
    run_experiment(parse_config(sections), resumed, resume=False, console=quiet)
    assert (
        run_experiment(two, resumed, resume=True, console=quiet).summary["model_digest"]
        == (outcome.summary["model_digest"])
    )
    assert outcome.summary["unpruned_train_macs"] > outcome.summary["train_macs"]
    assert Run(whole).predict().shape == (4, 2)


@pytest.mark.parametrize(
    ("options", "shape", "parts"),
    [
        ({}, (3, 32, 32), ["name"]),
        ({"name": "resnet81"}, (3, 32, 32), ["resnet18"]),
        ({"name": ["resnet18"]}, (3, 32, 32), ["known"]),
        ({"name": "fasterrcnn_resnet50_fpn"}, (3, 32, 32), ["fasterrcnn_resnet50_fpn"]),
        ({"name": "inception_v3"}, (3, 16, 16), ["inception_v3", "3 x 16 x 16", "3 x 75 x 75"]),
        ({"name": "vit_b_16"}, (3, 16, 16), ["vit_b_16", "3 x 224 x 224"]),
        ({"name": "mobilenet_v3_small"}, (1, 16, 16), ["3 channels", "1 x 16 x 16"]),
        ({"name": "mobilenet_v3_small", "depth": 3}, (3, 32, 32), ["depth"]),
        ({"name": "mobilenet_v3_small", "weights": "DEFAULT"}, (3, 32, 32), ["models.feature.weights"]),
        ({"name": "mobilenet_v3_small", "num_classes": 9}, (3, 32, 32), ["models.feature.embedding_size"]),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(options: dict[str, Any], shape: tuple[int, ...], parts: list[str]):
    with refused("models.feature.options") as caught:
        build_feature_model("torchvision", ModelSpec(Features("images", shape), 4, options=options))
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert text.startswith("models.feature.options: ")
    assert all(part in text for part in parts), text


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["googlenet", release("inception_v3")])
def test_a_model_with_further_outputs_gives_its_embedding_only(name: str):
    features = Features("images", (3, 80, 80))
    model = build_feature_model("torchvision", ModelSpec(features, 4, options={"name": name})).train()
    assert model(torch.zeros(2, 3, 80, 80)).shape == (2, 4)
