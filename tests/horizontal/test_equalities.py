"""Where one algorithm must be another: bit for bit with the sequential engine, to rounding with the others."""

from dataclasses import replace

import pytest
import torch

from vfl.horizontal.algorithm import ClientUpdate
from vfl.horizontal.scaffold import Scaffold

ROUNDS = 4
EQUAL_STEPS = {"local_steps": 3}


@pytest.fixture
def trajectory(configure, build, problem, engine):
    """Run a few rounds and return the weights after each."""

    def run(algorithm, *, kind=None, training=None, problem=problem, **settings):
        config = configure(training=training or {}, horizontal={"algorithm": algorithm, **settings})
        trainer = build(config, problem, engine, kind=kind)
        weights = []
        for round_index in range(ROUNDS):
            trainer.train_round(round_index)
            weights.append(trainer.state["weights"].clone())
        return weights

    return run


@pytest.fixture
def check_equal(engine):
    def check(one, other):
        assert len(one) == len(other) == ROUNDS
        assert not torch.equal(one[0], one[-1])
        for actual, expected in zip(one, other, strict=True):
            engine.check_same(actual, expected)

    return check


MOMENTUM = {"optimizer": {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01}}


@pytest.mark.parametrize("training", [{}, MOMENTUM], ids=["plain", "momentum"])
def test_fedprox_without_mu_is_fedavg(trajectory, check_equal, training):
    prox = trajectory("fedprox", fedprox={"mu": 0.0}, training=training)
    check_equal(prox, trajectory("fedavg", training=training))


@pytest.mark.parametrize("weights", ["reporting", "all", "equal"])
@pytest.mark.parametrize("training", [{}, MOMENTUM], ids=["plain", "momentum"])
def test_fednova_with_equal_steps_is_fedavg(trajectory, check_equal, training, weights):
    common = {"training": training, "weights": weights, "server_learning_rate": 0.7, **EQUAL_STEPS}
    check_equal(trajectory("fednova", **common), trajectory("fedavg", **common))


@pytest.mark.parametrize("training", [{}, MOMENTUM], ids=["plain", "momentum"])
def test_fednova_with_equal_steps_and_a_proximal_term_is_fedprox(trajectory, check_equal, training):
    nova = trajectory("fednova", fednova={"mu": 0.5}, training=training, **EQUAL_STEPS)
    check_equal(nova, trajectory("fedprox", fedprox={"mu": 0.5}, training=training, **EQUAL_STEPS))


def test_fednova_with_unequal_steps_is_not_fedavg(trajectory):
    assert not torch.equal(trajectory("fednova")[0], trajectory("fedavg")[0])


class FrozenScaffold(Scaffold):
    """Its control variates stay at zero."""

    def client_update(self, result, own, state):
        update = super().client_update(result, own, state)
        zero = torch.zeros_like(result.delta_P)
        return ClientUpdate(update.upload | {"control_variate": zero}, {"control_variate": zero})


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_with_frozen_control_variates_is_fedavg_with_equal_weights(trajectory, check_equal, option):
    common = {"server_learning_rate": 0.7}
    frozen = trajectory("scaffold", kind=FrozenScaffold, scaffold={"option": option}, **common)
    check_equal(frozen, trajectory("fedavg", weights="equal", **common))


def test_the_first_round_of_scaffold_is_fedavgs(trajectory, engine):
    engine.check_same(trajectory("scaffold")[0], trajectory("fedavg", weights="equal")[0])


def test_fedlga_with_complete_clients_is_fedavg_with_equal_weights(trajectory, check_equal):
    work = {"kind": "partial", "incomplete_share": 0.0}
    common = {"local_epochs": 2, "work": work, "server_learning_rate": 0.7}
    check_equal(trajectory("fedlga", **common), trajectory("fedavg", weights="equal", **common))


def test_fedlga_without_correction_is_fedavg_with_equal_weights(trajectory, check_equal):
    work = {"kind": "partial", "incomplete_share": 0.6}
    common = {"local_epochs": 3, "work": work}
    check_equal(trajectory("fedlga", fedlga={"scale": 0.0}, **common), trajectory("fedavg", weights="equal", **common))


@pytest.mark.parametrize("dms", [{"slope": 0.0}, {"slope": 0.2}, {}], ids=["no slope", "slope", "estimated"])
def test_dms_with_equal_steps_is_fedavg_with_equal_weights(trajectory, check_equal, dms):
    common = {"server_learning_rate": 0.7, **EQUAL_STEPS}
    check_equal(trajectory("dms", dms=dms, **common), trajectory("fedavg", weights="equal", **common))


def test_fedmom_without_momentum_is_fedavg_over_all_clients(trajectory, check_equal):
    mom = trajectory("fedmom", fedmom={"learning_rate": 1.0, "momentum": 0.0})
    check_equal(mom, trajectory("fedavg", weights="all"))


@pytest.mark.parametrize("weights", ["reporting", "all", "equal"])
def test_fedsgd_is_fedavg_with_one_full_batch_step(trajectory, check_equal, problem, weights):
    full = {"batch_size": max(problem.sizes)}
    average = trajectory("fedavg", local_steps=1, training=full, weights=weights)
    check_equal(trajectory("fedsgd", weights=weights), average)


def test_fedsgd_does_one_step_whatever_work_is_set(trajectory, check_equal):
    check_equal(trajectory("fedsgd", local_epochs=5), trajectory("fedsgd", local_steps=2))


def test_fedasync_average_without_old_weights_is_fedavg_with_equal_weights(trajectory, check_equal):
    average = trajectory("fedasync_average", fedasync_average={"gamma": 0.0})
    check_equal(average, trajectory("fedavg", weights="equal"))


def test_fedasync_with_one_client_is_fedavg_with_one_client(trajectory, check_equal, problem):
    alone = replace(problem, sizes=problem.sizes[:1])
    common = {"clients": 1, "clients_per_round": 1, "problem": alone}
    fresh = trajectory("fedasync", fedasync={"mixing": 1.0, "mu": 0.0}, **common)
    check_equal(fresh, trajectory("fedavg", **common))


def test_feddyn_starts_as_fedprox_with_equal_weights_and_the_servers_own_step(trajectory, build, problem, engine):
    """In the first round g_i = 0, so that clients do what FedProx does; then w = mean w_i - h/a, h = -a/N sum d_i."""
    prox = trajectory("fedprox", fedprox={"mu": 0.3}, weights="equal")
    dyn = trajectory("feddyn", feddyn={"alpha": 0.3})
    none = trajectory("fedprox", fedprox={"mu": 0.3}, weights="equal", server_learning_rate=1e-12)
    start = none[0]
    # mean + (1/N) sum over K = (1 + K/N) times the mean change
    torch.testing.assert_close(dyn[0] - start, (1 + 3 / 6) * (prox[0] - start), rtol=1e-4, atol=1e-6)
