import pytest
import torch
from refusals import refused, refuses
from shorthand import build_feature_model
from torch import nn

from vfl.base.macs import count_macs, count_parameters
from vfl.config.components import FEATURE_MODELS
from vfl.models.mlp import MLP

TINY = 0.05


@pytest.mark.parametrize(
    "kind", [kind for kind in FEATURE_MODELS.built_in if kind not in ("given", "own", "torchvision")]
)
@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("image_size", [(1, 1), (3, 2), (7, 20), (16, 16), (32, 32)])
def test_maps_any_image_to_the_embedding(kind, batch_norm, image_size):
    torch.manual_seed(0)
    model = build_feature_model(
        kind, in_channels=2, image_size=image_size, embedding_size=5, width=TINY, batch_norm=batch_norm
    )
    embedding = model(torch.randn(4, 2, *image_size))
    assert embedding.shape == (4, 5)
    assert isinstance(model.embedding, nn.Linear)
    assert [m for m in model.modules() if isinstance(m, nn.Linear)][-1] is model.embedding
    assert (embedding < 0).any(), "no ReLU after the embedding"
    embedding.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in model.modules()) == batch_norm


def test_vgg16_on_quadrants_has_the_papers_size():
    model = build_feature_model("vgg16", in_channels=3, image_size=(16, 16), embedding_size=512)
    # 3x3 kernels: weights 9 * in * out; no bias, as a BatchNorm with 2 parameters per channel follows.
    pairs = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), *2 * [(256, 256)], (256, 512), *5 * [(512, 512)]]
    parameters = sum(9 * i * o + 2 * o for i, o in pairs) + 512 * 512 + 512
    # One output pixel costs 9 * in * out; the sides are 16, 8, 4, 2 and 1 pixels, 2 or 3 convolutions each.
    pixels = [*2 * [256], *2 * [64], *3 * [16], *3 * [4], *3 * [1]]
    macs = sum(p * 9 * i * o for p, (i, o) in zip(pixels, pairs, strict=True)) + 512 * 512
    assert (parameters, macs) == (14_981_568, 78_561_280)
    assert count_parameters(model) == parameters
    assert count_macs(model, torch.zeros(1, 3, 16, 16)) == macs


@pytest.mark.parametrize(("side", "pools"), [(1, 0), (3, 1), (16, 4), (32, 5), (64, 5)])
def test_vgg_pools_while_two_pixels_are_left(side, pools):
    model = build_feature_model("vgg11", in_channels=1, image_size=(side, side), embedding_size=2, width=TINY)
    assert sum(isinstance(m, nn.MaxPool2d) for m in model.modules()) == pools
    assert any(isinstance(m, nn.AdaptiveAvgPool2d) for m in model.modules()) == (side == 64)


def test_depths_have_their_number_of_convolutions():
    for depth in (11, 16):
        model = build_feature_model(f"vgg{depth}", in_channels=1, image_size=(4, 4), embedding_size=2, width=TINY)
        assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == depth - 3


def test_width_scales_every_hidden_layer():
    model = build_feature_model("cnn", in_channels=3, image_size=(8, 8), embedding_size=7, width=0.1)
    assert [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)] == [3, 6, 13]
    assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 7)
    narrow = build_feature_model("vgg16", in_channels=3, image_size=(8, 8), embedding_size=7, width=1e-6)
    assert {m.out_channels for m in narrow.modules() if isinstance(m, nn.Conv2d)} == {1}


def test_activations_keep_their_scale_through_vgg16():
    torch.manual_seed(0)
    model = build_feature_model(
        "vgg16", in_channels=3, image_size=(32, 32), embedding_size=64, width=0.5, batch_norm=False
    )
    features = model.features(torch.randn(8, 3, 32, 32))
    assert 0.005 < features.std().item() < 5


def test_mlp_without_hidden_layers_is_logistic_regression():
    model = MLP(6, (), 3)
    assert [type(m) for m in model.modules() if not list(m.children())] == [nn.Sequential, nn.Linear]
    features = torch.randn(2, 6)
    torch.testing.assert_close(model(features), features @ model.output.weight.T + model.output.bias)


def test_mlp_of_three_layers():
    model = MLP(6, (5, 4), 3)
    assert model(torch.randn(2, 6)).shape == (2, 3)
    assert count_parameters(model) == 6 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3
    assert sum(isinstance(m, nn.ReLU) for m in model.modules()) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "vgg13"}, ("", "'vgg13'")),
        ({"in_channels": 0}, ("features", "[0, 16, 16]")),
        ({"image_size": (16, 0)}, ("features", "[3, 16, 0]")),
        ({"embedding_size": 0}, ("embedding_size", "size")),
        ({"width": 0.0}, ("width", "width")),
        ({"width": float("nan")}, ("width", "width")),
    ],
)
def test_refuses_what_cannot_be_built(change, message):
    arguments = {"kind": "cnn", "in_channels": 3, "image_size": (16, 16), "embedding_size": 8} | change
    with refused(*message):
        build_feature_model(arguments.pop("kind"), **arguments)


def test_refuses_empty_layers():
    refuses("MLP", lambda: MLP(4, (0,), 2), "least")


@pytest.mark.parametrize("batch_norm", [True, False])
def test_pooling_before_the_relu_gives_the_bits_of_the_usual_order(batch_norm: bool):
    torch.manual_seed(0)
    model = build_feature_model(
        "vgg11", in_channels=3, image_size=(16, 16), embedding_size=5, width=TINY, batch_norm=batch_norm
    )
    layers = list(model.features)
    for i in [i for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]:
        layers[i : i + 2] = layers[i : i + 2][::-1]
        assert isinstance(layers[i], nn.ReLU)
    usual = nn.Sequential(*layers, nn.Flatten(), model.embedding)
    seen = []
    for form in (model, usual):
        x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1), requires_grad=True)
        model.zero_grad()
        y = form(x)
        y.square().sum().backward()
        seen.append([y.detach(), x.grad, *(p.grad for p in model.parameters())])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*seen, strict=True))
