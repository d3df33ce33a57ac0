"""models.feature.freeze: frozen parts keep their bits over training, pruning and a resume, and do no backward work."""

from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from rich.console import Console
from shorthand import parties_of
from tiny_training import TINY, timeless
from torch import nn

from vfl.base.macs import measure_macs, skipped_macs
from vfl.config import parse_config
from vfl.core.initial_weights import freeze
from vfl.core.local import build_in_process
from vfl.predict.trained_run import load_run_with_data
from vfl.runs.run import run_experiment
from vfl.runs.runtime import start_runtime
from vfl.runs.stored_run import Run

LOWER = ["features.0", "features.1"]
"""The first convolution and its normalization."""


def experiment(*prefixes: str, **sections: Any) -> dict[str, Any]:
    feature = TINY["models"]["feature"] | {"freeze": list(prefixes)}
    return TINY | {"models": TINY["models"] | {"feature": feature}} | sections


def party_of(sections: dict[str, Any]) -> Any:
    config = parse_config(sections)
    return parties_of(build_in_process(config, start_runtime(config)).server)[0]


def trained(sections: dict[str, Any], folder: Path, *, resume: bool = False) -> dict[str, Any]:
    return run_experiment(parse_config(sections), folder, resume=resume, console=Console(quiet=True)).summary


def test_frozen_parts_keep_their_bits_over_training_pruning_and_a_resume(tmp_path: Path):
    sections = experiment(*LOWER)
    whole = trained(sections, tmp_path / "whole")
    trained(sections | {"training": sections["training"] | {"rounds": 2}}, tmp_path / "resumed")
    assert timeless(trained(sections, tmp_path / "resumed", resume=True)) == timeless(whole)
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
    config = parse_config(experiment(*LOWER))
    built = build_in_process(config, start_runtime(config))
    built.server.train_round(0)
    party = built.parties[0]
    held = party.state_dict()["momentum"]
    assert held
    assert not any(name.startswith(("features.0", "features.1")) for name in held)


def test_a_frozen_normalization_stays_in_evaluation_mode():
    party = party_of(experiment(*LOWER))
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
    sections = experiment("features.0", **dense)
    party = party_of(sections)
    first = measure_macs(party.model, *party.example).layers["features.0"]
    plain, frozen = trained(experiment(**dense), tmp_path / "plain"), trained(sections, tmp_path / "frozen")
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
        party_of(experiment(*prefixes))
    assert len(str(caught.value).splitlines()) == 1
