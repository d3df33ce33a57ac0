"""Processes whose owners begin with weights of their own, and freeze parts: the bits of one process, and no others."""

import pickle  # noqa: TID251 - writes what a hostile file would hold
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from shorthand import parties_of, release
from torch import Tensor

from vfl.config import parse_config
from vfl.core.local import build_in_process
from vfl.runs.runtime import start_runtime

from .conftest import EXPERIMENT, merged

CNN = {"kind": "cnn", "width": 0.2, "embedding_size": 8}
FROZEN = "features.0"


def bringing(weights: Path) -> dict[str, Any]:
    """The second party's file, of which it freezes the first layer."""
    return {"models": {"parties": {"party_2": CNN | {"weights": str(weights), "freeze": [FROZEN]}}}}


@pytest.fixture
def state() -> dict[str, Tensor]:
    """Weights of the second party's model, none as it would be initialised."""
    config = parse_config(merged(EXPERIMENT, {}))
    draw = torch.Generator().manual_seed(7)
    model = parties_of(build_in_process(config, start_runtime(config)).server)[1].model
    return {
        name: torch.rand(value.shape, generator=draw) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }


def test_own_weights_and_frozen_parts_are_the_same_in_processes(
    federate: Callable[..., Any], in_process: Callable[..., Any], tmp_path: Path, state: dict[str, Tensor]
):
    save_file(state, tmp_path / "own.safetensors")
    sections = bringing(tmp_path / "own.safetensors")
    federation = federate(**sections)
    federation.run()
    federation.check_ended()
    expected = in_process(**sections)
    assert federation.outcome() == expected
    first, second = expected["summary"]["parties"].values()
    assert "weights_file" not in first
    assert "weights_file" in second
    assert second["alpha"] == 0.5


class Code:
    """A pickle of it touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("what", ["shape", release("code")])
def test_a_file_that_is_refused_ends_its_owner_in_one_line(
    federate: Callable[..., Any], tmp_path: Path, state: dict[str, Tensor], what: str
):
    path, ran = tmp_path / "own.pth", tmp_path / "ran"
    if what == "shape":
        name = next(iter(state))
        torch.save(state | {name: torch.ones(2, 2)}, path)  # noqa: TID251 - what users have
    else:
        path.write_bytes(pickle.dumps({"features.0.weight": Code(ran)}))
    federation = federate(**bringing(path))
    federation.start("party_2")  # alone: nobody has to wait for its error
    assert federation.wait("party_2") == 2, federation.logs()
    errors = [line for line in federation.log("party_2").splitlines() if str(path) in line]
    assert len(errors) == 1
    assert "Traceback" not in federation.log("party_2")
    assert not ran.exists()
