import pytest
import torch
from refusals import refused
from shorthand import IMAGE_CLASSIFIERS, build_classifier, release
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, relu
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import resnet18 as torchvision_resnet18

from vfl.base.macs import count_macs, count_parameters

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)

# Published or well known, but for those whose sum is written out: cnn_six_layer and char_lstm.
SIX_LAYER = sum(9 * i * o + o for i, o in [(1, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]) + 1290
CHAR_LSTM = 80 * 8 + 4 * 128 * (8 + 128 + 2) + 80 * 128 + 80


@pytest.mark.parametrize(
    ("kind", "input_shape", "classes", "parameters"),
    [
        ("logistic", MNIST, 10, 7_850),
        ("mlp", MNIST, 10, 784 * 400 + 400 + 400 * 10 + 10),
        ("lenet", MNIST, 10, 61_706),
        ("lenet", CIFAR, 10, 62_006),
        ("lenet", MNIST, 62, 61_706 + 52 * 85),
        ("cnn_tsfl", MNIST, 10, 10 * 26 + 20 * 251 + 320 * 10 + 10),
        ("cnn_six_layer", MNIST, 10, SIX_LAYER),
        ("cnn_mcmahan", MNIST, 10, 1_663_370),
        ("vgg11", CIFAR, 10, 9_225_610),
        ("resnet18", CIFAR, 10, 11_173_962),
        ("resnet18", CIFAR, 100, 11_220_132),
        ("resnet18_gn", CIFAR, 10, 11_173_962),
        ("char_lstm", (80,), 80, CHAR_LSTM),
    ],
)
def test_models_have_the_published_number_of_parameters(kind, input_shape, classes, parameters):
    assert count_parameters(build_classifier(kind, input_shape=input_shape, classes=classes)) == parameters


def test_vgg11_with_batch_norm_has_two_parameters_per_channel_for_a_bias():
    plain, normalized = (build_classifier(kind, input_shape=CIFAR, classes=10) for kind in ("vgg11", "vgg11_bn"))
    assert count_parameters(normalized) - count_parameters(plain) == 64 + 128 + 2 * 256 + 4 * 512


@pytest.mark.parametrize("kind", IMAGE_CLASSIFIERS)
@pytest.mark.parametrize("input_shape", [release(MNIST), release(CIFAR), (2, 24, 17)])
def test_logits_of_any_images_fit_the_labels(kind, input_shape):
    torch.manual_seed(0)
    model = build_classifier(kind, input_shape=input_shape, classes=20)
    logits_BL = model(torch.randn(3, *input_shape))
    assert logits_BL.shape == (3, 20)
    assert (logits_BL < 0).any(), "no ReLU after the logits"
    cross_entropy(logits_BL, torch.tensor([0, 19, 3])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("kind", IMAGE_CLASSIFIERS)
@pytest.mark.parametrize("input_shape", [release(MNIST), CIFAR])
def test_multiply_accumulates_are_half_of_torchs_own_count(kind, input_shape):
    model = build_classifier(kind, input_shape=input_shape, classes=10)
    counted = count_macs(model, torch.zeros(2, *input_shape))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval().to("meta")(torch.zeros(1, *input_shape, device="meta"))
    assert 2 * counted == counter.get_total_flops() > 0


@pytest.mark.parametrize(("label_shape", "positions"), [((), 1), ((80,), 80)])
def test_every_step_of_the_char_lstm_counts(label_shape, positions):
    model = build_classifier("char_lstm", input_shape=(80,), classes=65, label_shape=label_shape)
    macs = 80 * 4 * 128 * (8 + 128) + positions * 128 * 65
    assert count_macs(model, torch.zeros(2, 80, dtype=torch.int64)) == macs


@pytest.mark.parametrize(("kind", "depends"), [("resnet18", True), ("resnet18_gn", False)])
def test_only_batch_norm_makes_samples_depend_on_each_other(kind, depends):
    torch.manual_seed(0)
    model = build_classifier(kind, input_shape=(1, 8, 8), classes=3).train()
    images = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        together, fewer = model(images)[:2], model(images[:2])
    assert torch.allclose(together, fewer, atol=1e-5) is not depends
    assert any("running" in name for name, _ in model.named_buffers()) is depends


def test_resnet18_is_torchvisions_with_another_stem():
    torch.manual_seed(0)
    ours = build_classifier("resnet18", input_shape=CIFAR, classes=10).eval()
    theirs = torchvision_resnet18(num_classes=10).eval()
    theirs.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.maxpool = nn.MaxPool2d(1)  # of one pixel: changes nothing
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    images = torch.randn(2, *CIFAR)
    torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.parametrize(("kind", "paddings"), [("lenet", (2, 0)), ("cnn_tsfl", (0, 0)), ("cnn_mcmahan", (2, 2))])
def test_pooled_cnns_are_what_is_written_out_here(kind, paddings):
    torch.manual_seed(0)
    model = build_classifier(kind, input_shape=MNIST, classes=10)
    images = torch.randn(2, *MNIST)
    weights = list(model.parameters())
    values = images
    for padding in paddings:
        values = relu(conv2d(values, weights.pop(0), weights.pop(0), padding=padding))
        values = values.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).amax((-1, -3))  # the largest of 2x2 pixels
    values = values.flatten(1)
    while weights:
        values = values @ weights.pop(0).T + weights.pop(0)
        values = relu(values) if weights else values
    torch.testing.assert_close(model(images), values)


def test_group_norm_has_wu_and_hes_32_groups_in_every_layer():
    model = build_classifier("resnet18_gn", input_shape=CIFAR, classes=10)
    groups = [module.num_groups for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert groups == [32] * 20  # stem, two in each of eight blocks, three shortcuts


def test_logistic_regression_is_one_linear_map_of_the_pixels():
    model = build_classifier("logistic", input_shape=(2, 3, 4), classes=5)
    images = torch.randn(6, 2, 3, 4)
    (weight, bias) = model.parameters()
    torch.testing.assert_close(model(images), images.flatten(1) @ weight.T + bias)


def test_char_lstm_predicts_after_the_last_or_after_every_character():
    torch.manual_seed(0)
    last, every = (
        build_classifier("char_lstm", input_shape=(6,), classes=11, label_shape=shape) for shape in ((), (6,))
    )
    every.load_state_dict(last.state_dict())
    characters_BT = torch.randint(11, (3, 6))
    logits_BVT = every(characters_BT)
    assert logits_BVT.shape == (3, 11, 6)
    torch.testing.assert_close(logits_BVT[:, :, -1], last(characters_BT))
    assert cross_entropy(logits_BVT, characters_BT).isfinite()
    changed = characters_BT.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    torch.testing.assert_close(every(changed)[:, :, :4], logits_BVT[:, :, :4])  # nothing looks ahead
    for position in (4, 5):
        assert not torch.allclose(every(changed)[:, :, position], logits_BVT[:, :, position])  # but it is remembered
    torch.testing.assert_close(every(characters_BT[1:]), logits_BVT[1:])  # samples are apart


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "lenet5"}, ("", "'lenet5'", "'lenet'")),
        ({"classes": 0}, ("classifier", "least")),
        ({"input_shape": (1, 0, 28)}, ("classifier", "least")),
        ({"input_shape": (80,)}, ("classifier", "[80]")),
        ({"kind": "char_lstm"}, ("classifier", "char_lstm", "[1, 28, 28]")),
        ({"kind": "cnn_tsfl", "input_shape": (1, 15, 28)}, ("input_shape", "15", "28")),
        ({"kind": "cnn_mcmahan", "input_shape": (1, 8, 3)}, ("input_shape", "pixels")),
    ],
)
def test_refuses_what_cannot_be_built(change, message):
    arguments = {"kind": "lenet", "input_shape": MNIST, "classes": 10} | change
    with refused(*message):
        build_classifier(arguments.pop("kind"), **arguments)


def test_lenet_takes_small_images_as_it_pads_them():
    assert build_classifier("lenet", input_shape=(1, 8, 5), classes=2)(torch.zeros(1, 1, 8, 5)).shape == (1, 2)
