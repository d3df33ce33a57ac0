import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shorthand import build_feature_model
from torch import Tensor, nn

from vfl.models import kernels
from vfl.models.kernels import FEW_ENTRIES, FEW_PIXELS, MANY_CHANNELS, PIXELS, VECTOR, is_narrow
from vfl.models.narrow_norm import NarrowBatchNorm2d


@pytest.fixture(autouse=True, scope="module")
def small_tensors_count():
    """Lets the tests use small tensors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "FEW_ENTRIES", 0)
        patch.setattr(kernels, "FEW_PIXELS", 0)
        yield


def images(batch: int, channels: int, height: int, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    x = 3 * torch.randn(batch, channels, height, width, dtype=torch.float64) + 5
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def pair(channels: int, dtype: torch.dtype = torch.float64) -> tuple[NarrowBatchNorm2d, nn.BatchNorm2d]:
    """Ours and PyTorch's, of the same parameters and statistics."""
    ours, theirs = NarrowBatchNorm2d(channels).to(dtype), nn.BatchNorm2d(channels).to(dtype)
    for tensor in (ours.weight, ours.bias, ours.get_buffer("running_mean"), ours.get_buffer("running_var")):
        nn.init.uniform_(tensor, 0.5, 2)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def gradients(norm: nn.Module, x: Tensor, gradient: Tensor) -> list[Tensor]:
    """Output, gradient of the input, gradients of the parameters."""
    x = x.clone().requires_grad_()
    y = norm(x)
    y.backward(gradient)
    return [y.detach(), *(t.grad for t in (x, *norm.parameters()) if t.grad is not None)]


def norm_used(y: Tensor) -> bool:
    return "NarrowBatchNorm" in type(y.grad_fn).__name__


@given(st.integers(1, 4), st.integers(1, 40), st.sampled_from([(4, 4), (2, 8), (3, 16), (8, 8)]))
def test_values_gradients_and_statistics_equal_batchnorm2d(batch: int, channels: int, side: tuple[int, int]):
    ours, theirs = pair(channels)
    for _ in range(2):
        x = images(batch, channels, *side)
        gradient = torch.randn_like(x)
        assert norm_used(ours(x)) == (channels != VECTOR)
        theirs(x)
        for mine, reference in zip(gradients(ours, x, gradient), gradients(theirs, x, gradient), strict=True):
            torch.testing.assert_close(mine, reference)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer)


def test_evaluation_is_batchnorm2ds_own():
    ours, theirs = pair(26)
    x = images(4, 26, 4, 4)
    before = copy.deepcopy(ours.state_dict())
    assert torch.equal(ours.eval()(x), theirs.eval()(x))
    assert all(torch.equal(before[name], value) for name, value in ours.state_dict().items())


@pytest.mark.parametrize(
    "x",
    [
        images(4, VECTOR, 4, 4),
        images(4, MANY_CHANNELS + 1, 4, 4),
        images(PIXELS + 1, 26, 1, 3),
        images(4, 26, 4, 4).contiguous(),
    ],
    ids=["full vectors", "many channels", "no whole groups of pixels", "other layout"],
)
def test_what_is_not_narrow_goes_through_batchnorm2d(x: Tensor):
    assert not is_narrow(x)
    ours, theirs = pair(x.shape[1])
    y = ours(x)
    assert not norm_used(y)
    assert torch.equal(y, theirs(x))


@pytest.mark.parametrize(("dtype", "channels"), [(torch.float32, 26), (torch.bfloat16, 26), (torch.bfloat16, 13)])
def test_rounding_is_no_worse_than_batchnorm2ds(dtype: torch.dtype, channels: int):
    # A mean of fifty standard deviations, where sums of squares would cancel.
    x = images(8, channels, 16, 16, dtype) + 150
    # Along the images in part, of which the gradient of the input has nothing: large terms cancel there.
    gradient = torch.randn_like(x) + (x - 155) / 3
    ours, theirs = pair(channels, torch.float32)
    exact = nn.BatchNorm2d(channels).double()
    exact.load_state_dict(theirs.state_dict())
    reference = gradients(exact, x.double(), gradient.double())
    seen, expected = gradients(ours, x, gradient), gradients(theirs, x, gradient)
    assert [t.dtype for t in seen] == [t.dtype for t in expected] == [dtype, dtype, torch.float32, torch.float32]
    for mine, library, true in zip(seen, expected, reference, strict=True):
        floor = torch.finfo(mine.dtype).eps * true.abs().max()
        assert (mine - true).abs().max() <= 2 * (library - true).abs().max() + floor


def test_layout_stays_channels_last_whatever_comes_back():
    ours, _ = pair(26)
    x = images(4, 26, 4, 4)
    for gradient in (torch.randn_like(x), torch.randn_like(x).contiguous(), torch.ones(1).double().expand(x.shape)):
        y, grad_input, *_ = gradients(ours, x, gradient)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert grad_input.is_contiguous(memory_format=torch.channels_last)


def test_vgg16_goes_through_it_where_its_channels_are_few_in_either_layout():
    model = build_feature_model("vgg16", in_channels=3, image_size=(16, 16), embedding_size=8, width=0.4)
    used: list[int] = []

    def note(norm: NarrowBatchNorm2d, _inputs: object, y: Tensor) -> None:
        used.append(norm.num_features if norm_used(y) else 0)

    for module in model.modules():
        if isinstance(module, NarrowBatchNorm2d):
            module.register_forward_hook(note)  # pyright: ignore[reportArgumentType]  # its stub takes any module
    for images_BCHW in (x := torch.randn(16, 3, 16, 16), x.contiguous(memory_format=torch.channels_last)):
        used.clear()
        model(images_BCHW)
        assert used == [26, 26, 51, 51, *[0] * 9]


def test_small_tensors_are_left_to_batchnorm2d():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "FEW_ENTRIES", FEW_ENTRIES)
        assert is_narrow(images(256, 26, 16, 16))
        assert not is_narrow(images(16, 26, 16, 16))


def test_small_maps_in_bfloat16_are_left_to_batchnorm2d():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "FEW_PIXELS", FEW_PIXELS)
        assert is_narrow(images(256, 26, 16, 16, torch.bfloat16))
        assert not is_narrow(images(256, 26, 8, 8, torch.bfloat16))
        assert is_narrow(images(256, 26, 8, 8, torch.float32))
