"""models.feature.weights: a training begins with a file's weights, and no file runs code or fits another model."""

import hashlib
import pickle  # noqa: TID251 - writes what a hostile file would hold
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from refusals import refused, refuses
from rich.console import Console
from safetensors.torch import save_file
from shorthand import parties_of
from tiny_training import TINY
from torch import Tensor

import vfl
from vfl.config import ExperimentConfig, load_config, parse_config
from vfl.core.local import build_in_process
from vfl.predict.trained_run import load_run_with_data, open_federation
from vfl.runs.run import run_experiment
from vfl.runs.runtime import start_runtime
from vfl.runs.stored_run import Run

FEATURE = TINY["models"]["feature"]


def experiment(weights: Path | None, **feature: Any) -> dict[str, Any]:
    models = TINY["models"] | {"feature": FEATURE | {"weights": str(weights)} | feature}
    return TINY | {"models": models if weights else TINY["models"] | {"feature": FEATURE | feature}}


def model_of(sections: dict[str, Any]) -> Any:
    config = parse_config(sections)
    return parties_of(build_in_process(config, start_runtime(config)).server)[0].model


def file_of(path: Path, state: dict[str, Any]) -> Path:
    if path.suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in state.items()}, path)
    else:
        torch.save(state, path)  # noqa: TID251 - what users have
    return path


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    """The weights of a model of the experiment's kind, none as initialised."""
    model = model_of(experiment(None))
    draw = torch.Generator().manual_seed(7)
    return {
        name: torch.rand(value.shape, generator=draw) if value.is_floating_point() else value + 3
        for name, value in model.state_dict().items()
    }


def run(sections: dict[str, Any], folder: Path, *, resume: bool = False) -> dict[str, Any]:
    return run_experiment(parse_config(sections), folder, resume=resume, console=Console(quiet=True)).summary


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_a_training_begins_with_the_bits_of_the_file(tmp_path: Path, state: dict[str, Tensor], name: str):
    loaded = model_of(experiment(file_of(tmp_path / name, state))).state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], state[key]) for key in state)


def test_the_last_layer_may_be_another_and_keeps_its_own_weights(tmp_path: Path, state: dict[str, Tensor]):
    path = file_of(tmp_path / "w.pth", state)
    plain = model_of(experiment(None, embedding_size=5)).state_dict()
    model = model_of(experiment(path, embedding_size=5)).state_dict()
    last = {"embedding.weight", "embedding.bias"}
    assert all(torch.equal(model[name], (plain if name in last else state)[name]) for name in model)


def test_what_either_side_lacks_is_reported(tmp_path: Path, state: dict[str, Tensor]):
    own = {name: value for name, value in state.items() if "features.0" not in name}
    path = file_of(tmp_path / "w.pth", own | {"more.weight": torch.ones(2)})
    with pytest.warns(UserWarning, match="lacks") as caught:
        model_of(experiment(path))
    lines = {str(each.message) for each in caught}
    assert any("features.0.weight" in line for line in lines)
    assert any("more.weight" in line for line in lines)


def test_the_digest_is_in_the_summary_and_the_file_is_needed_once(tmp_path: Path, state: dict[str, Tensor]):
    path = file_of(tmp_path / "w.safetensors", state)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    sections = experiment(path)
    short = sections | {"training": sections["training"] | {"rounds": 2}}
    whole = run(sections, tmp_path / "whole")
    run(short, tmp_path / "resumed")
    path.unlink()
    resumed = run(sections, tmp_path / "resumed", resume=True)
    assert {party["weights_file"] for party in resumed["parties"].values()} == {digest}
    assert resumed["model_digest"] == whole["model_digest"]
    again = Run(tmp_path / "resumed")
    assert again.predict().shape == (40, 10)
    assert open_federation(again, with_data=False).parties
    assert load_run_with_data(again).parties
    assert vfl.prune(again, {"alpha": 0.7}).summary["rounds"] == 4
    refuses("models", lambda: run(sections, tmp_path / "new"), "read")
    assert not (tmp_path / "new").exists()


def test_a_path_is_relative_to_the_file_that_names_it(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
):
    file_of(tmp_path / "w.safetensors", state)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(experiment(Path("w.safetensors"))))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config: ExperimentConfig = load_config(tmp_path / "own.yaml")
    assert config.models.feature.weights == tmp_path / "w.safetensors"


class Code:
    """A pickle of it touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def spoilt(path: Path, what: str, state: dict[str, Tensor]) -> Path:
    """Write a file that no training can begin with."""
    first = next(iter(state))
    tensors = {
        "shape": state | {first: torch.ones(2, 2)},
        "dtype": state | {first: state[first].long()},
        "NaN": state | {first: state[first] * torch.nan},
        "other names": {f"module.{name}": value for name, value in state.items()},
    }
    code = {first: Code(path.with_suffix(".ran"))}
    objects = {"nested": {"epoch": 3, "state_dict": state}, "code": code, "model": torch.nn.Linear(2, 2)}
    if what in tensors:
        return file_of(path, tensors[what])
    if what in objects:
        torch.save(objects[what], path)  # noqa: TID251
    elif what == "folder":
        path.mkdir()
    else:
        content = file_of(path, state).read_bytes()
        path.write_bytes({"old pickle": pickle.dumps(code), "cut": content[: len(content) // 2], "empty": b""}[what])
    return path


WRONG = ["shape", "dtype", "NaN", "other names", "nested", "code", "old pickle", "model", "cut", "empty", "folder"]


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_file_that_does_not_fit_is_refused_in_one_line_and_runs_nothing(
    tmp_path: Path, state: dict[str, Tensor], suffix: str, what: str
):
    path = spoilt(tmp_path / f"w{suffix}", what, state)
    with refused("models") as caught:
        model_of(experiment(path))
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert len(line) < 600
    assert str(path) in line
    assert not path.with_suffix(".ran").exists()


def test_a_start_brings_its_own_weights(tmp_path: Path, state: dict[str, Tensor]):
    path = file_of(tmp_path / "w.pth", state)
    run(experiment(path), tmp_path / "source")
    training = TINY["training"] | {"start_from": str(tmp_path / "source")}
    assert run(experiment(None) | {"training": training}, tmp_path / "target")["rounds"] == 4
    refuses("models.feature.weights", lambda: parse_config(experiment(path) | {"training": training}), "them")
