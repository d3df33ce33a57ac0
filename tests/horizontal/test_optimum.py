"""Where the algorithms end up on two clients with F_i(w) = a_i/2 (w - b_i)^2 and 1 and 4 local steps.

The optimum of their mean is (1 * 0 + 3 * 4) / 4 = 3. What averaging alone converges to is known in closed form.
"""

from itertools import pairwise

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


def test_fedavg_converges_to_the_optimum_of_another_objective(final_weight):
    expected = fixed_point([1 - left for left in contraction(RATE)])
    assert expected > 3.6  # towards the client with more steps
    assert final_weight("fedavg", 60) == pytest.approx(expected, abs=1e-4)


def test_fedavgs_error_does_not_go_with_the_learning_rate(final_weight):
    small = 0.01
    expected = fixed_point([1 - left for left in contraction(small)])
    assert final_weight("fedavg", 150, rate=small) == pytest.approx(expected, abs=1e-3)
    limit = fixed_point([curvature * steps for curvature, steps in zip(CURVATURES, STEPS, strict=True)])
    assert fixed_point([1 - left for left in contraction(1e-6)]) == pytest.approx(limit, abs=1e-3)
    assert limit > TRUE_OPTIMUM + 0.5


def test_fednova_converges_to_the_normalised_fixed_point(final_weight):
    pulls = [(1 - left) / steps for left, steps in zip(contraction(RATE), STEPS, strict=True)]
    assert final_weight("fednova", 60) == pytest.approx(fixed_point(pulls), abs=1e-4)


def test_fednova_reaches_the_optimum_as_the_learning_rate_falls(final_weight):
    errors = [abs(final_weight("fednova", 40 * (1 + step), rate=falling(step)) - TRUE_OPTIMUM) for step in range(4)]
    for larger, smaller in pairwise(errors):
        assert smaller < 0.75 * larger


def falling(times):
    """The learning rate, halved every 40 rounds so many times."""
    return {40 * step: RATE / 2**step for step in range(times + 1)}


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


def test_fedavg_with_one_client_per_round_never_settles(final_weight):
    ends = [final_weight("fedavg", rounds, 1) for rounds in (30, 31, 32, 33)]
    assert max(ends) - min(ends) > 0.1


@pytest.mark.release
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("scaffold", {}), ("feddyn", {"feddyn": {"alpha": 1.0}})],
)
def test_three_of_five_clients_are_enough(final_weight, algorithm, settings):
    clients = ((1.0, 0.0), (2.0, 1.0), (3.0, -2.0), (2.0, 5.0), (4.0, 2.0))
    optimum = sum(a * b for a, b in clients) / sum(a for a, _ in clients)
    assert final_weight(algorithm, 300, 3, clients=clients, **settings) == pytest.approx(optimum, abs=2e-3)


def test_fedprox_ends_nearer_to_the_start_of_each_round(final_weight):
    """With the proximal term w_i - w = -(1 - q_i) a_i / (a_i + mu) (w - b_i), q_i = (1 - eta (a_i + mu))^tau_i."""
    mu = 2.0
    pulls = [
        (1 - (1 - RATE * (curvature + mu)) ** steps) * curvature / (curvature + mu)
        for curvature, steps in zip(CURVATURES, STEPS, strict=True)
    ]
    assert final_weight("fedprox", 80, fedprox={"mu": mu}) == pytest.approx(fixed_point(pulls), abs=1e-4)


def test_fedmom_has_fedavgs_fixed_point(final_weight):
    expected = fixed_point([1 - left for left in contraction(RATE)])
    assert final_weight("fedmom", 80, fedmom={"momentum": 0.5}) == pytest.approx(expected, abs=1e-4)
