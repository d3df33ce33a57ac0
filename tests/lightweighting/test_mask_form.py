"""The trial of a pruner: what its mask form would not equal stays whole, what equals it is pruned."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from shorthand import masked_copy
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models as vision

from vfl.compression.pruning import StructuredPruner
from vfl.models.features import ModelSpec, TableFeatures
from vfl.models.table import TableMLP

IMAGE, ROW = (2, 8, 8), (12,)


class Wired(nn.Module):
    """Named layers; `wiring` says what happens between them."""

    def __init__(self, wiring: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.wiring = wiring
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.wiring(self, x)


def rewired(change: Callable[[Tensor], Tensor], left: int = 16) -> Wired:
    """A hidden layer of 16 whose activations are changed before the next layer reads `left` of them."""
    return Wired(lambda m, x: m.b(change(m.a(x).relu())), a=nn.Linear(12, 16), b=nn.Linear(left, 4))


def mapped(change: Callable[[Tensor], Tensor], left: int = 16) -> Wired:
    """The same between convolutions."""
    a, b = nn.Conv2d(2, 16, 3, padding=1), nn.Conv2d(left, 6, 3, padding=1)
    return Wired(lambda m, x: m.c(m.b(change(m.a(x).relu())).relu().mean((2, 3))), a=a, b=b, c=nn.Linear(6, 4))


def shuffled(maps: Tensor) -> Tensor:
    batch, channels, *sides = maps.shape
    return maps.view(batch, 2, channels // 2, *sides).transpose(1, 2).reshape(batch, channels, *sides)


def halves_multiplied(hidden: Tensor) -> Tensor:
    left, right = hidden.chunk(2, 1)
    return left * right.sigmoid()


def attending(m: Any, x: Tensor) -> Tensor:
    tokens = x.view(len(x), 3, 4)
    q, k, v = (layer(tokens).view(len(x), 3, 2, 8).transpose(1, 2) for layer in (m.q, m.k, m.v))
    mixed = (q @ k.transpose(2, 3)).softmax(-1) @ v
    return m.c(mixed.transpose(1, 2).reshape(len(x), 48))


def two_concatenated(m: Any, x: Tensor) -> Tensor:
    a = m.a(x).relu()
    b = m.b(torch.cat([x, a], 1)).relu()
    return m.c(torch.cat([x, a, b], 1))


PERM = torch.randperm(16, generator=torch.Generator().manual_seed(0))
SCALES = torch.rand(16, generator=torch.Generator().manual_seed(0))


class Scaled(Wired):
    def __init__(self) -> None:
        super().__init__(lambda m, x: m.b(m.a(x).relu() * m.scales), a=nn.Linear(12, 16), b=nn.Linear(16, 4))
        self.register_buffer("scales", SCALES)


WRONG = {
    "input_beside_hidden": lambda: Wired(
        lambda m, x: m.b(torch.cat([x, m.a(x).relu()], 1)), a=nn.Linear(12, 16), b=nn.Linear(28, 4)
    ),
    "images_beside_hidden": lambda: Wired(
        lambda m, x: m.c(m.b(torch.cat([x, m.a(x).relu()], 1)).relu().mean((2, 3))),
        **{"a": nn.Conv2d(2, 16, 1), "b": nn.Conv2d(18, 6, 1), "c": nn.Linear(6, 4)},
    ),
    "channel_shuffle": lambda: mapped(nn.ChannelShuffle(2)),
    "channel_shuffle_by_4": lambda: mapped(nn.ChannelShuffle(4)),
    "view_transpose": lambda: mapped(shuffled),
    "view_transpose_of_a_row": lambda: rewired(shuffled),
    "permute_flatten": lambda: Wired(
        lambda m, x: m.b(m.a(x).relu().permute(0, 2, 3, 1).flatten(1)),
        **{"a": nn.Conv2d(2, 16, 3, stride=3), "b": nn.Linear(64, 4)},
    ),
    "flip": lambda: rewired(lambda h: h.flip(1)),
    "roll": lambda: rewired(lambda h: h.roll(3, 1)),
    "halves_swapped": lambda: rewired(lambda h: torch.cat([h[:, 8:], h[:, :8]], 1)),
    "maxout": lambda: rewired(lambda h: h.view(len(h), -1, 2).amax(2), 8),
    "chunk": lambda: rewired(halves_multiplied, 8),
    "pixel_shuffle": lambda: mapped(nn.PixelShuffle(2), 4),
    "linear_to_maps": lambda: Wired(
        lambda m, x: m.c(m.b(m.a(x).relu().view(-1, 16, 2, 2)).relu().mean((2, 3))),
        **{"a": nn.Linear(12, 64), "b": nn.Conv2d(16, 6, 1), "c": nn.Linear(6, 4)},
    ),
    "attention": lambda: Wired(attending, **{n: nn.Linear(4, 16) for n in "qkv"}, c=nn.Linear(48, 4)),
    "concatenated_twice": lambda: Wired(two_concatenated, a=nn.Linear(12, 16), b=nn.Linear(28, 10), c=nn.Linear(38, 4)),
    "first_slice": lambda: rewired(lambda h: h[:, :8], 8),
    "last_slice": lambda: rewired(lambda h: h[:, 8:], 8),
    "narrow_slice": lambda: Wired(lambda m, x: m.b(m.a(x).relu()[:, 1:]), a=nn.Linear(12, 4), b=nn.Linear(3, 4)),
    "index": lambda: rewired(lambda h: h[:, PERM]),
    "constant": lambda: rewired(lambda h: h * SCALES.to(h)),
    "buffer": Scaled,
    "repeat": lambda: rewired(lambda h: h.repeat(1, 2), 32),
    "split": lambda: rewired(lambda h: torch.cat(torch.split(h, [4, 12], 1)[::-1], 1)),
    "split_apart": lambda: rewired(lambda h: torch.split(h, [4, 12], 1)[1], 12),
    "layer_norm": lambda: rewired(nn.LayerNorm(16, elementwise_affine=False)),
    "group_norm": lambda: mapped(nn.GroupNorm(4, 16, affine=False)),
    "one_group": lambda: mapped(nn.GroupNorm(1, 16, affine=False)),
    "softmax": lambda: rewired(lambda h: h.softmax(1)),
    "mean_taken_off": lambda: rewired(lambda h: h - h.mean(1, keepdim=True)),
}
"""Models that could be pruned to other functions, or to none, by their wiring."""


KEPT = {"channel_shuffle", "channel_shuffle_by_4", "layer_norm", "one_group", "softmax", "mean_taken_off"}
"""Those in which a hidden layer stays whole whatever follows it."""


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_pruned_stays_whole_and_the_rest_is_exact(kind: str):
    torch.manual_seed(0)
    model = drawn(WRONG[kind]())
    dense, first = copy.deepcopy(model), next(m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    inputs = torch.randn(3, *(IMAGE if isinstance(first, nn.Conv2d) else ROW), dtype=torch.float64)
    assert model(inputs).shape == (3, 4)
    random_state = torch.get_rng_state()
    pruner, refusal = None, ""
    try:
        pruner = StructuredPruner(model, inputs)
    except ValueError as error:
        refusal = str(error)
    assert torch.equal(torch.get_rng_state(), random_state)
    if pruner is None:
        assert re.fullmatch(r"cannot prune '[abcqkv]'.*", refusal)
        return
    assert "a" not in pruner.original_widths or kind not in KEPT
    pruner.prune_to(0.4)
    expected = masked_copy(dense, model)(inputs)
    torch.testing.assert_close(model(inputs), expected, atol=1e-12 * float(expected.abs().max()), rtol=1e-12)


class Excited(nn.Module):
    """Squeeze and excitation (Hu et al. 2018), whose last activation does not map 0 to 0."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 12, 3, padding=1), nn.Conv2d(12, 6, 1)
        self.squeeze, self.excite, self.c = nn.Linear(12, 5), nn.Linear(5, 12), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        h = h * self.excite(self.squeeze(h.mean((2, 3))).relu()).sigmoid()[:, :, None, None]
        return self.c(self.b(h).relu().mean((2, 3)))


def siamese(m: Any, x: Tensor) -> Tensor:
    left, right = (m.b(m.a(half).relu()).relu() for half in x.chunk(2, 1))
    return m.c((left - right).abs())


def zeroed(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


RIGHT = {
    "squeeze_excitation": (Excited, IMAGE),
    "siamese": (lambda: Wired(siamese, a=nn.Linear(6, 9), b=nn.Linear(9, 5), c=nn.Linear(5, 4)), ROW),
    "shared": (
        lambda: Wired(
            lambda m, x: m.c(m.b(m.b(m.a(x).relu()).relu()).relu()),
            **{"a": nn.Linear(12, 9), "b": nn.Linear(9, 9), "c": nn.Linear(9, 4)},
        ),
        ROW,
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Dropout(0.5), nn.Linear(9, 4)), ROW),
    "instance_norm": (lambda: mapped(lambda h: functional.instance_norm(h)), IMAGE),
    "normed_input": (
        lambda: nn.Sequential(nn.LayerNorm(12, elementwise_affine=False), *rewired(nn.ReLU()).children()),
        ROW,
    ),
    "one_channel": (lambda: nn.Sequential(nn.Linear(12, 1), nn.ReLU(), nn.Linear(1, 4)), ROW),
    "all_weights_zero": (lambda: zeroed(rewired(nn.ReLU())), ROW),
    "logarithm_of_input": (
        lambda: Wired(lambda m, x: m.b(m.a(x.abs().log1p()).relu()), a=nn.Linear(12, 9), b=nn.Linear(9, 4)),
        ROW,
    ),
    "mobilenet_v2": (lambda: vision.mobilenet_v2(num_classes=7), (3, 32, 32)),
}


@torch.no_grad()
def drawn(model: nn.Module) -> nn.Module:
    """In double precision, frozen, with a value of its own in every entry of every parameter and statistic."""
    for module in model.double().eval().requires_grad_(False).modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if isinstance(module, nn.BatchNorm2d) and tensor.is_floating_point():
                tensor.uniform_(-0.5 if name in ("bias", "running_mean") else 0.5, 1.5)
            elif tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor), alpha=1e-3)
    return model


@pytest.mark.parametrize("kind", RIGHT)
def test_what_equals_its_mask_form_is_not_refused_and_stays_exact(kind: str):
    torch.manual_seed(0)
    make, shape = RIGHT[kind]
    model = drawn(make())
    dense, inputs = copy.deepcopy(model), torch.rand(3, *shape, dtype=torch.float64)
    random_state = torch.get_rng_state()
    pruner = StructuredPruner(model, inputs)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), dense.parameters(), strict=True))
    assert pruner.prune_to(0.4) == (kind != "one_channel")
    expected = masked_copy(dense, model)(inputs)
    torch.testing.assert_close(model(inputs), expected, atol=1e-12 * float(expected.abs().max()), rtol=1e-12)


def test_a_table_of_numbers_and_categories_is_tried_with_codes_that_it_has():
    model = TableMLP(ModelSpec(TableFeatures("table", (5,), (2, 7)), embedding_size=4, width=0.1))
    pruner = StructuredPruner(model, torch.tensor([[0.3, -1.0, 2.0, 1.0, 6.0]]))
    assert pruner.prune_to(0.5)


def test_layers_that_also_read_a_learned_token_are_pruned():
    """The token passes them once, without samples."""
    torch.manual_seed(0)
    model = drawn(
        Wired(
            lambda m, x: m.c(m.b(m.a(x).relu()).relu() + m.b(m.a(m.token.weight).relu())),
            **{"a": nn.Linear(12, 16), "b": nn.Linear(16, 8), "c": nn.Linear(8, 4), "token": nn.Embedding(1, 12)},
        )
    )
    dense, inputs = copy.deepcopy(model), torch.rand(3, *ROW, dtype=torch.float64)
    pruner = StructuredPruner(model, inputs)
    assert pruner.whole == {}
    assert pruner.prune_to(0.5)
    assert set(pruner.widths()) == {"a", "b"}
    torch.testing.assert_close(model(inputs), masked_copy(dense, model)(inputs), atol=1e-12, rtol=1e-12)
