"""The contract of feature models: who breaks it is told how in one line, and who cannot be pruned trains whole."""

import copy
from collections.abc import Callable

import pytest
import torch
from refusals import refused, refuses
from shorthand import build_feature_model, links_of, release
from torch import Tensor, nn

from vfl.compression.pruning import StructuredPruner
from vfl.config.components import FEATURE_MODELS
from vfl.core import feature_models as checks
from vfl.core.feature_models import check_feature_model
from vfl.models.features import Features, ModelSpec

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


class Normed(Flat):
    """Cannot be pruned: LayerNorm."""

    def __init__(self, spec: ModelSpec) -> None:
        width = spec.embedding_size
        super().__init__(lambda out: out, nn.LazyLinear(8), nn.LayerNorm(8), nn.Linear(8, width))
        self(torch.zeros(1, *spec.features.shape))


class Mixed(Flat):
    """Cannot be pruned: the second layer reads a softmax over the channels of the first."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(lambda out: out, nn.LazyLinear(8), nn.Softmax(1), nn.Linear(8, spec.embedding_size))
        self(torch.zeros(1, *spec.features.shape))


class Dropped(Flat):
    """Draws in training, and its weights at the first sample."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(lambda out: out, nn.LazyLinear(8), nn.Dropout(0.5), nn.Linear(8, spec.embedding_size))


class Noisy(Flat):
    def __init__(self, spec: ModelSpec) -> None:
        layers = nn.LazyLinear(8), nn.Linear(8, spec.embedding_size)
        super().__init__(lambda out: out + torch.rand(1), *layers)


class Detached(Flat):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(Tensor.detach, nn.LazyLinear(8), nn.Linear(8, spec.embedding_size))


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch):
    broken = {
        "normed": Normed,
        "mixed": Mixed,
        "dropped": Dropped,
        "noisy": Noisy,
        "detached": Detached,
        "no_module": lambda spec: "a model",
        "no_arguments": lambda: Normed,
        "narrow": lambda spec: Normed(ModelSpec(spec.features, 2)),
    }
    for name, model in broken.items():
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
    sections = {"models": {"feature": {"kind": "dropped", "embedding_size": 4}}, "training": {"batch_size": 16}}
    whole = build(**sections)
    torch.rand(7)  # what else has drawn in a process does not matter
    resumed = build(**sections)
    assert resumed.describe() == whole.describe()
    whole.train_round(0)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    for server in (whole, resumed):
        server.train_round(1)
    assert resumed.describe() == whole.describe()


@pytest.mark.parametrize(
    ("kind", "alpha", "line"),
    [
        ("normed", 0.5, ("lightweighting.alpha", "0.5", "'layers.1'", "layers")),
        ("mixed", 0.5, ("lightweighting.alpha", "0.5", "'layers.1'")),
        ("no_module", 0, ("feature model 'no_module'", "'a model'")),
        ("no_arguments", 0, ("feature model 'no_arguments'", "TypeError")),
        ("noisy", 0, ("Noisy", "embeddings")),
        ("detached", 0, ("Detached", "gradient")),
        ("narrow", 0, ("Normed", "torch.float32", "[1, 2]", "float32")),
    ],
)
def test_a_model_that_breaks_the_contract_ends_the_run_in_one_line(
    offered, build, kind: str, alpha: float, line: tuple[str, ...]
):
    with refused(*line):
        build(models={"feature": {"kind": kind, "embedding_size": 4}}, lightweighting={"alpha": alpha})


def test_features_of_another_kind_are_refused_by_name():
    refuses("", lambda: FEATURE_MODELS.load("cnn")(ModelSpec(Features("series", (7,)), 4)), "[7]")
