"""What our pruner takes out of a model equals what Torch-Pruning takes out, where both can prune it."""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# Torch-Pruning ships no stubs.

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch_pruning
import torchvision
from shorthand import build_feature_model, release
from torch import Tensor, nn

from vfl.compression.pruning import StructuredPruner

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
