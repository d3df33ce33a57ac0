"""BatchNorm's running statistics, and that looking at the model moves nothing."""

from functools import partial

import pytest
import torch
from shorthand import train_rounds

from vfl.horizontal.fleet import STATISTICS


@pytest.fixture
def trainer(trainer):
    return partial(trainer, batch_norm=True)


def pairs_of(calls):
    """Every task that the engine got, with its result."""
    return [pair for (tasks,), results in calls for pair in zip(tasks, results, strict=True)]


def test_averaged_statistics_are_weighted_by_samples(trainer, problem_with_batch_norm, recorded):
    server = trainer(buffers="average")
    calls = recorded(server.fleet.engine, "train")
    server.train_round(0)
    sizes = {result.client: problem_with_batch_norm.sizes[result.client] for _, result in pairs_of(calls)}
    expected_Q = sum(sizes[result.client] * result.statistics_Q for _, result in pairs_of(calls)) / sum(sizes.values())
    torch.testing.assert_close(server.state[STATISTICS], expected_Q)
    calls.clear()
    expected_Q = server.state[STATISTICS]
    server.train_round(1)
    assert all(torch.equal(task.statistics_Q, expected_Q) for task, _ in pairs_of(calls))


def test_fedasyncs_statistics_are_mixed_as_its_weights(trainer, recorded):
    server = trainer(algorithm="fedasync", clients_per_round=1, fedasync={"mixing": 0.25, "staleness": "constant"})
    calls = recorded(server.fleet.engine, "train")
    before_Q = server.state[STATISTICS]
    server.train_round(0)
    arrived_Q = pairs_of(calls)[0][1].statistics_Q
    torch.testing.assert_close(server.state[STATISTICS], 0.75 * before_Q + 0.25 * arrived_Q)


def test_local_statistics_stay_with_their_client(trainer, recorded):
    server = trainer(buffers="local", clients_per_round=6)
    calls = recorded(server.fleet.engine, "train")
    start_Q = server.state[STATISTICS].clone()
    server.train_round(0)
    left = {result.client: result.statistics_Q for _, result in pairs_of(calls)}
    calls.clear()
    server.train_round(1)
    for task, _ in pairs_of(calls):
        assert torch.equal(task.statistics_Q, left[task.client])
    assert torch.equal(server.state[STATISTICS], start_Q)
    assert STATISTICS not in server.fleet.download_entries()


def test_dropped_statistics_start_anew_every_round(trainer, recorded):
    server = trainer(buffers="drop")
    calls = recorded(server.fleet.engine, "train")
    start_Q = server.state[STATISTICS].clone()
    train_rounds(server, 3)
    assert all(torch.equal(task.statistics_Q, start_Q) for task, _ in pairs_of(calls))
    assert torch.equal(server.state[STATISTICS], start_Q)
    assert all(server.fleet.states.get(client) == {} for client in range(6))


def test_integer_counters_are_neither_sent_nor_learned(trainer):
    server = trainer()
    model = server.fleet.model
    assert model.statistic_count == 2 * 5  # running mean and variance of five units
    assert all(tensor.is_floating_point() for tensor in model.learned().values())
    assert not any("num_batches_tracked" in name for name in model.learned())


@pytest.mark.parametrize("buffers", ["average", "local", "drop"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedasync"])
def test_evaluation_moves_nothing(trainer, name, buffers):
    watched, unwatched = (trainer(algorithm=name, buffers=buffers) for _ in range(2))
    for round_index in range(3):
        state = {entry: vector.clone() for entry, vector in watched.state.items()}
        random = torch.get_rng_state()
        first = watched.evaluate()
        assert watched.evaluate() == first
        assert torch.equal(torch.get_rng_state(), random)
        assert all(torch.equal(watched.state[entry], vector) for entry, vector in state.items())
        watched.train_round(round_index)
        unwatched.train_round(round_index)
    assert watched.summary()["model_digest"] == unwatched.summary()["model_digest"]


def test_evaluation_uses_running_statistics_only_where_they_are_averaged(trainer, problem_with_batch_norm):
    averaging, dropping = trainer(buffers="average"), trainer(buffers="drop")
    whole = problem_with_batch_norm.features
    for server in (averaging, dropping):
        server.evaluator.batch_size = len(whole)
    module = averaging.fleet.model.module
    expected = {}
    for name, by_batch in (("average", False), ("drop", True)):
        averaging.fleet.model.load(averaging.state["weights"], averaging.state[STATISTICS])
        module.train(by_batch)
        with torch.no_grad():
            expected[name] = float(problem_with_batch_norm.loss(module(whole), problem_with_batch_norm.labels))
    assert expected["average"] != expected["drop"]
    assert averaging.evaluate()["loss/test"] == pytest.approx(expected["average"], rel=1e-5)
    assert dropping.evaluate()["loss/test"] == pytest.approx(expected["drop"], rel=1e-5)
