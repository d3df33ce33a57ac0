"""Where the algorithms end up on two clients with F_i(w) = a_i/2 (w - b_i)^2 and 1 and 4 local steps.

The optimum of their mean is (1 * 0 + 3 * 4) / 4 = 3. What averaging alone converges to is known in closed form.
"""

import pytest
from horizontal.conftest import ENGINES
from shorthand import release

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
