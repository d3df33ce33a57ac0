"""Where one algorithm must be another: bit for bit with the sequential engine, to rounding with the others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from horizontal.conftest import ENGINES
from shorthand import release

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


class FrozenScaffold(Scaffold):
    """Its control variates stay at zero."""

    def client_update(self, result, own, state):
        update = super().client_update(result, own, state)
        zero = torch.zeros_like(result.delta_P)
        return ClientUpdate(update.upload | {"control_variate": zero}, {"control_variate": zero})


def of(algorithm, **settings):
    return {"algorithm": algorithm} | settings


HALF, AVERAGE = {"server_learning_rate": 0.7}, of("fedavg", weights="equal")
PARTIAL, COMPLETE = ({"kind": "partial", "incomplete_share": share} for share in (0.6, 0.0))
EQUALS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "fedprox without mu": (of("fedprox", fedprox={"mu": 0.0}), of("fedavg"), {}),
    "fednova of reporting": (of("fednova"), of("fedavg"), {"weights": "reporting"} | HALF | EQUAL_STEPS),
    "fednova of all": (of("fednova"), of("fedavg"), {"weights": "all"} | HALF | EQUAL_STEPS),
    "fednova of equal": (of("fednova"), of("fedavg"), {"weights": "equal"} | HALF | EQUAL_STEPS),
    "fednova and proximal": (of("fednova", fednova={"mu": 0.5}), of("fedprox", fedprox={"mu": 0.5}), EQUAL_STEPS),
    "scaffold frozen, 1": (of("scaffold", kind=FrozenScaffold, scaffold={"option": 1}), AVERAGE, HALF),
    "scaffold frozen, 2": (of("scaffold", kind=FrozenScaffold, scaffold={"option": 2}), AVERAGE, HALF),
    "fedlga of complete clients": (of("fedlga"), AVERAGE, {"local_epochs": 2, "work": COMPLETE} | HALF),
    "fedlga uncorrected": (of("fedlga", fedlga={"scale": 0.0}), AVERAGE, {"local_epochs": 3, "work": PARTIAL}),
    "dms without slope": (of("dms", dms={"slope": 0.0}), AVERAGE, HALF | EQUAL_STEPS),
    "dms of equal steps": (of("dms", dms={"slope": 0.2}), AVERAGE, HALF | EQUAL_STEPS),
    "dms estimated": (of("dms", dms={}), AVERAGE, HALF | EQUAL_STEPS),
    "fedmom at rest": (of("fedmom", fedmom={"learning_rate": 1.0, "momentum": 0.0}), of("fedavg", weights="all"), {}),
    "fedsgd of any work": (of("fedsgd", local_epochs=5), of("fedsgd", local_steps=2), {}),
    "fedasync_average": (of("fedasync_average", fedasync_average={"gamma": 0.0}), AVERAGE, {}),
}
"""Settings of two algorithms that must do the same, and of both."""
WITH_MOMENTUM = [name for name in EQUALS if name.startswith(("fednova", "fedprox"))]


@pytest.mark.parametrize(
    ("case", "training"), [*((name, {}) for name in EQUALS), *((name, MOMENTUM) for name in WITH_MOMENTUM)]
)
def test_one_is_the_other(trajectory, check_equal, case, training):
    one, other, common = EQUALS[case]
    check_equal(trajectory(**one, **common, training=training), trajectory(**other, **common, training=training))


def test_fednova_with_unequal_steps_is_not_fedavg(trajectory):
    assert not torch.equal(trajectory("fednova")[0], trajectory("fedavg")[0])


def test_the_first_round_of_scaffold_is_fedavgs(trajectory, engine):
    engine.check_same(trajectory("scaffold")[0], trajectory("fedavg", weights="equal")[0])


@pytest.mark.parametrize("weights", ["reporting", "all", "equal"])
def test_fedsgd_is_fedavg_with_one_full_batch_step(trajectory, check_equal, problem, weights):
    full = {"batch_size": max(problem.sizes)}
    average = trajectory("fedavg", local_steps=1, training=full, weights=weights)
    check_equal(trajectory("fedsgd", weights=weights), average)


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


CURVATURES, OPTIMA, STEPS = (1.0, 3.0), (0.0, 4.0), (1, 4)
TRUE_OPTIMUM = 3.0
RATE = 0.05


@pytest.fixture(params=["batched", release("sequential")])
def engine(request):
    """Engines are compared at every run (``engines/test_contract.py``): one of them shows where algorithms end up."""
    return ENGINES[request.param]


@pytest.fixture
def final_weight(configure, build, point, engine):
    """Train two clients with 1 and 4 steps and return the weight after the last round."""

    def train(algorithm, rounds, clients_per_round=2, rate=RATE, clients=None, seed=3, **settings):
        problem = point(*(clients or zip(CURVATURES, OPTIMA, strict=True)))
        config = configure(
            seed=seed,
            training={"batch_size": 2, "optimizer": {"learning_rate": rate}},
            horizontal={
                "algorithm": algorithm,
                "clients": len(problem.sizes),
                "clients_per_round": clients_per_round,
                "work": {"kind": "interval"},
                "devices": {"speed": {"kind": "case1"}},
                **settings,
            },
        )
        trainer = build(config, problem, engine)
        for round_index in range(rounds):
            metrics = trainer.train_round(round_index)
            if clients_per_round == 2:
                assert metrics["local_steps/min"] < metrics["local_steps/max"]
        return float(trainer.state["weights"][0])

    return train


def contraction(rate):
    """How far a client's own error is left over by its steps: w_i - b_i = q_i (w - b_i)."""
    return [(1 - rate * curvature) ** steps for curvature, steps in zip(CURVATURES, STEPS, strict=True)]


def fixed_point(pulls):
    """Return the w at which the pulls, each towards a client's own optimum, cancel."""
    return sum(pull * optimum for pull, optimum in zip(pulls, OPTIMA, strict=True)) / sum(pulls)


def pulls_of_fedprox(mu):
    """With the proximal term w_i - w = -(1 - q_i) a_i / (a_i + mu) (w - b_i), q_i = (1 - eta (a_i + mu))^tau_i."""
    return [
        (1 - (1 - RATE * (curvature + mu)) ** steps) * curvature / (curvature + mu)
        for curvature, steps in zip(CURVATURES, STEPS, strict=True)
    ]


PULLS = [1 - left for left in contraction(RATE)]


@pytest.mark.parametrize(
    ("algorithm", "settings", "pulls"),
    [
        ("fedavg", {}, PULLS),
        ("fednova", {}, [pull / steps for pull, steps in zip(PULLS, STEPS, strict=True)]),
        ("fedprox", {"fedprox": {"mu": 2.0}}, pulls_of_fedprox(2.0)),
        ("fedmom", {"fedmom": {"momentum": 0.5}}, PULLS),
    ],
)
def test_averaging_converges_to_the_fixed_point_of_its_pulls(final_weight, algorithm, settings, pulls):
    assert final_weight(algorithm, 80, **settings) == pytest.approx(fixed_point(pulls), abs=1e-4)


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("clients_per_round", [2, release(1)])
def test_scaffold_reaches_the_optimum(final_weight, option, clients_per_round):
    work = {"kind": "interval", "interval_s": 2.0}  # option 1 uses a part of it for the gradient over all samples
    rounds = 200 // clients_per_round
    reached = final_weight("scaffold", rounds, clients_per_round, scaffold={"option": option}, work=work)
    assert reached == pytest.approx(TRUE_OPTIMUM, abs=1e-3)


@pytest.mark.parametrize("clients_per_round", [2, 1])
def test_feddyn_reaches_the_optimum(final_weight, clients_per_round):
    reached = final_weight("feddyn", 300 // clients_per_round, clients_per_round, feddyn={"alpha": 1.0})
    assert reached == pytest.approx(TRUE_OPTIMUM, abs=1e-3)


@pytest.mark.release
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("scaffold", {}), ("feddyn", {"feddyn": {"alpha": 1.0}})],
)
def test_three_of_five_clients_are_enough(final_weight, algorithm, settings):
    clients = ((1.0, 0.0), (2.0, 1.0), (3.0, -2.0), (2.0, 5.0), (4.0, 2.0))
    optimum = sum(a * b for a, b in clients) / sum(a for a, _ in clients)
    assert final_weight(algorithm, 300, 3, clients=clients, **settings) == pytest.approx(optimum, abs=2e-3)
