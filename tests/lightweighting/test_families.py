"""Models of every family are pruned exactly, and what is not pruned is named."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from shorthand import at_every_run, masked_copy, release
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models as vision

from vfl.base.macs import count_macs
from vfl.compression.attention import put_twin
from vfl.compression.pruning import StructuredPruner
from vfl.core import feature_models
from vfl.core.export_model import export_model

IMAGE = (3, 32, 32)
WIDTH, HEADS, TOKENS = 16, 4, 6


class Encoder(nn.Module):
    """PyTorch's own transformer, with a projection of its tokens before it."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, **options)  # pyright: ignore
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.tokens, self.embedding = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(self.encoder(self.tokens(x)).mean(1))


class Block(nn.Module):
    """A vision transformer's block as timm writes it; ``own`` says where attention takes its width from."""

    def __init__(self, *, own: bool, gated: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.own, self.gated = HEADS, WIDTH // HEADS, own, gated
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 40), nn.Linear(20 if gated else 40, WIDTH)
        self.scale1, self.scale2 = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.scale1 * self.proj(mixed.reshape(batch, tokens, -1 if self.own else width))
        hidden = self.fc1(self.norm2(x))
        hidden = functional.glu(hidden) if self.gated is None else self._hidden(hidden)
        return x + self.scale2 * self.fc2(hidden)

    def _hidden(self, hidden: Tensor) -> Tensor:
        if not self.gated:
            return functional.gelu(hidden)
        gate, value = hidden.chunk(2, dim=-1)
        return functional.silu(gate) * value


class Vision(nn.Module):
    """Patches, a class token, positions, blocks."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 17, WIDTH))
        self.blocks = nn.Sequential(Block(**options), Block(**options))
        self.norm, self.embedding = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(images.shape[0], -1, -1), patches], dim=1) + self.positions
        return self.embedding(self.norm(self.blocks(x))[:, 0])


class Table(nn.Module):
    """An FT-Transformer: a token for each number of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(TOKENS, WIDTH)), nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.token = nn.Parameter(torch.randn(WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2, self.embedding = nn.Linear(WIDTH, 44), nn.Linear(22, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, row: Tensor) -> Tensor:
        tokens = row[..., None] * self.weight + self.bias
        x = torch.cat([self.token.expand(row.shape[0], 1, -1), tokens], dim=1)
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed)[0]
        gate, value = self.fc1(self.norm2(x)).chunk(2, -1)
        x = x + self.fc2(gate.relu() * value)
        return self.embedding(x[:, 0].relu())


class Mixer(nn.Module):
    """An MLP-Mixer's block: perceptrons over tokens, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.embedding = nn.Conv2d(3, WIDTH, 8, 8), nn.Linear(WIDTH, 3)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.tokens = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return self.embedding((x + self.channels(self.norm2(x))).mean(1))


class Series(nn.Module):
    """A recurrent layer between two convolutions over time."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(5, 12, 3, padding=1), nn.InstanceNorm1d(12, affine=True)
        self.rnn, self.hidden, self.embedding = kind(12, 10, batch_first=True), nn.Linear(10, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x.transpose(1, 2))).relu().transpose(1, 2)
        return self.embedding(self.hidden(self.rnn(h)[0][:, -1]).relu())


class Tied(nn.Module):
    """Two layers with the same weight, and two that read the same values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b = nn.Linear(5, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.b.weight, self.embedding = self.a.weight, nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(self.b(self.a(self.first(x[:, 0]).relu()).relu()).relu())


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.PReLU(12), nn.Conv2d(12, 12, 3, groups=4), nn.GroupNorm(12, 12),
        nn.ConvTranspose2d(12, 8, 2, stride=2), nn.InstanceNorm2d(8, affine=True), nn.PReLU(),
        nn.Conv2d(8, 6, 3, padding_mode="reflect", padding=1), nn.GroupNorm(3, 6), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def volumes() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 1)), nn.Conv3d(3, 8, (1, 3, 3)), nn.BatchNorm3d(8), nn.ReLU(),
        nn.ConvTranspose3d(8, 6, (1, 2, 2)), nn.AdaptiveMaxPool3d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def torchvision(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        aux = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
        with warnings.catch_warnings(action="ignore"):  # of weights' initialization
            return getattr(vision, name)(weights=None, num_classes=7, **aux)

    return make


def swin(**options: object) -> nn.Module:
    with warnings.catch_warnings(action="ignore"):  # of meshgrid
        return vision.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=7, **options)  # pyright: ignore


def convnext() -> nn.Module:
    blocks = [vision.convnext.CNBlockConfig(16, 32, 2), vision.convnext.CNBlockConfig(32, None, 1)]
    return vision.ConvNeXt(blocks, num_classes=7)


def maxvit() -> nn.Module:
    return vision.MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, 0.2, num_classes=7)


ROWS = (TOKENS, 5)
FAMILIES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], set[str]]] = {
    "encoder": (Encoder, ROWS, {"encoder.layers.0.self_attn.in_proj_weight", "encoder.layers.1.linear1"}),
    "encoder_norm_first": (lambda: Encoder(norm_first=True), ROWS, {"encoder.layers.0.self_attn.in_proj_weight"}),
    "vit": (lambda: Vision(own=True), IMAGE, {"blocks.0.qkv", "blocks.1.fc1"}),
    "vit_of_fixed_width": (lambda: Vision(own=False), IMAGE, {"blocks.0.fc1", "blocks.1.fc1"}),
    "gated": (lambda: Vision(own=True, gated=True), IMAGE, {"blocks.0.qkv", "blocks.1.fc1"}),
    "ft_transformer": (Table, (TOKENS,), {"attention.in_proj_weight", "fc1"}),
    "mixer": (Mixer, IMAGE, {"tokens.0", "channels.0"}),
    "lstm": (lambda: Series(nn.LSTM), ROWS, {"hidden"}),
    "gru": (lambda: Series(nn.GRU), ROWS, {"hidden"}),
    "tied": (Tied, ROWS, {"first"}),
    "convolutions": (convolutions, IMAGE, {"2", "4", "7"}),
    "swin": (swin, (3, 36, 36), {"features.1.0.attn.qkv", "features.1.1.mlp.0"}),
    "swin_v2": (
        lambda: swin(
            block=vision.swin_transformer.SwinTransformerBlockV2,
            downsample_layer=vision.swin_transformer.PatchMergingV2,
        ),
        IMAGE,
        {"features.1.0.attn.qkv", "features.1.0.attn.cpb_mlp.2"},
    ),
    "convnext": (convnext, (3, 64, 64), {"features.1.0.block.3"}),
    "maxvit": (maxvit, (3, 64, 64), {"blocks.0.layers.0.layers.window_attention.attn_layer.1.to_qkv"}),
    "torchvision_vit": (
        lambda: vision.VisionTransformer(32, 8, 2, 4, 16, 32, num_classes=7),
        IMAGE,
        {"encoder.layers.encoder_layer_0.self_attention.in_proj_weight"},
    ),
    "volumes": (volumes, IMAGE, {"1", "4"}),
}
"""Models, a sample's shape, and some layers that must be pruned."""
VISION = {
    "regnet_y_400mf": {"trunk_output.block1.block1-0.f.b.0"},
    "shufflenet_v2_x0_5": {"stage2.0.branch2.0"},
    "mobilenet_v3_small": {"features.1.block.0.0"},
    "squeezenet1_1": {"features.0"},
}
VISION_AT_RELEASE = {
    "convnext_tiny": {"features.1.0.block.3"},
    "swin_t": {"features.1.0.attn.qkv", "features.1.0.mlp.0"},
    "vit_b_32": {"encoder.layers.encoder_layer_0.self_attention.in_proj_weight"},
    "swin_v2_t": {"features.1.0.attn.qkv", "features.1.0.attn.cpb_mlp.2"},
    "resnext50_32x4d": {"layer1.0.conv2"},
    "resnet18": {"conv1"},
    "densenet121": {"features.conv0"},
    "efficientnet_b0": {"features.0.0"},
    "efficientnet_v2_s": {"features.0.0"},
    "mnasnet0_5": {"layers.0"},
    "googlenet": {"conv1.conv"},
    "inception_v3": {"Conv2d_1a_3x3.conv"},
    "maxvit_t": {"blocks.0.layers.0.layers.window_attention.attn_layer.1.to_qkv"},
}
SIZES = {"vit_b_32": 224, "maxvit_t": 224, "inception_v3": 96}
for name, layers in (VISION | VISION_AT_RELEASE).items():
    FAMILIES[name] = torchvision(name), (3, SIZES.get(name, 32), SIZES.get(name, 32)), layers


@torch.no_grad()
def drawn(model: nn.Module) -> nn.Module:
    """In double precision, with a value of its own in every entry of every parameter and statistic."""
    for module in model.double().eval().modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if isinstance(tensor, nn.Parameter) or name.startswith("running"):
                tensor.add_(torch.rand_like(tensor), alpha=0.01)
    return model


CONTRACT = ["encoder", "vit", "gated", "ft_transformer", "mixer", "swin", "maxvit", "convnext"]
AT_EVERY_RUN = {"encoder", "vit", "gated", "ft_transformer", "lstm", "tied", "convolutions", "swin_v2", "squeezenet1_1"}
KINDS = [kind if kind in AT_EVERY_RUN else release(kind) for kind in FAMILIES]


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_is_pruned_exactly_and_costs_less(kind: str):
    torch.manual_seed(0)
    make, shape, layers = FAMILIES[kind]
    model = drawn(make())
    dense, inputs = copy.deepcopy(model), torch.rand(2, *shape, dtype=torch.float64)
    pruner = StructuredPruner(model, inputs)
    assert layers <= pruner.original_widths.keys()
    assert pruner.prune_to(0.5)
    for name, kept in pruner.widths().items():  # half, to the nearest of three units or more
        assert abs(2 * kept - pruner.original_widths[name]) <= pruner.original_widths[name] / 3, name
    with torch.no_grad():
        expected, got = masked_copy(dense, model)(inputs), model(inputs)
    torch.testing.assert_close(got, expected, atol=1e-11 * float(expected.abs().max()), rtol=1e-11)
    assert count_macs(model, inputs) < count_macs(dense, inputs)
    assert sum(pruner.whole_macs.values()) < count_macs(dense, inputs)


@pytest.mark.parametrize("kind", at_every_run(CONTRACT, "encoder", "gated", "convnext"))
@pytest.mark.parametrize("exported", [False, release(True)])
@pytest.mark.filterwarnings("ignore")  # the exporters' own
def test_every_family_keeps_the_contract_with_heads_pruned(kind: str, exported: bool, monkeypatch: pytest.MonkeyPatch):
    """Trained and pruned in turns with the optimizer's state, moved to another copy, and exported."""
    if not exported:
        monkeypatch.setattr(feature_models, "_export", lambda model, inputs: None)
    torch.manual_seed(0)
    make, shape, _ = FAMILIES[kind]
    feature_models.check_feature_model(make(), torch.randn(3, *shape))


@pytest.mark.parametrize("kind", ["encoder", "vit", "gated", "ft_transformer", "swin", "swin_v2", "maxvit", "convnext"])
@pytest.mark.filterwarnings("ignore")  # the exporters' own
@pytest.mark.release
def test_onnx_with_pruned_heads_differs_by_rounding_only(kind: str, tmp_path: Path):
    torch.manual_seed(0)
    make, shape, _ = FAMILIES[kind]
    model, inputs = drawn(make()).float(), torch.rand(3, *shape)
    assert StructuredPruner(model, inputs).prune_to(0.5)
    with torch.inference_mode():
        largest = max(1.0, float(model(inputs).abs().max()))
    exported = export_model(model, (inputs,), tmp_path, "pruned")
    assert max(exported.differences.values()) <= 1e-6 * largest


def test_a_twin_of_attention_has_its_bits_and_fewer_heads_are_pruned_by_hand():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 4, batch_first=True).double()
    tokens = torch.randn(2, 5, 8, dtype=torch.float64)
    twin = copy.deepcopy(attention)
    put_twin(twin)
    for need_weights in (False, True):
        expected, got = (each(tokens, tokens, tokens, need_weights=need_weights) for each in (attention, twin))
        assert torch.equal(expected[0], got[0])
    model = Attending(attention)
    pruner = StructuredPruner(model, tokens)
    with torch.no_grad():
        attention.in_proj_bias.uniform_()
        by_head = attention.in_proj_weight.abs().sum(1).view(3, 4, 2).sum((0, 2))
        left = sorted(by_head.argsort()[2:].tolist())
        q, k, v = (tokens @ attention.in_proj_weight.T + attention.in_proj_bias).view(2, 5, 3, 4, 2).unbind(2)
        mixed = torch.zeros(2, 5, 4, 2, dtype=torch.float64)
        for head in left:
            scores = (q[:, :, head] @ k[:, :, head].transpose(1, 2) / 2**0.5).softmax(-1)
            mixed[:, :, head] = scores @ v[:, :, head]
        expected = attention.out_proj(mixed.reshape(2, 5, 8))
    pruner.prune_to(0.5)
    assert attention.num_heads == 2
    torch.testing.assert_close(model(tokens), expected, atol=1e-12, rtol=1e-12)
    model.eval().requires_grad_(False)  # where PyTorch would take its fused kernel
    torch.testing.assert_close(model(tokens), expected, atol=1e-12, rtol=1e-12)


class Attending(nn.Module):
    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]
