"""The algorithm: against joint training, against a naive Algorithm 1, and against itself."""

import copy

import pytest
import torch
import torch.nn.functional as F
from refusals import refuses
from shorthand import TWO, assert_models, digest, parties_of, reference_of, release, train_rounds
from torch import Tensor

from scripts.lab.plain_training import JointTrainer
from vfl.core.label_protocol import gradient_scale
from vfl.core.presence import batch_rows
from vfl.core.round_orders import Agenda
from vfl.core.server import HeadServer
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind, control

VGG = {"feature": {"kind": "vgg11", "width": 0.1, "embedding_size": 8}}
"""The deepest of our own models, where the algorithm is compared with another; elsewhere a small CNN does."""


def weights_of(server: HeadServer) -> dict[str, Tensor]:
    weights = {f"head.{name}": value for name, value in server.trainer.head.state_dict().items()}
    for party in parties_of(server):
        weights |= {f"{party.name}.{name}": value for name, value in party.model.state_dict().items()}
    return {name: value.detach().clone() for name, value in weights.items()}


def run(server: HeadServer, rounds: int) -> HeadServer:
    train_rounds(server, rounds)
    return server


@pytest.mark.parametrize("labels", ["shared", "server"])
@pytest.mark.parametrize("precision", ["float32", release("bfloat16")])
def test_without_lightweighting_equals_joint_training(build, labels: str, precision: str):
    # A small step and a large batch: rounding differences, where a machine has any, must not grow chaotically.
    optimizer = {"learning_rate": 0.01, "momentum": 0.9}
    server: HeadServer = build(
        models=VGG, training={"labels": labels, "batch_size": 24, "optimizer": optimizer}, precision=precision
    )
    parties = parties_of(server)
    joint = JointTrainer(
        [copy.deepcopy(party.model) for party in parties],
        copy.deepcopy(server.trainer.head),
        server.trainer.task,
        server.config.training.optimizer,
        server.trainer.runtime,
    )
    images = [party.train.features for party in parties]
    initial = weights_of(server)
    steps = 0
    for round_index in range(10):  # of 2 steps each
        server.train_round(round_index)
        for rows_B in batch_rows(3, round_index, 2, 48, 24):
            joint.step(images, server.exchanges.labels_N, rows_B)
            steps += 1
    assert steps == 20
    joint_weights = joint.model.state_dict()
    for name, value in weights_of(server).items():
        owner, _, inner = name.partition(".")
        expected = joint_weights[f"head.{inner}" if owner == "head" else f"features.{int(owner[-1]) - 1}.{inner}"]
        assert float((value - expected).float().norm()) <= 1e-5 * float(expected.float().norm()) + 1e-12, name
    assert any(not torch.equal(value, initial[name]) for name, value in weights_of(server).items())


@pytest.mark.parametrize("labels", ["shared", "server"])
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize(("beta", "auxiliary"), [release(0.0, 0.0), (0.6, 0.0), (0.6, 0.7)])
def test_equals_a_naive_algorithm_1(build, labels: str, iterations: int, beta: float, auxiliary: float):
    # Without BatchNorm: the naive form runs a forward pass more per exchange, which would move the statistics.
    server = build(
        data=TWO,
        models={
            "feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8, "batch_norm": False},
            "head": {"hidden": [16]},
        },
        training={"labels": labels, "local_iterations": iterations, "auxiliary": auxiliary},
        lightweighting={"beta": beta},
    )
    naive = reference_of(server, beta=beta, auxiliary=auxiliary)
    for round_index in range(2):
        server.train_round(round_index)
        for rows in batch_rows(3, round_index, 3, 48, 16):
            naive.exchange(rows)
    assert_models(server, naive.models, naive.head, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("labels", ["shared", "server"])
def test_the_exchange_reuses_its_forward_pass(build, labels: str):
    server = build(data=TWO, training={"labels": labels, "local_iterations": 2}, lightweighting={"alpha": {1: 0.5}})
    party = parties_of(server)[0]

    def forwards() -> int:
        return int(party.model.state_dict()["features.1.num_batches_tracked"])

    server.train_round(0)
    assert forwards() == 3 * 2  # steps * E
    server.train_round(1)
    assert forwards() == 3 * 2 + 3 * 2 + 1  # the embedding of the pruning's exchange comes from the model before it


def test_an_alpha_that_removes_nothing_is_warned_of_once(build):
    server = build(lightweighting={"alpha": 0.5, "pruning": {"round_to": 1000}})
    with pytest.warns(UserWarning, match=r"^party_\d: alpha 0\.5 removes no filter: .*round_to is too large$") as seen:
        server.train_round(0)
    assert len(seen) == len(parties_of(server))
    server.train_round(1)


@pytest.mark.parametrize("labels", ["shared", "server"])
def test_ratios_are_per_party_and_per_round(build, labels: str):
    server = build(
        training={"labels": labels},
        lightweighting={"alpha": {"party_1": 0.5, "party_3": {1: 0.25}}, "beta": {"party_2": {0: 0.5, 1: 0.75}}},
    )
    first, second = server.train_round(0), server.train_round(1)
    assert [first[f"alpha/party_{k}"] for k in (1, 2, 3, 4)] == [0.5, 0.0, 0.0, 0.0]
    assert [second[f"alpha/party_{k}"] for k in (1, 2, 3, 4)] == [0.5, 0.0, 0.25, 0.0]
    assert (first["beta/party_2"], second["beta/party_2"], second["beta/party_1"]) == (0.5, 0.75, 0.0)
    assert second["macs_per_sample/party_1"] < second["macs_per_sample/party_3"] < second["macs_per_sample/party_2"]
    assert second["uplink_bytes/party_2"] < first["uplink_bytes/party_2"] < first["uplink_bytes/party_1"]
    assert (first["psi/party_1"] > 0, first["psi/party_3"], second["psi/party_3"] > 0) == (True, 0.0, True)
    assert first["omega/party_2"] > 0
    assert first["omega/party_1"] == 0
    assert second["corollary1/sum_alpha"] == pytest.approx(0.5 + 0.5 + 0.25)
    assert second["corollary1/sum_beta"] == pytest.approx(0.5 + 0.75)


def test_evaluation_equals_the_joint_model_on_the_test_split(build):
    server = run(build(evaluation={"batch_size": 13}), 2)
    parties = parties_of(server)
    with torch.no_grad():
        embeddings = [party.evaluated.finished_copy()(party.test.features) for party in parties]
        logits = server.trainer.head(torch.cat(embeddings, 1))
    metrics = server.evaluate()
    assert metrics["accuracy/test"] == pytest.approx(
        float((logits.argmax(1) == server.joint.samples.values).double().mean())
    )
    assert metrics["loss/test"] == pytest.approx(float(F.cross_entropy(logits, server.joint.samples.values)), rel=1e-5)


def test_sparsified_evaluation_sees_what_would_be_sent(build):
    lightweighting = {"beta": 0.9}
    dense = run(build(data=TWO, lightweighting=lightweighting), 2)
    sparse = run(build(data=TWO, lightweighting=lightweighting, evaluation={"sparsified": True}), 2)
    assert digest(dense) == digest(sparse)
    assert dense.evaluate() != sparse.evaluate()


def test_error_feedback_sends_differences_that_shrink_the_error(build):
    errors = {}
    for feedback in (False, True):
        # A learning rate near 0 keeps the embeddings still, so that the estimates can catch up with them.
        server = build(
            data=TWO,
            training={"optimizer": {"learning_rate": 1e-8, "momentum": 0.0}},
            lightweighting={"beta": 0.5, "error_feedback": feedback},
        )
        errors[feedback] = [metrics["omega/party_1"] for metrics in train_rounds(server, 4)]
    assert errors[True][0] == pytest.approx(errors[False][0], rel=1e-3)
    assert errors[True][-1] < 0.5 * errors[False][-1]


def test_an_embedding_that_is_not_finite_ends_the_run_with_the_party_named(build):
    server = build()
    with torch.no_grad():
        parties_of(server)[1].model.get_parameter("embedding.bias").fill_(float("nan"))
    with pytest.raises(ValueError, match=r"party_2's embedding has values that are not finite.*learning_rate"):
        server.train_round(0)


def test_parties_may_have_different_models_and_widths(build):
    server = build(
        models={
            "feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8},
            "parties": {"party_2": {"kind": "mlp", "width": 0.05, "embedding_size": 5}},
            "head": {"hidden": []},
        },
        lightweighting={"alpha": {1: 0.5}, "beta": 0.5},
    )
    metrics = run(server, 2).evaluate()
    assert 0 <= metrics["accuracy/test"] <= 1
    assert [len(p) for p in server.trainer.head.parameters()] == [10, 10]
    assert next(server.trainer.head.parameters()).shape == (10, 8 + 5 + 8 + 8)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), release(1, 2), (4, 2)])
def test_other_grids_and_party_counts_train(build, rows: int, columns: int):
    data = {
        "dataset": {"kind": "digits"},
        "train_samples": 48,
        "test_samples": 40,
        "partition": {"rows": rows, "columns": columns},
    }
    server = run(build(data=data, lightweighting={"alpha": {1: 0.3}, "beta": 0.3}), 2)
    assert len(server.summary()["parties"]) == rows * columns


def test_gradients_keep_their_bits_in_float16(build):
    # Labels at the server, gradients of a mean over B samples: unscaled, float16 would lose the small ones.
    digests = {}
    for values in ("float32", "float16"):
        server = run(build(data=TWO, training={"labels": "server"}, wire={"values": values}), 2)
        digests[values] = torch.cat([value.flatten().float() for value in weights_of(server).values()])
    difference = (digests["float16"] - digests["float32"]).norm() / digests["float32"].norm()
    assert 0 < float(difference) < 0.02


@pytest.mark.parametrize("batch_size", [1, 2, 3, 16, 24, 256])
def test_gradients_travel_scaled_without_losing_a_bit(batch_size: int):
    gradient = torch.randn(64) * 1e-6
    assert torch.equal(gradient * gradient_scale(batch_size) / gradient_scale(batch_size), gradient)
    assert batch_size / 2 < gradient_scale(batch_size) <= batch_size


def test_a_resume_with_other_data_is_refused(build):
    state = run(build(), 1).state_dict()
    refuses("--resume", lambda: build(seed=4).load_state_dict(state), "those")
    server = build()
    party = parties_of(server)[2]
    party.train.features[7, 0, 3, 3] += 1.0
    refuses("--resume", lambda: server.load_state_dict(state), "party_3")


def test_a_loss_that_is_not_finite_ends_the_run(build):
    server = run(build(), 1)
    with torch.no_grad():
        next(server.trainer.head.parameters()).fill_(float("inf"))
    with pytest.raises(ValueError, match=r"the test loss is not finite: lower training.optimizer.learning_rate"):
        server.evaluate()


def test_a_message_that_does_not_belong_here_is_refused(build):
    party = parties_of(build())[0]
    for message, text in (
        (Message(Kind.DONE), "cannot answer DONE"),
        (Message(Kind.EVALUATE, parts=(control({"start": 0, "stop": 10**12}),)), "no test samples 0 to 1000000000000"),
        (Message(Kind.START_ROUND, parts=(control({"beta": 0.1}),)), "RoundStart: 'alpha': Field required"),
    ):
        with pytest.raises(MessageError, match=text):
            party.handle(message)


def test_an_order_that_is_not_due_is_refused_and_the_next_one_still_is():
    agenda = Agenda("party_1", steps=2, staleness=0, rounds_begun=3)
    gradient = (Part(PartKind.GRADIENT, b"g"),)
    for due, refused, text in (
        (None, Message(Kind.EMBED, 2, 0), "not at EMBED of round 3, exchange 1, but at START_ROUND of round 3"),
        (None, Message(Kind.END_ROUND, 2), "not at END_ROUND of round 3, exchange 1"),
        (None, Message(Kind.START_ROUND, 4), "round 5 came where 4 is due"),
        (None, Message(Kind.DONE), "cannot answer DONE"),
        (Message(Kind.START_ROUND, 3), Message(Kind.START_ROUND, 3), "round 4 came where 5 is due"),
        (None, Message(Kind.EMBED, 3, 0, gradient), "an update came to party_1 before the round's first embedding"),
        (Message(Kind.EMBED, 3, 0), Message(Kind.EMBED, 3, 0), "not at EMBED of round 4, exchange 1, but at EMBED"),
        (Message(Kind.EVALUATE), Message(Kind.UPDATE, 3, 1), "not at UPDATE of round 4, exchange 2, but at EMBED"),
        (Message(Kind.EMBED, 3, 1, gradient), Message(Kind.EMBED, 3, 2), "but at END_ROUND of round 4, exchange 1"),
        (Message(Kind.END_ROUND, 3, 0, gradient), Message(Kind.EMBED, 3, 0), "but at START_ROUND"),
    ):
        if due is not None:
            agenda.check(due)
        with pytest.raises(MessageError, match=text):
            agenda.check(refused)
