"""Optimizers without PyTorch's compiler, against PyTorch's own."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from vfl.config import OptimizerConfig
from vfl.runs.optim import SGD, Adam, build_optimizer, load_optimizer_state, optimizer_state

SETTINGS = [
    {"momentum": 0.0},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"kind": "adam", "weight_decay": 0.01},
    {"kind": "adamw", "weight_decay": 0.01},
]
CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def model(layout: torch.memory_format) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3), nn.Linear(3, 3))
    layers[4].requires_grad_(False)  # what has no gradient takes no step
    return layers.to(memory_format=layout)  # pyright: ignore[reportCallIssue]  # missing in the stub


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("settings", SETTINGS)
def test_steps_are_those_of_torch_bit_for_bit(settings, layout):
    own, other = model(layout), model(layout)
    config = OptimizerConfig(learning_rate=0.1, **settings)
    optimizer = build_optimizer(own, config)
    fused = layout == torch.contiguous_format
    kind = settings.get("kind", "sgd")
    own_settings = {key: value for key, value in settings.items() if key != "kind"}
    reference = CLASSES[kind](other.parameters(), lr=0.1, fused=fused, **own_settings)
    assert isinstance(optimizer, SGD | Adam)
    assert optimizer.fused == fused
    for seed in range(4):
        if seed == 2:  # as a resumed run
            saved, optimizer = optimizer_state(optimizer, own), build_optimizer(own, config)
            load_optimizer_state(optimizer, own, saved)
        batch = torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(seed))
        for module, each in ((own, optimizer), (other, reference)):
            each.zero_grad()
            module(batch).square().mean().backward()
            each.step()
    for a, b in zip(own.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        kept = kind != "sgd" or settings["momentum"]
        assert set(optimizer.state.get(a, {})) == set(reference.state.get(b, {}) if kept else ())
        for key, value in optimizer.state.get(a, {}).items():
            assert torch.equal(value, reference.state[b][key])


@pytest.mark.release
def test_a_step_does_not_import_the_compiler():
    code = """
import sys, torch
from vfl.config import OptimizerConfig
from vfl.runs.optim import build_optimizer
layer = torch.nn.Linear(2, 2)
for kind in ("sgd", "adam"):
    optimizer = build_optimizer(layer, OptimizerConfig(kind=kind, momentum=0.0))
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
assert "torch._dynamo" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
