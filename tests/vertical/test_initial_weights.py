"""Weights that training does not make: those of a file, with which it begins, and frozen ones, which it keeps."""

import hashlib
import pickle  # noqa: TID251 - writes what a hostile file would hold
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from refusals import refused, refuses
from safetensors.torch import save_file
from shorthand import build_here, parties_of
from tiny_training import TINY, check_resumed_run, train_run
from torch import Tensor, nn

import vfl
from vfl.base.macs import measure_macs, skipped_macs
from vfl.config import ExperimentConfig, load_config, parse_config
from vfl.core.initial_weights import freeze
from vfl.predict.trained_run import load_run_with_data, open_federation
from vfl.runs.stored_run import Run

FEATURE = TINY["models"]["feature"]


def experiment(weights: Path | None, **feature: Any) -> dict[str, Any]:
    models = TINY["models"] | {"feature": FEATURE | {"weights": str(weights)} | feature}
    return TINY | {"models": models if weights else TINY["models"] | {"feature": FEATURE | feature}}


def model_of(sections: dict[str, Any]) -> Any:
    return parties_of(build_here(sections).server)[0].model


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
    whole = train_run(sections, tmp_path / "whole")
    train_run(sections | {"training": sections["training"] | {"rounds": 2}}, tmp_path / "resumed")
    path.unlink()
    resumed = train_run(sections, tmp_path / "resumed", resume=True)
    assert {party["weights_file"] for party in resumed["parties"].values()} == {digest}
    assert resumed["model_digest"] == whole["model_digest"]
    again = Run(tmp_path / "resumed")
    assert again.predict().shape == (40, 10)
    assert open_federation(again, with_data=False).parties
    assert load_run_with_data(again).parties
    assert vfl.prune(again, {"alpha": 0.7}).summary["rounds"] == 4
    refuses("models", lambda: train_run(sections, tmp_path / "new"), "read")
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
    train_run(experiment(path), tmp_path / "source")
    training = TINY["training"] | {"start_from": str(tmp_path / "source")}
    assert train_run(experiment(None) | {"training": training}, tmp_path / "target")["rounds"] == 4
    refuses("models.feature.weights", lambda: parse_config(experiment(path) | {"training": training}), "them")


LOWER = ["features.0", "features.1"]
"""The first convolution and its normalization."""


def freezing(*prefixes: str, **sections: Any) -> dict[str, Any]:
    feature = TINY["models"]["feature"] | {"freeze": list(prefixes)}
    return TINY | {"models": TINY["models"] | {"feature": feature}} | sections


def party_of(sections: dict[str, Any]) -> Any:
    return parties_of(build_here(sections).server)[0]


def test_frozen_parts_keep_their_bits_over_training_pruning_and_a_resume(tmp_path: Path):
    sections = freezing(*LOWER)
    check_resumed_run(sections, tmp_path, 2)
    begun = party_of(sections).model.state_dict()
    party = load_run_with_data(Run(tmp_path / "whole")).parties[0]
    (first, *_) = (event["removed"] for event in party.pruner.state_dict()["history"])
    assert "features.0" in first
    kept = list(range(len(begun["features.0.weight"])))
    for event in party.pruner.state_dict()["history"]:
        lost = set(event["removed"].get("features.0", ()))
        kept = [channel for place, channel in enumerate(kept) if place not in lost]
    assert 0 < len(kept) < len(begun["features.0.weight"])
    for name, value in party.model.state_dict().items():
        if name.startswith(("features.0.", "features.1.")) and value.dim():
            assert torch.equal(value, begun[name][kept]), name
    assert not torch.equal(party.model.state_dict()["embedding.bias"], begun["embedding.bias"])
    finished = party.evaluated.finished.statistics
    assert finished
    assert not any(name.startswith("features.1.") for name in finished)


def test_the_optimizer_holds_no_state_of_frozen_parts():
    built = build_here(freezing(*LOWER))
    built.server.train_round(0)
    party = built.parties[0]
    held = party.state_dict()["momentum"]
    assert held
    assert not any(name.startswith(("features.0", "features.1")) for name in held)


def test_a_frozen_normalization_stays_in_evaluation_mode():
    party = party_of(freezing(*LOWER))
    party.model.train()
    modes = {name: each.training for name, each in party.model.named_modules()}
    assert not modes["features.1"]
    assert modes["features.2"]
    needed = {name for name, each in party.model.named_parameters() if each.requires_grad}
    assert needed
    assert not any(name.startswith(("features.0", "features.1")) for name in needed)


def stack() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("prefixes", "skipped"),
    [
        ((), 0),
        (("0",), 2 * 24),  # neither weights nor inputs need a gradient
        (("0", "2"), 2 * (24 + 30)),
        (("2",), 30),  # passes the gradient on
        (("4",), 15),
        (("0.bias",), 0),
    ],
)
def test_frozen_layers_do_no_backward_work_but_pass_gradients_on(prefixes: tuple[str, ...], skipped: int):
    model = stack()
    freeze(model, prefixes, "party_1")
    assert skipped_macs(model, torch.zeros(2, 4)) == skipped


def test_costs_are_those_of_the_passes_that_are_taken(tmp_path: Path):
    dense = {"lightweighting": {"alpha": 0.0, "beta": 0.5}}
    sections = freezing("features.0", **dense)
    party = party_of(sections)
    first = measure_macs(party.model, *party.example).layers["features.0"]
    plain, frozen = train_run(freezing(**dense), tmp_path / "plain"), train_run(sections, tmp_path / "frozen")
    samples = TINY["training"]["rounds"] * TINY["training"]["steps_per_round"] * TINY["training"]["batch_size"]
    saved = 2 * samples * 2 * first  # of two parties
    assert plain["train_macs"] - frozen["train_macs"] == saved
    assert plain["unpruned_train_macs"] - frozen["unpruned_train_macs"] == saved


@pytest.mark.parametrize(
    ("prefixes", "part"),
    [(["features.00"], "features.00"), (["feature"], "feature"), ([""], "''"), (["features", "embedding"], "nothing")],
)
def test_a_prefix_that_freezes_nothing_or_everything_is_refused_in_one_line(prefixes: list[str], part: str):
    with refused("models", part) as caught:
        party_of(freezing(*prefixes))
    assert len(str(caught.value).splitlines()) == 1
