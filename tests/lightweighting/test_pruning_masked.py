"""Pruning against its definition, the mask form theta * m, and against Torch-Pruning."""

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch_pruning
import torchvision
from shorthand import build_feature_model, release
from torch import Tensor, nn

from vfl.compression.pruning import StructuredPruner, kept_width
from vfl.config import OptimizerConfig
from vfl.models.features import ModelSpec, TableFeatures
from vfl.models.table import TableMLP
from vfl.runs.optim import build_optimizer, optimizer_state

IMAGES = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Residual(nn.Module):
    """conv0 and conv2 are added, so they share their channels."""

    coupled = (("conv0", "conv2"), ("conv1",))

    def __init__(self):
        super().__init__()
        self.conv0, self.bn0 = nn.Conv2d(2, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10)
        self.conv1, self.bn1 = nn.Conv2d(10, 7, 3, padding=1), nn.BatchNorm2d(7)
        self.conv2, self.bn2 = nn.Conv2d(7, 10, 1), nn.BatchNorm2d(10)
        self.embedding = nn.Linear(10, 4)

    def forward(self, x):
        x = self.bn0(self.conv0(x)).relu()
        x = (x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))).relu()
        return self.embedding(x.mean(dim=(2, 3)))


class Depthwise(nn.Module):
    """conv1 works on each channel of conv0; the image is flattened with several pixels left."""

    coupled = (("conv0", "conv1"), ("conv2",))

    def __init__(self):
        super().__init__()
        self.conv0, self.bn0 = nn.Conv2d(2, 9, 3, stride=2), nn.BatchNorm2d(9)
        self.conv1, self.bn1 = nn.Conv2d(9, 9, 3, padding=1, groups=9), nn.BatchNorm2d(9)
        self.conv2, self.bn2 = nn.Conv2d(9, 6, 1), nn.BatchNorm2d(6)
        self.embedding = nn.Linear(6 * 9, 4)

    def forward(self, x):
        x = self.bn1(self.conv1(self.bn0(self.conv0(x)).relu())).relu()
        return self.embedding(self.bn2(self.conv2(x)).relu().flatten(1))


class Concatenated(nn.Module):
    """Two branches side by side, without normalization, then a hidden linear layer."""

    coupled = (("conv0",), ("conv1",), ("conv2",), ("hidden",))

    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(2, 5, 3, stride=3)
        self.conv1 = nn.Conv2d(2, 8, 3, stride=3)
        self.conv2 = nn.Conv2d(13, 6, 1)
        self.hidden = nn.Linear(6 * 4, 11)
        self.embedding = nn.Linear(11, 4)

    def branches(self, x):
        return torch.cat([self.conv0(x), self.conv1(x)], dim=1).relu()

    def forward(self, x):
        x = self.conv2(self.branches(x)).relu().flatten(1)
        return self.embedding(self.hidden(x).relu())


class Tabular(TableMLP):
    """Two columns of categories behind the numbers: their embeddings keep their width."""

    def __init__(self):
        super().__init__(ModelSpec(TableFeatures("table", (128,), (2, 2)), embedding_size=4, width=0.1))

    def forward(self, rows):
        numbers, codes = rows.flatten(1).split((126, 2), dim=1)
        return super().forward(torch.cat([numbers, (codes > 0).to(rows)], dim=1))


def small(kind, width=0.1, batch_norm=True):
    return build_feature_model(
        kind, in_channels=2, image_size=(8, 8), embedding_size=4, width=width, batch_norm=batch_norm
    )


def randomized(model):
    """Double precision, with normalization layers in no special state."""
    for module in model.double().modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor in (*module.parameters(), module.running_mean, module.running_var):
                assert tensor is not None
                nn.init.uniform_(tensor, 0.5, 1.5)
    return model


def groups_and_norms(model):
    """Coupled layers, and the normalization behind each layer, for test nets (by name) and plain ones (by order)."""
    modules = {name: m for name, m in model.named_modules() if not list(m.children())}
    if hasattr(model, "coupled"):
        return model.coupled, {f"conv{i}": modules[f"bn{i}"] for i in range(3) if f"bn{i}" in modules}
    layers = [name for name, m in modules.items() if isinstance(m, nn.Conv2d | nn.Linear) and name != "embedding"]
    order = list(modules)
    behind = {name: modules[order[order.index(name) + 1]] for name in layers}
    norms = {n: m for n, m in behind.items() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)}
    return [(name,) for name in layers], norms


@torch.no_grad()
def mask_parameters(model, alpha):
    """The definition of pruning: zero the filters of lowest L1 norm; returns the kept ones of every layer."""
    groups, norms = groups_and_norms(model)
    kept = {}
    for names in groups:
        layers = [model.get_submodule(name) for name in names]
        importance = torch.stack([layer.weight.abs().flatten(1).sum(dim=1) for layer in layers]).sum(dim=0)
        removed = importance.argsort(stable=True)[: len(importance) - kept_width(alpha, len(importance))]
        for name, layer in zip(names, layers, strict=True):
            for masked in (layer, norms.get(name)):
                for parameter in masked.parameters() if masked is not None else ():
                    parameter[removed] = 0
            kept[name] = sorted(set(range(len(importance))) - set(removed.tolist()))
    return kept


NETS = [Residual, Depthwise, Concatenated, Tabular, *(lambda k=k: small(k) for k in ("vgg11", "cnn", "mlp"))]


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.95])
def test_pruned_equals_masked(net, alpha):
    torch.manual_seed(0)
    model = randomized(net())
    masked = copy.deepcopy(model)
    kept = mask_parameters(masked, alpha)
    pruner = StructuredPruner(model, IMAGES)
    assert pruner.prune_to(alpha)
    assert pruner.widths() == {name: len(k) for name, k in kept.items()}
    torch.testing.assert_close(model.eval()(IMAGES), masked.eval()(IMAGES), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("net", NETS)
def test_group_importance_prunes_to_the_same_widths_and_trains(net):
    model = net()
    by_filter = StructuredPruner(copy.deepcopy(model), IMAGES.float())
    by_filter.prune_to(0.6)
    pruner = StructuredPruner(model, IMAGES.float(), importance="group")
    pruner.prune_to(0.3)
    pruner.prune_to(0.6)
    assert pruner.widths() == by_filter.widths()
    model(IMAGES.float()).sum().backward()


@pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    ],
)
def test_a_step_with_carried_state_equals_the_step_of_the_masked_model(optimizer_of):
    torch.manual_seed(0)
    model = randomized(small("cnn"))
    optimizer = optimizer_of(model.parameters())
    train(model, optimizer, steps=2)
    masked = copy.deepcopy(model)
    masked_optimizer = optimizer_of(masked.parameters())
    masked_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    kept = list(mask_parameters(masked, 0.4).values())

    StructuredPruner(model, IMAGES).prune_to(0.4, optimizer)
    train(model, optimizer, steps=1)
    train(masked, masked_optimizer, steps=1)

    outputs = [*kept, range(4)]
    inputs = [range(2), *kept]
    for index, (pruned, dense) in enumerate(zip(model.parameters(), masked.parameters(), strict=True)):
        layer = index // 3  # a convolution and the weight and bias of its BatchNorm, three times; the embedding
        expected = dense[list(outputs[layer])]
        if dense.dim() > 1:
            expected = expected[:, list(inputs[layer])]
        torch.testing.assert_close(pruned, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_both_moments_of_adam_are_carried_exactly(kind):
    """What is kept is bit for bit what it was; embeddings of categories keep theirs whole."""
    torch.manual_seed(0)
    model = randomized(Tabular())
    optimizer = build_optimizer(model, OptimizerConfig(kind=kind, learning_rate=0.01))
    train(model, optimizer, steps=3)
    before = optimizer_state(optimizer, model)
    kept = mask_parameters(copy.deepcopy(model), 0.4)

    StructuredPruner(model, IMAGES).prune_to(0.4, optimizer)

    first, second = kept["hidden.0"], kept["hidden.3"]
    rows = {"hidden.0.weight": first, "hidden.1.weight": first, "hidden.1.bias": first}
    rows |= {"hidden.3.weight": second, "hidden.4.weight": second, "hidden.4.bias": second}
    columns = {"hidden.3.weight": first, "embedding.weight": second}
    after = optimizer_state(optimizer, model)
    assert after.keys() == before.keys()
    for key, value in after.items():
        moment, _, name = key.partition("/")
        expected = before[key] if moment == "step" else before[key][rows.get(name, slice(None))]
        expected = expected[:, columns[name]] if name in columns and moment != "step" else expected
        assert torch.equal(value, expected), key
        assert moment == "step" or value.abs().sum() > 0


def train(model, optimizer, steps):
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(IMAGES).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(("alpha", "width", "kept"), [(0.43, 50, 28), (0.81, 50, 10), (0.95, 50, 2), (0.6, 64, 26)])
def test_halves_of_a_width_are_met_in_decimal_and_go_to_the_even_number(alpha: float, width: int, kept: int) -> None:
    """(1 - 0.43) * 50 is 28.500000000000004 in floating point, and (1 - 0.81) * 50 is 9.499999999999998."""
    assert kept_width(alpha, width) == kept


tp = cast(Any, torch_pruning)
IMAGE = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def own(kind: str) -> nn.Module:
    return build_feature_model(kind, in_channels=3, image_size=(32, 32), embedding_size=8, width=0.2)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "vgg11": lambda: own("vgg11"),
    "cnn": lambda: own("cnn"),
    "mlp": lambda: own("mlp"),
    "resnet18": lambda: torchvision.models.resnet18(num_classes=8),
    "mobilenet_v3_small": lambda: torchvision.models.mobilenet_v3_small(num_classes=8),
}


@pytest.mark.parametrize("name", [*list(MODELS)[:3], *map(release, list(MODELS)[3:])])
def test_the_same_channels_leave_the_same_tensors(name: str):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    theirs = copy.deepcopy(model)
    pruner = StructuredPruner(model, (IMAGE,))
    pruner.prune_to(0.4)
    (event,) = pruner.state_dict()["history"]
    assert event["removed"]
    graph = tp.DependencyGraph().build_dependency(theirs, IMAGE)
    for layer, channels in event["removed"].items():
        module = theirs.get_submodule(layer)
        prune = graph.get_pruner_of_module(module).prune_out_channels
        graph.get_pruning_group(module, prune, list(channels)).prune()
    expected: dict[str, Tensor] = theirs.state_dict()
    assert {key: value.shape for key, value in model.state_dict().items()} == {
        key: value.shape for key, value in expected.items()
    }
    assert all(value.equal(expected[key]) for key, value in model.state_dict().items())
