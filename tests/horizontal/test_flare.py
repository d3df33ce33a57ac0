"""FLARE: learning rates, selection over a network, the server's state; FedAvg's bits where nothing is adjusted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from shorthand import parse_horizontal
from small_cells import random_cell

from vfl.horizontal.config import HorizontalExperiment
from vfl.horizontal.flare import Flare
from vfl.horizontal.mode import HORIZONTAL
from vfl.horizontal.trainer import SynchronousTrainer
from vfl.horizontal.wireless.policies import greedy
from vfl.horizontal.wireless.scheduling import build_policy
from vfl.runs.run import run_experiment
from vfl.runs.runtime import start_runtime

QUIET = Console(quiet=True)
EXPONENTIAL = {"speed": {"kind": "exponential", "mean": 3.0, "redrawn": True}}
INTERVAL = {"kind": "interval", "interval_s": 1.0}


def flare_config(**horizontal: Any) -> HorizontalExperiment:
    """Eight clients with 40 digits each, five local steps or an exponential number of them."""
    settings = {"algorithm": "flare", "clients": 8, "clients_per_round": 4, "local_steps": 5} | horizontal
    return parse_horizontal(
        {
            "name": "flare",
            "mode": "horizontal",
            "seed": 5,
            "threads": 1,
            "data": {"dataset": {"kind": "digits", "image_size": 8}, "train_samples": 320, "test_samples": 60},
            "models": {"classifier": {"kind": "mlp"}},
            "training": {"rounds": 4, "batch_size": 8, "optimizer": {"learning_rate": 0.1, "momentum": 0.0}},
            "horizontal": settings,
        }
    )


def build(config: HorizontalExperiment, tmp_path: Path) -> SynchronousTrainer:
    trainer = HORIZONTAL.build(config, HORIZONTAL.stage(config, start_runtime(config), tmp_path, QUIET)).algorithm
    assert isinstance(trainer, SynchronousTrainer)
    return trainer


def uneven(tau_bar: str, **horizontal: Any) -> HorizontalExperiment:
    return flare_config(local_steps=None, devices=EXPONENTIAL, work=INTERVAL, flare={"tau_bar": tau_bar}, **horizontal)


@pytest.mark.parametrize("tau_bar", ["mas", "mes", "fmas", "fmes", "none"])
def test_equal_steps_are_fedavg_with_equal_weights_bit_for_bit(tau_bar: str, tmp_path: Path):
    partition = {"kind": "dirichlet", "dirichlet_alpha": 1.0}  # n_i differ, and must not matter
    flare = build(flare_config(flare={"tau_bar": tau_bar}, partition=partition), tmp_path)
    fedavg = build(flare_config(algorithm="fedavg", weights="equal", partition=partition), tmp_path)
    assert len(set(flare.algorithm.samples_N)) > 1
    for number in range(3):
        flare.train_round(number)
        fedavg.train_round(number)
    assert torch.equal(flare.state["weights"], fedavg.state["weights"])


@pytest.mark.parametrize("tau_bar", ["mas", "mes", "fmas", "fmes"])
def test_learning_rates_are_eta_times_tau_bar_over_tau(tau_bar: str, tmp_path: Path):
    trainer = build(uneven(tau_bar), tmp_path)
    rates: list[dict[int, float]] = []
    train = trainer.fleet.engine.train

    def watch(tasks):
        rates.append({task.client: task.learning_rate * len(task.batches) for task in tasks})
        return train(tasks)

    trainer.fleet.engine.train = watch
    for number in range(3):
        trainer.train_round(number)
    for number, products in enumerate(rates):
        source = number if tau_bar in ("mas", "mes") else 0
        steps_N = trainer.devices.plan(source).steps_N
        steps = [int(steps_N[client]) for client in products]
        wanted = max(steps) if tau_bar in ("mas", "fmas") else sum(steps) / len(steps)
        assert list(products.values()) == pytest.approx([0.1 * wanted] * len(products))


def test_the_step_is_the_mean_change_times_eta_g(tmp_path: Path):
    whole = build(uneven("mas"), tmp_path)
    half = build(uneven("mas", server_learning_rate=0.5), tmp_path)
    before = whole.state["weights"].clone()
    whole.train_round(0)
    half.train_round(0)
    torch.testing.assert_close(half.state["weights"] - before, (whole.state["weights"] - before) / 2)


POLICIES = [
    "greedy",
    "linear_program",
    "pre_tuned",
    "channel_proportion",
    "device_maximization",
    "computation_minimization",
]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_round_lasts_as_long_as_its_schedule_and_shows_it(policy: str, tmp_path: Path):
    wireless = {"policy": policy, "update_bits": 1e7, "deadline_s": 2.0}
    trainer = build(uneven("mas", wireless=wireless), tmp_path)
    clock_s = 0.0
    for number in range(3):
        metrics = trainer.train_round(number)
        clock_s += metrics["simulated_time_s/round"]
        assert 0 < metrics["simulated_time_s/round"] <= 2.0 * (1 + 1e-9)
        assert metrics["simulated_time_s/total"] == pytest.approx(clock_s)
        selected = int(metrics["clients/selected"])
        assert metrics["bandwidth_share/mean"] * selected == pytest.approx(1)
        own = [tag for tag in metrics if tag.startswith("compute_s/client_")]
        assert len(own) == selected
        slowest = max(metrics[tag] + metrics[tag.replace("compute", "transmission")] for tag in own)
        assert metrics["simulated_time_s/round"] == pytest.approx(slowest)
        for name in ("bandwidth_share", "compute_s", "transmission_s"):
            assert metrics[f"{name}/min"] <= metrics[f"{name}/mean"] <= metrics[f"{name}/max"]


def test_gamma_is_the_servers_rate_over_l():
    config = flare_config(server_learning_rate=0.5, wireless={"policy": "greedy"})
    policy = build_policy(config.horizontal, lipschitz=0.1)
    differ = 0
    for seed in range(10):
        cell = random_cell(np.random.default_rng(seed))
        selected = policy(cell, torch.Generator()).devices_M.tolist()
        assert selected == greedy(cell, 5.0).devices_M.tolist()
        differ += selected != greedy(cell, 0.2).devices_M.tolist()
    assert differ > 3


def test_many_clients_are_shown_as_statistics_only(tmp_path: Path):
    wireless = {"policy": "channel_proportion", "update_bits": 1e7}
    metrics = build(uneven("mas", wireless=wireless, clients=41), tmp_path).train_round(0)
    assert "bandwidth_share/max" in metrics
    assert not [tag for tag in metrics if "/client_" in tag]


def test_a_client_that_is_away_or_too_slow_is_not_scheduled(tmp_path: Path):
    settings = {
        "wireless": {"policy": "channel_proportion", "deadline_s": 1e3},
        "devices": {"speed": {"kind": "uniform", "mean": 1.6, "std": 1.5}, "availability": 0.8},
        "selection": {"min_steps": 2},
    }
    trainer = build(flare_config(local_steps=None, work=INTERVAL, **settings), tmp_path)
    plan = trainer.devices.plan(0)
    there, able = plan.available_N, plan.available_N & (plan.steps_N >= 2)
    assert 0 < able.sum() < there.sum() < 8
    assert (plan.steps_N == 0).any()  # a device that fits no step into the interval
    assert list(trainer.algorithm.select(trainer.state, 0, plan).clients) == able.nonzero().flatten().tolist()


def test_what_is_sent_is_the_upload_unless_settings_say_otherwise(tmp_path: Path):
    trainer = build(uneven("mas", wireless={"policy": "greedy"}), tmp_path)
    assert isinstance(trainer.algorithm, Flare)
    assert trainer.algorithm.scheduler is not None
    real = trainer.algorithm.scheduler.network.update_bits
    metrics = trainer.train_round(0)
    sent = 8 * metrics["uplink_bytes/clients"] / metrics["clients/selected"]
    assert real == pytest.approx(sent, rel=1e-2)  # settings of the message are left out
    fixed = build(uneven("mas", wireless={"policy": "greedy", "update_bits": 1e7}), tmp_path)
    assert isinstance(fixed.algorithm, Flare)
    assert fixed.algorithm.scheduler is not None
    assert fixed.algorithm.scheduler.network.update_bits == 1e7


def test_a_deadline_that_nobody_meets_makes_empty_rounds_that_say_so(tmp_path: Path):
    config = uneven("mas", wireless={"policy": "greedy", "deadline_s": 1e-6, "update_bits": 1e7})
    with pytest.warns(UserWarning, match=r"round 1 is empty: greedy finds none of 8 .*deadline_s = 1e-06; raise it"):
        outcome = run_experiment(config, tmp_path / "run", resume=False, console=QUIET)
    assert outcome.finished
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["clients/selected"] for row in rows] == [0] * 4
    assert [row["simulated_time_s/total"] for row in rows] == pytest.approx([1e-6, 2e-6, 3e-6, 4e-6])
    assert len({row["loss/test"] for row in rows}) == 1  # nothing moves


def test_settings_that_a_policy_makes_idle_are_named():
    idle = flare_config(
        clients_per_round=4,
        wireless={"policy": "greedy"},
        selection={"group_weights": [1, 2]},
        devices={"latency_s": 1.0},
    ).warnings()
    for name in ("clients_per_round", "selection.group_weights", "devices.latency_s"):
        assert f"horizontal.{name}: ignored, horizontal.wireless.policy is greedy" in idle
    assert flare_config(wireless={"policy": "pre_tuned"}).warnings() == []
    assert flare_config(wireless={"deadline_s": 2}).warnings() == [
        "horizontal.wireless.deadline_s: ignored, horizontal.wireless.policy is none"
    ]
    assert flare_config(wireless={"policy": "none", "deadline_s": 2}).warnings() == []
    assert flare_config(algorithm="fedavg", wireless={"policy": "greedy"}).warnings() == [
        "horizontal.wireless: ignored, horizontal.algorithm is fedavg"
    ]
