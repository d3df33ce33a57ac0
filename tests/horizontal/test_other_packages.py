"""Algorithms of other packages: chosen by name, configured by their own section, refused in one line."""

import sys

import pytest
import torch
from refusals import refused, refuses
from shorthand import load_horizontal

from vfl.config import dump_config

SOURCE = '''
"""Every entry moves by a fixed step to where most clients moved it."""

import torch

from vfl.config.settings import AboveZero
from vfl.horizontal.config import AlgorithmConfig
from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm


class MajorityConfig(AlgorithmConfig):
    step: AboveZero = 0.01

    def ignored_beside(self, horizontal):
        return {**super().ignored_beside(horizontal), "weights": "majority counts heads"}


class Majority(FederatedAlgorithm[MajorityConfig]):
    Settings = MajorityConfig

    def aggregate(self, state, reports):
        votes = sum(report.upload["delta"].sign() for report in reports)
        return Aggregate({"delta": self.settings.step * votes.sign()}, {"majority/clients": len(reports)})


class NoAlgorithm:
    pass


class NoSettings(Majority):
    Settings = dict
'''


@pytest.fixture
def package(install):
    """A package that offers an algorithm, two that keep no contract, and one that cannot be imported."""
    offers = {"majority": "Majority", "no_algorithm": "NoAlgorithm", "no_settings": "NoSettings", "gone": "Gone"}
    install("lvfl.algorithms", "majority_package", SOURCE, **offers)
    yield
    sys.modules.pop("majority_package", None)


def test_a_packages_algorithm_is_chosen_configured_and_trained(package, configure, build, problem, engine, tmp_path):
    config = configure(horizontal={"algorithm": "majority", "majority": {"step": 0.25}, "weights": "equal"})
    assert config.warnings() == ["horizontal.weights: ignored, majority counts heads"]
    server = build(config, problem, engine)
    before_P = server.state["weights"].clone()
    assert server.train_round(0)["majority/clients"] == 3
    assert set((server.state["weights"] - before_P).abs().round(decimals=4).tolist()) == {0.0, 0.25}
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_horizontal(tmp_path / "config.yaml") == config
    resumed = build(config, problem, engine)
    resumed.load_state_dict(server.state_dict())
    server.train_round(1)
    resumed.train_round(1)
    assert torch.equal(server.state["weights"], resumed.state["weights"])


def test_its_section_is_checked_as_ours_are(package, configure):
    assert "majority:\n    step: 0.01\n" in dump_config(configure(horizontal={"algorithm": "majority"}))
    refuses("horizontal.majority.stepp", lambda: configure(horizontal={"majority": {"stepp": 1}}), "'step'")
    refuses("horizontal.majority.step", lambda: configure(horizontal={"majority": {"step": 0}}), "greater")


@pytest.mark.parametrize("name", ["no_algorithm", "no_settings", "gone"])
def test_one_that_breaks_the_contract_gets_one_line_that_says_it(package, configure, name):
    with refused("horizontal") as refusal:
        configure(horizontal={"algorithm": name})
    line = str(refusal.value)
    assert f"algorithm '{name}' of package 'majority_package': " in line
    assert "cannot import 'majority_package:Gone'" in line or "a subclass of vfl.horizontal.algorithm" in line
    assert "\n" not in line
