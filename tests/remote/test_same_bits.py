"""Five processes over mutual TLS train the same bits, report the same metrics and count the same bytes as one."""

import json
import re
from typing import Any

import pytest
from shorthand import release

from vfl.config import ExperimentConfig
from vfl.core.presence import Presence, batch_rows, steps_in_round

GRID = {"partition": {"rows": 2, "columns": 2}}


def embedded(config: ExperimentConfig, party: str) -> int:
    """Return in how many training samples a party takes part, each exchange counted anew."""
    training, samples = config.training, config.data.train_samples
    assert samples is not None
    steps, place = steps_in_round(training, samples), config.parties.index(party)
    presence = Presence(None, len(config.parties), training.party_dropout, config.seed)
    batches = [batch_rows(config.seed, each, steps, samples, training.batch_size) for each in range(training.rounds)]
    rounds = [presence.of_round(number, rows) for number, rows in enumerate(batches)]
    return sum(shares[place].count for shares_of_round in rounds for shares in shares_of_round)


@pytest.mark.parametrize(
    ("labels", "iterations"),
    [("server", 3), *(release(*each) for each in (("shared", 1), ("shared", 3), ("server", 1)))],
)
def test_five_processes_equal_one(federate, in_process, labels: str, iterations: int):
    # Three local iterations also where parties are left out of samples, and ahead: every side draws the same ones.
    training = {"labels": labels, "local_iterations": iterations}
    training |= {"party_dropout": 0.4, "staleness": 1} if iterations == 3 else {}
    quantised = {"bits": 8, "gradients": {"beta": 0.5, "bits": 4, "error_feedback": True}, "coding": "entropy"}
    sections = {"data": GRID, "training": training, "wire": quantised if iterations == 3 else {}}
    federation = federate(**sections)
    federation.run()
    federation.check_ended()
    expected = in_process(**sections)
    assert federation.outcome() == expected
    federation.check_own_rows()
    given = json.loads((federation.folder / "party_2" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (
        given["given/embeddings"] - embedded(federation.config, "party_2")
    ) % federation.config.data.test_samples == 0
    # What a wrong link would have to get right: two prunings, changing sparsity, sparse differences.
    assert [row["alpha/party_4"] for row in expected["rows"]] == [0.0, 0.2, 0.5]
    assert [row["beta/party_4"] for row in expected["rows"]] == [0.3, 0.3, 0.6]


def defended(gradients: str, embeddings: str) -> dict[str, Any]:
    privacy = {"gradients": gradients, "embeddings": {"kind": embeddings, "strength": 0.1}, "noise_seed": 5}
    return {"training": {"labels": "server"}, "privacy": privacy}


@pytest.mark.filterwarnings("ignore:privacy.gradients. a row moves its whole batch")
@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"labels": "shared", "auxiliary": 0.5, "party_dropout": 0.3}},
        release({"training": {"labels": "server", "auxiliary": 0.5, "party_dropout": 0.3}}),
        release(defended("max_norm", "gaussian")),
        release(defended("gaussian", "distance_correlation")),
    ],
    ids=["classifiers", "classifiers at the server", "longest and noisy", "noisy and decorrelated"],
)
def test_classifiers_and_defences_are_the_same_in_processes(federate, in_process, sections: dict[str, Any]):
    federation = federate(**sections)
    federation.run()
    assert federation.outcome() == in_process(**sections), federation.logs()


@pytest.mark.release
def test_a_broadcast_head_and_other_values_and_models(federate, in_process):
    sections = {
        "training": {"head_sync": "broadcast", "staleness": 2, "steps_per_round": 3},
        "wire": {"values": "bfloat16", "bits": 4},
        "evaluation": {"tell_parties": True},
        "models": {"parties": {"party_2": {"kind": "mlp", "embedding_size": 4, "width": 0.1}}},
    }
    federation = federate(**sections)
    federation.run()
    outcome = federation.outcome()
    assert outcome == in_process(**sections)
    reached = [f"test accuracy {row['accuracy/test']:.2%}" for row in outcome["rows"]]
    for name in federation.names[1:]:
        lines = federation.log(name).splitlines()
        rounds = [line for line in lines if " rounds  " in line]
        assert [told in line for told, line in zip(reached, rounds, strict=True)] == [True, True, False], rounds
        assert re.fullmatch(
            rf"{name} gave away so far: [0-9,]+ embeddings of [0-9,]+ of its rows, [0-9.]+ MB", lines[-2]
        )
        assert lines[-1] == f"the server ended after 3 rounds, {reached[-1]}"


@pytest.mark.release
def test_shifted_and_smaller_images_and_rates_by_name_are_the_same_in_processes(federate, in_process):
    named = {"learning_rate": 0.05, "schedule": "one_cycle", "momentum": 0.9}
    sections = {
        "data": {"augmentation": {"shift": {1: 2}}},
        "training": {"optimizer": named, "label_smoothing": 0.1, "loss": {"kind": "focal"}, "steps_per_round": 4},
        "lightweighting": {"error_feedback": False, "resolution": {"party_1": {0: 0.5, 2: 1.0}}},
    }
    federation = federate(**sections)
    federation.run()
    assert federation.outcome() == (expected := in_process(**sections))
    assert [row["resolution/party_1"] for row in expected["rows"]] == [0.5, 0.5, 1.0]
    own = (federation.folder / "party_1" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["resolution/party_1"] for row in own] == [0.5, 0.5, 1.0]


@pytest.mark.release
def test_a_controller_decides_alike_wherever_parties_are(federate, in_process):
    """By a deadline that nobody misses, so by the least that every party agreed to, whatever the clock says."""
    ratios = {"alpha": 0.0, "beta": {0: 0.1, 1: 0.3}, "controller": "deadline", "seconds_per_exchange": 1e6}
    sections = {"lightweighting": ratios}
    federation = federate(**sections)
    federation.run()
    federation.check_ended()
    outcome, expected = federation.outcome(), in_process(**sections)
    for row in (*outcome["rows"], *expected["rows"]):  # predictions are of seconds
        for name in [tag for tag in row if tag.startswith("predicted_exchange_s/")]:
            del row[name]
    assert outcome == expected
    assert [row["beta/party_1"] for row in outcome["rows"]] == [0.1, 0.3, 0.6]
