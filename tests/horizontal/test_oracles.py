"""Each algorithm's formulas against another way to compute the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shorthand import train_rounds

from vfl.horizontal.build import build_algorithm
from vfl.horizontal.fedasync import FedAsyncConfig, mixing_weight
from vfl.horizontal.fedmom import FedMomConfig
from vfl.horizontal.fednova import accumulated_steps
from vfl.horizontal.flat import FlatModel
from vfl.horizontal.local import LocalTask
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.loop import TrainingLoop

RATES = st.floats(0.001, 0.5)
MOMENTA = st.sampled_from([0.0, 0.3, 0.9, 0.99])
SAMPLES = (6, 8, 3, 10, 4, 7)
P = 16


def vectors(count, seed=0):
    return list(torch.randn(count, P, generator=torch.Generator().manual_seed(seed)))


class Blocks(FlatModel):
    """Where the parameters of a model would lie in its vector."""

    def __init__(self, places):
        self.places = places

    def split(self, vector):
        return [vector[place] for place in self.places]


@pytest.fixture
def algorithm(configure):
    def make(name, **settings):
        config = configure(horizontal={"algorithm": name, **settings})
        return build_algorithm(config, SAMPLES, Blocks([slice(0, 4), slice(4, P)]))

    return make


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_fedmom_is_sgd_with_nesterovs_momentum_on_the_pseudo_gradient(algorithm, report, momentum, rate):
    fedmom = algorithm("fedmom", fedmom={"momentum": momentum, "learning_rate": rate})
    (start_P,) = vectors(1, seed=9)
    state = fedmom.initial_state(start_P.clone())
    weights_P = torch.nn.Parameter(start_P.clone())
    sgd = torch.optim.SGD([weights_P], lr=rate, momentum=momentum, nesterov=momentum > 0)
    for round_index in range(6):
        deltas = dict(zip((0, 2, 5), vectors(3, round_index), strict=True))
        shares = torch.tensor([SAMPLES[client] / sum(SAMPLES) for client in deltas])
        weights_P.grad = -(shares @ torch.stack(list(deltas.values())))
        sgd.step()
        reports = [report(client, delta_P) for client, delta_P in deltas.items()]
        state = fedmom.server_update(state, fedmom.aggregate(state, reports))
        torch.testing.assert_close(state["weights"], weights_P.data, rtol=1e-4, atol=1e-5)


def test_fedmoms_rate_is_clients_over_clients_per_round_where_none_is_given(algorithm):
    assert algorithm("fedmom").rate == 2.0
    assert algorithm("fedmom", fedmom={"learning_rate": 1.5}).rate == 1.5
    assert algorithm("fedmom", weights="reporting").rate == 1.0


@given(steps=st.integers(1, 40), momentum=MOMENTA, mu=st.sampled_from([0.0, 0.1, 1.0]), rate=RATES)
def test_fednovas_amount_is_how_far_unit_gradients_lead(steps, momentum, mu, rate):
    """The client's own optimizer on the loss <1, y> + mu/2 y^2, started at 0: it ends at -rate * a_i."""
    y = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    sgd = torch.optim.SGD([y], lr=rate, momentum=momentum)
    for _ in range(steps):
        y.grad = 1.0 + mu * y.detach()
        sgd.step()
    assert accumulated_steps(steps, momentum, mu, rate) == pytest.approx(float(y.detach()) / -rate, rel=1e-6)


@pytest.mark.parametrize("mu", [1e-320, 1e-20, 1e-9, 1e-6])
def test_fednovas_amount_of_a_small_proximal_term_keeps_its_digits(mu: float):
    shrink, tau = mu * 0.1, 7  # by its series: tau - tau (tau - 1) / 2 shrink + ...
    assert accumulated_steps(tau, 0.0, mu, 0.1) == pytest.approx(tau - 21 * shrink, rel=1e-9)


def test_fednova_is_the_mean_normalised_change_times_the_mean_amount(algorithm, report):
    fednova = algorithm("fednova", server_learning_rate=0.5)
    clients, steps, deltas = (1, 3, 4), (2, 7, 1), vectors(3)
    reports = [
        report(client, delta_P, steps=count) for client, count, delta_P in zip(clients, steps, deltas, strict=True)
    ]
    shares = [SAMPLES[client] / (8 + 10 + 4) for client in clients]
    normalised_P = sum(p * delta_P / tau for p, delta_P, tau in zip(shares, deltas, steps, strict=True))
    expected_P = 0.5 * sum(p * tau for p, tau in zip(shares, steps, strict=True)) * normalised_P
    state = fednova.initial_state(torch.zeros(P))
    torch.testing.assert_close(fednova.aggregate(state, reports).vectors["delta"], expected_P)


@pytest.mark.parametrize("gradient", ["mean", "end"])
@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize(
    "complete", [(True, True, False, False), (False, False, False, False)], ids=["some", "none complete"]
)
def test_fedlgas_correction_is_that_of_the_whole_outer_product(algorithm, report, scope, complete, gradient):
    settings = {"scale": 0.05, "scope": scope, "gradient": gradient}
    fedlga = algorithm("fedlga", fedlga=settings, server_learning_rate=0.7)
    blocks = [slice(0, 4), slice(4, P)] if scope == "layer" else [slice(0, P)]
    deltas, steps, epochs, rate = vectors(4), (12, 15, 4, 8), (3.0, 3.0, 1.0, 2.0), 0.1
    epochs = tuple(3.0 if done else min(own, 2.0) for done, own in zip(complete, epochs, strict=True))
    start_P = vectors(1, seed=7)[0]
    reports = [
        report(client, deltas[client], steps=steps[client], epochs=epochs[client], asked_epochs=3.0, start_P=start_P)
        for client in range(4)
    ]
    ends = [start_P + delta_P for delta_P in deltas]
    gradients = [-delta_P / (rate * count) for delta_P, count in zip(deltas, steps, strict=True)]
    if gradient == "end":
        gradients = vectors(4, seed=9)
        for each, gradient_P in zip(reports, gradients, strict=True):
            each.upload["gradient"] = gradient_P
    if any(complete):
        ahead_P = start_P + (deltas[0] + deltas[1]) / 2
    else:
        ahead_P = start_P + sum(delta_P * 3.0 / done for delta_P, done in zip(deltas, epochs, strict=True)) / 4
    corrected = []
    for client, done in enumerate(complete):
        g_P = gradients[client]
        product_PP = torch.zeros(P, P)
        for block in blocks:
            product_PP[block, block] = torch.outer(g_P[block], g_P[block])
        correction_P = torch.zeros(P) if done else 0.05 * product_PP @ (ahead_P - ends[client])
        corrected.append(deltas[client] + correction_P)
    aggregate = fedlga.aggregate({"weights": start_P}, reports)
    torch.testing.assert_close(
        aggregate.vectors["delta"], 0.7 * torch.stack(corrected).mean(dim=0), rtol=1e-4, atol=1e-5
    )
    ratios = [float((new - old).norm() / old.norm()) for new, old in zip(corrected, deltas, strict=True)]
    assert aggregate.metrics["fedlga/correction"] == pytest.approx(max(ratios), rel=1e-4)
    late = [client for client, done in enumerate(complete) if not done]
    along = [float(corrected[client] @ deltas[client] / deltas[client].square().sum()) for client in late]
    described = {
        "c": [float((ahead_P - start_P) @ deltas[client] / deltas[client].square().sum()) for client in late],
        "kappa": [0.05 * float(gradients[client].square().sum()) for client in late],
        "factor": along,
    }
    for name, values in described.items():
        assert aggregate.metrics[f"fedlga/{name}"] == pytest.approx(sum(values) / len(values), rel=1e-4)
    assert aggregate.metrics["fedlga/incomplete"] == len(late)
    assert aggregate.metrics["fedlga/reversed"] == sum(factor < 0 for factor in along)


def test_fedlga_damps_or_reverses_a_change_that_is_orthogonal_to_the_others(algorithm, report):
    """With c = 0 a change becomes (1 - kappa) times itself: kappa 1/2 halves it, kappa 2 turns it round."""
    early_P, late_P = torch.eye(P)[:2]
    for kappa, factor in ((0.5, 0.5), (2.0, -1.0)):
        fedlga = algorithm("fedlga", fedlga={"scale": kappa * 0.2**2})
        reports = [report(0, early_P), report(1, late_P, steps=2, epochs=1.0, asked_epochs=2.0)]
        aggregate = fedlga.aggregate({"weights": torch.zeros(P)}, reports)
        torch.testing.assert_close(aggregate.vectors["delta"], (early_P + factor * late_P) / 2)
        assert aggregate.metrics["fedlga/c"] == 0
        assert aggregate.metrics["fedlga/kappa"] == pytest.approx(kappa)


def test_fedlga_warns_once_of_a_correction_that_drowns_the_change(algorithm, report):
    fedlga = algorithm("fedlga", fedlga={"scale": 1e4})
    deltas = vectors(2)
    reports = [report(0, deltas[0]), report(1, deltas[1], epochs=1.0, asked_epochs=2.0)]
    state = fedlga.initial_state(torch.zeros(P))
    with pytest.warns(UserWarning, match=r"horizontal\.fedlga\.scale"):
        fedlga.aggregate(state, reports)
    fedlga.aggregate(state, reports)


def test_feddyn_clients_end_where_their_gradient_is_their_new_g(configure, build, point, engine):
    """After enough local steps grad F_i(w_i) - g_i + a (w_i - w) = 0, so that g_i+ = grad F_i(w_i)."""
    curvatures, optima = (1.0, 3.0, 2.0), (0.0, 4.0, -1.0)
    config = configure(
        training={"batch_size": 2},
        horizontal={
            "algorithm": "feddyn",
            "clients": 3,
            "clients_per_round": 3,
            "local_steps": 60,
            "feddyn": {"alpha": 0.5},
        },
    )
    trainer = build(config, point(*zip(curvatures, optima, strict=True)), engine)
    before = [0.0] * 3
    for round_index in range(3):
        start = float(trainer.state["weights"][0])
        trainer.train_round(round_index)
        for client, (a, b) in enumerate(zip(curvatures, optima, strict=True)):
            solution = (a * b + before[client] + 0.5 * start) / (a + 0.5)
            after = float(trainer.fleet.states.get(client)["gradient"][0])
            assert after == pytest.approx(a * (solution - b), abs=1e-4)
            before[client] = after


def test_fedsgd_is_the_weighted_gradient_of_all_samples(configure, build, problem, engine):
    """Over the union of the clients' samples: sum (n_i/n) g_i is the gradient of their common mean loss."""
    config = configure(horizontal={"algorithm": "fedsgd", "clients_per_round": 6, "server_learning_rate": 0.5})
    trainer = build(config, problem, engine)
    trainer.fleet.model.load(trainer.state["weights"], trainer.state["statistics"])
    module = trainer.fleet.model.module
    problem.loss(module(problem.features), problem.labels).backward()
    steps = [(parameter.detach().clone(), parameter.grad.clone()) for parameter in module.parameters()]
    trainer.train_round(0)
    for (before, slope), after in zip(steps, trainer.fleet.model.split(trainer.state["weights"]), strict=True):
        torch.testing.assert_close(after, before - 0.5 * 0.1 * slope, rtol=1e-4, atol=1e-6)


def test_scaffolds_option_2_is_the_mean_of_the_gradients_it_stepped_along(configure, build, problem, engine):
    """c_i+ = c_i - c + (w - y)/(tau eta) is the mean of the clients' own gradients, by the definition of its steps."""
    config = configure(horizontal={"algorithm": "scaffold", "clients_per_round": 6, "local_steps": 1})
    config = config.model_copy(update={"training": config.training.model_copy(update={"batch_size": 10})})
    trainer = build(config, problem, engine)
    for round_index in range(3):
        start_P = trainer.state["weights"]
        module = trainer.fleet.model.module
        expected = []
        for rows in problem.rows:
            trainer.fleet.model.load(start_P, trainer.state["statistics"])
            module.zero_grad()
            problem.loss(module(problem.features[rows]), problem.labels[rows]).backward()
            expected.append([parameter.grad.clone() for parameter in module.parameters()])
        trainer.train_round(round_index)
        for client, gradients in enumerate(expected):
            kept = trainer.fleet.model.split(trainer.fleet.states.get(client)["control_variate"])
            for own, slope in zip(kept, gradients, strict=True):
                torch.testing.assert_close(own, slope, rtol=1e-3, atol=1e-5)


@given(
    staleness=st.integers(0, 100),
    mixing=st.floats(0.01, 1.0),
    kind=st.sampled_from(["constant", "polynomial", "hinge"]),
    power=st.floats(0.0, 3.0),
    slope=st.floats(0.01, 20.0),
    delay=st.floats(0.0, 10.0),
)
def test_fedasyncs_mixing_is_within_0_and_1_and_falls_with_staleness(staleness, mixing, kind, power, slope, delay):
    settings = FedAsyncConfig(mixing=mixing, staleness=kind, power=power, hinge_slope=slope, hinge_delay=delay)
    share = mixing_weight(settings, staleness)
    assert 0 < share <= mixing <= 1
    assert mixing_weight(settings, staleness + 1) <= share
    assert mixing_weight(settings, 0) == mixing


def test_fedasyncs_mixing_by_hand():
    polynomial = FedAsyncConfig(mixing=0.6, staleness="polynomial", power=0.5)
    assert mixing_weight(polynomial, 3) == pytest.approx(0.3)
    hinge = FedAsyncConfig(mixing=0.6, staleness="hinge", hinge_slope=10.0, hinge_delay=4.0)
    assert [mixing_weight(hinge, staleness) for staleness in (4, 5, 6)] == pytest.approx([0.6, 0.6 / 11, 0.6 / 21])


@pytest.mark.parametrize("name", ["fedprox", "fedasync"])
def test_proximal_clients_are_pulled_to_what_they_received_by_mu(algorithm, name):
    (start_P,) = vectors(1)
    task = LocalTask(0, torch.arange(6), start_P, torch.zeros(0), [torch.arange(6)], 0.1)
    asked = algorithm(name, **{name: {"mu": 0.3}}).client_task(task, {}, {"weights": start_P}, [])
    assert asked.pull == 0.3
    assert asked.start_P is start_P


def test_fedasync_mixes_the_arrived_weights_with_the_present_ones(algorithm, report):
    fedasync = algorithm("fedasync", fedasync={"mixing": 0.5, "staleness": "polynomial", "power": 1.0})
    old_P, present_P, delta_P = vectors(3)
    aggregate = fedasync.aggregate({"weights": present_P}, [report(2, delta_P, start_P=old_P, staleness=1)])
    state = fedasync.server_update({"weights": present_P}, aggregate)
    torch.testing.assert_close(state["weights"], 0.75 * present_P + 0.25 * (old_P + delta_P))
    assert aggregate.statistics_share == 0.25


def test_fedasync_average_keeps_gamma_of_the_old_weights(algorithm, report):
    average = algorithm("fedasync_average", fedasync_average={"gamma": 0.25})
    start_P, one_P, other_P = vectors(3)
    state = {"weights": start_P}
    aggregate = average.aggregate(state, [report(0, one_P - start_P), report(3, other_P - start_P)])
    after = average.server_update(state, aggregate)
    assert aggregate.statistics_share == 0.75
    torch.testing.assert_close(after["weights"], 0.25 * start_P + 0.75 * (one_P + other_P) / 2)


@pytest.fixture
def server(trainer):
    return lambda **settings: trainer(algorithm="fedmom", fedmom=settings)


def test_the_reference_is_the_same_run_from_every_folder(configure, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = configure(horizontal={"algorithm": "fedmom", "fedmom": {"reference": "old"}})
    own = config.with_whole_paths().horizontal.own
    assert isinstance(own, FedMomConfig)
    assert own.reference == tmp_path / "old"


def test_alignment_is_the_product_of_the_biased_gradient_with_the_way_to_the_reference(server, tmp_path, recorded):
    finished = server()
    TrainingLoop(finished, 4, checkpoints=CheckpointStore(tmp_path / "checkpoints")).run()
    again = server(reference=str(tmp_path))
    sizes = again.algorithm.samples_N
    calls, expected = recorded(again.algorithm, "aggregate"), 0.0
    for round_index in range(3):
        weights_P = again.state["weights"]
        metrics = again.train_round(round_index)
        (_, reports), _ = calls[-1]
        gradient_P = -sum(sizes[report.work.client] / sum(sizes) * report.upload["delta"] for report in reports)
        expected = float(gradient_P @ (weights_P - finished.state["weights"]))
        assert metrics["fedmom/alignment"] == pytest.approx(expected, rel=1e-4)
    assert expected > 0  # the same run again: it goes where it went


def test_the_diagnostic_changes_nothing(server, tmp_path):
    plain = server()
    TrainingLoop(plain, 3, checkpoints=CheckpointStore(tmp_path / "checkpoints")).run()
    watched = server(reference=str(tmp_path))
    metrics = train_rounds(watched, 3)
    assert torch.equal(watched.state["weights"], plain.state["weights"])
    assert all("fedmom/alignment" in row for row in metrics)
    assert "fedmom/alignment" not in server().train_round(0)
