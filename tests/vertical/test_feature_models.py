"""The contract of feature models, torchvision's by name among them: one line for what does not fit."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused, refuses
from shorthand import build_feature_model, build_here, check_resumed, links_of, parties_of, release
from small_images import image_sections, write_images
from tiny_training import check_resumed_run
from torch import Tensor, nn
from torchvision import models as vision

from vfl.base.random import seeded
from vfl.compression.pruning import StructuredPruner
from vfl.config import ExperimentConfig, parse_config
from vfl.config.components import FEATURE_MODELS
from vfl.core import build
from vfl.core import feature_models as checks
from vfl.core.build import GivenModules
from vfl.core.feature_models import check_feature_model
from vfl.core.local import InProcess
from vfl.models.features import Features, ModelSpec
from vfl.runs.stored_run import Run

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters' own
IMAGES = torch.randn(4, 2, 8, 8, generator=torch.Generator().manual_seed(1))


class Flat(nn.Module):
    """A model of 128 values with something wrong: ``break_it`` changes what it would return."""

    def __init__(self, break_it: Callable[[Tensor], object], *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), *(layers or (nn.Linear(128, 12), nn.ReLU(), nn.Linear(12, 3))))
        self.break_it = break_it

    def forward(self, images: Tensor) -> object:
        return self.break_it(self.layers(images))


UNREGISTERED = [nn.Linear(3, 3)]


def raise_(_: Tensor) -> object:
    raise RuntimeError("two\nlines")


@pytest.fixture(params=[False, release(True)], ids=["", "exported"])
def exported(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Whether the contract's last step is taken: writing ONNX takes seconds, and is for a release."""
    if not request.param:
        monkeypatch.setattr(checks, "_export", lambda model, inputs: None)


@pytest.mark.usefixtures("exported")
@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_our_models_keep_the_contract_and_stay_as_they_are(kind: str):
    torch.manual_seed(0)
    model = build_feature_model(kind, in_channels=2, image_size=(8, 8), embedding_size=3, width=0.2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_feature_model(model, IMAGES)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training


@pytest.mark.usefixtures("exported")
@pytest.mark.parametrize(
    ("model", "line"),
    [
        (Flat(raise_), "Flat: forward: RuntimeError: two lines"),
        (Flat(lambda out: (out, out)), r"Flat: forward gives tuple instead of float32 \[B, D\]"),
        (Flat(lambda out: out.sum(1)), r"Flat: forward gives torch.float32 \[4\] instead of float32 \[B, D\]"),
        (Flat(lambda out: out.argmax(1, keepdim=True)), r"torch.int64 \[4, 1\] instead of float32"),
        (Flat(lambda out: out.mean(0, keepdim=True)), r"torch.float32 \[1, 3\] instead of float32 \[4, 3\]"),
        (Flat(lambda out: out - out.mean(0)), "Flat: a sample alone gives other embeddings"),
        (Flat(lambda out: out.double()), r"Flat: forward gives torch.float64 \[4, 3\] instead of float32 \[B, D\]"),
        (Flat(lambda out: out.detach()), "Flat: forward gives an embedding without a gradient: no parameter would be"),
        (Flat(lambda out: UNREGISTERED[0](out)), "Flat: uses parameters that are not registered; assign them to self"),
        (
            Flat(lambda out: out.repeat(1, 1 + out.requires_grad)),
            r"Flat: in training mode forward gives torch.float32 \[4, 6\], else torch.float32 \[4, 3\]",
        ),
        (
            Flat(lambda out: out, nn.Linear(128, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
            "pruning: cannot prune .*: what it computes is mixed",
        ),
        (Flat(lambda out: out, nn.Linear(128, 8), nn.Dropout(0.5), nn.Linear(8, 3)), None),
    ],
)
def test_what_fails_is_said_in_one_line(model: nn.Module, line: str | None):
    if line is None:
        check_feature_model(model, IMAGES)
        return
    with pytest.raises(ValueError, match=line) as error:
        check_feature_model(model, IMAGES)
    assert "\n" not in str(error.value)


class Numbered(nn.Module):
    """Reads two tensors, as of a table: numbers [B, 3] and flags [B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.flags, self.embedding = nn.Linear(3, 8), nn.Linear(2, 8), nn.Linear(8, 4)

    def forward(self, numbers: Tensor, flags: Tensor) -> Tensor:
        return self.embedding(torch.relu(self.numbers(numbers) + self.flags(flags.to(numbers))))


@pytest.mark.usefixtures("exported")
def test_a_model_of_several_tensors_keeps_the_contract_too():
    torch.manual_seed(0)
    model, inputs = Numbered(), (torch.randn(4, 3), torch.randint(0, 2, (4, 2)))
    check_feature_model(model, inputs)
    pruner = StructuredPruner(model, inputs)
    pruner.prune_to(0.5)
    assert pruner.widths() == {"numbers": 4, "flags": 4}


def between(layer: nn.Module, break_it: Callable[[Tensor], object] = lambda out: out, width: int | None = None) -> Any:
    """Build a perceptron with a layer between its two; the first one's weights are drawn at the first sample."""

    def build(spec: ModelSpec) -> Flat:
        model = Flat(break_it, nn.LazyLinear(8), copy.deepcopy(layer), nn.Linear(8, width or spec.embedding_size))
        if not isinstance(layer, nn.Dropout):
            model(torch.zeros(1, *spec.features.shape))
        return model

    return build


OFFERED = {
    "normed": between(nn.LayerNorm(8)),
    "mixed": between(nn.Softmax(1)),  # the second layer reads a softmax over the channels of the first
    "dropped": between(nn.Dropout(0.5)),
    "noisy": between(nn.Identity(), lambda out: out + torch.rand(1)),
    "detached": between(nn.Identity(), Tensor.detach),
    "no_module": lambda spec: "a model",
    "no_arguments": lambda: Flat,
    "narrow": between(nn.LayerNorm(8), width=2),
}


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch):
    for name, model in OFFERED.items():
        monkeypatch.setitem(FEATURE_MODELS.added, name, model)


@pytest.mark.parametrize("kind", ["normed", "mixed"])
def test_a_model_that_cannot_be_pruned_trains_with_alpha_0(offered, build, kind: str):
    server = build(models={"feature": {"kind": kind, "embedding_size": 4}}, training={"rounds": 1, "batch_size": 16})
    server.train_round(0)
    assert server.reports.last["party_1"].alpha == 0
    assert server.describe()["party_1"].widths == {}
    state = links_of(server)[0].party.state_dict()
    assert state["pruner"] == {"alpha_max": 0.0, "history": []}


def test_what_layers_draw_depends_on_the_seed_and_the_round_alone(offered, build):
    check_resumed(build, 1, 2, models={"feature": {"kind": "dropped", "embedding_size": 4}})


@pytest.mark.parametrize(
    ("kind", "alpha", "line"),
    [
        ("normed", 0.5, ("lightweighting.alpha", "0.5", "'layers.1'", "layers")),
        ("mixed", 0.5, ("lightweighting.alpha", "0.5", "'layers.1'")),
        ("no_module", 0, ("feature model 'no_module'", "'a model'")),
        ("no_arguments", 0, ("feature model 'no_arguments'", "TypeError")),
        ("noisy", 0, ("Flat", "embeddings")),
        ("detached", 0, ("Flat", "gradient")),
        ("narrow", 0, ("Flat", "torch.float32", "[1, 2]", "float32")),
    ],
)
def test_a_model_that_breaks_the_contract_ends_the_run_in_one_line(
    offered, build, kind: str, alpha: float, line: tuple[str, ...]
):
    with refused(*line):
        build(models={"feature": {"kind": kind, "embedding_size": 4}}, lightweighting={"alpha": alpha})


def test_features_of_another_kind_are_refused_by_name():
    refuses("", lambda: FEATURE_MODELS.load("cnn")(ModelSpec(Features("series", (7,)), 4)), "[7]")


SMALL = {"kind": "torchvision", "options": {"name": "mobilenet_v3_small"}}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


def trained_digest(config: ExperimentConfig, given: GivenModules | None = None) -> str:
    built: InProcess = build_here(config, given=given)
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
    first, second = parties_of(build_here(sections).server)
    assert type(first.model).__name__ == "ConvolutionalFeatures"
    assert isinstance(second.model, vision.MobileNetV3)
    assert second.model(torch.zeros(2, 3, 32, 16)).shape == (2, 3)


@pytest.mark.release
def test_a_run_by_name_prunes_resumes_and_predicts(images: Path, tmp_path: Path):
    sections: dict[str, Any] = image_sections(images, SMALL) | {"lightweighting": {"alpha": {1: 0.5}}}
    sections["training"]["rounds"] = 2
    summary = check_resumed_run(sections, tmp_path)
    assert summary["unpruned_train_macs"] > summary["train_macs"]
    assert Run(tmp_path / "whole").predict().shape == (4, 2)


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
        build.build_feature_model("torchvision", ModelSpec(Features("images", shape), 4, options=options))
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert text.startswith("models.feature.options: ")
    assert all(part in text for part in parts), text


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["googlenet", release("inception_v3")])
def test_a_model_with_further_outputs_gives_its_embedding_only(name: str):
    features = Features("images", (3, 80, 80))
    model = build.build_feature_model("torchvision", ModelSpec(features, 4, options={"name": name})).train()
    assert model(torch.zeros(2, 3, 80, 80)).shape == (2, 4)
