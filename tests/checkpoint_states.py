"""Checkpoint sections that tell which save they come from, and their comparison bit for bit."""

from typing import Any

import torch

from vfl.runs.checkpoint import State


def content(round_index: int, version: int = 0) -> dict[str, State]:
    """Sections that tell which round and version of it they were saved as."""
    weight = torch.full((50, 40), float(round_index)) + version
    return {
        "loop": {"round": round_index, "version": version, "generator": torch.arange(9) + round_index},
        "party_1": {"model": {"weight": weight, "steps": torch.tensor(round_index)}},
    }


def assert_same(found: Any, expected: Any) -> None:
    """Equal in type, value and every bit, NaN payloads and the sign of zero included; order of keys too."""
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.is_contiguous()
        assert found.device.type == "cpu"
        assert raw_bytes(found) == raw_bytes(expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for found_item, expected_item in zip(found, expected, strict=True):
            assert_same(found_item, expected_item)
    else:
        assert type(found) is type(expected)
        assert repr(found) == repr(expected)


def raw_bytes(tensor: torch.Tensor) -> list[int]:
    plain = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
    return plain.reshape(-1).view(torch.uint8).tolist()
