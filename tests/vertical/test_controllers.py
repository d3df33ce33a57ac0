"""Controllers choose ratios by what was measured: on the virtual clock exactly, and again after a resume."""

import io
import json
import warnings

import pytest
from conftest import small_config
from rich.console import Console
from shorthand import build_here, release, train_rounds
from tiny_training import timeless

from vfl.config import parse_config
from vfl.core.costs.controllers import past_ratios
from vfl.core.costs.forecast import Ratios
from vfl.predict.mode import VERTICAL
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.runtime import start_runtime

SPEED, BANDWIDTH = 1e9, 1e6
FAST = {"macs_per_s": SPEED, "uplink_bytes_per_s": BANDWIDTH, "downlink_bytes_per_s": BANDWIDTH}
SLOW_LINK = {0: BANDWIDTH, 4: BANDWIDTH / 4}
MACHINES = {
    "parties": {
        "all": FAST,
        "party_2": FAST | {"macs_per_s": SPEED / 4},
        "party_3": FAST | {"uplink_bytes_per_s": SLOW_LINK, "downlink_bytes_per_s": SLOW_LINK},
    },
}
MODELS = {"feature": {"kind": "vgg11", "width": 0.1, "embedding_size": 64}, "head": {"hidden": [16]}}
DEADLINE_S = 0.06
EIGHT = {"rounds": 8}


def deadline(**more):
    return {"controller": "deadline", "seconds_per_exchange": DEADLINE_S, **more}


def ratios(rows, tag: str, party: str) -> list[float]:
    return [row[f"{tag}/{party}"] for row in rows]


def reason(row, party: str) -> str:
    (found,) = (tag.rpartition("/")[2] for tag in row if tag.startswith(f"reason/{party}/"))
    return found


@pytest.fixture(scope="module")
def adapting():
    """Eight rounds of a deadline: party_2 is slow, the link of party_3 falls to a quarter in round 4."""

    config = small_config(
        simulation=MACHINES, models=MODELS, lightweighting=deadline(), training=EIGHT | {"batch_size": 16}
    )
    server = build_here(config).server
    return server, train_rounds(server, 8)


@pytest.mark.release
def test_the_deadline_is_kept_after_the_first_pruning_and_two_rounds_after_a_link_falls(adapting):
    """Round 1 prunes, and so repeats one of its three exchanges' forward passes."""
    _, rows = adapting
    slowest = [max(row[f"exchange_s/party_{number}"] for number in range(1, 5)) for row in rows]
    late = [number for number, seconds in enumerate(slowest) if seconds > 1.05 * DEADLINE_S]
    assert late == [0, 1, 4, 5], slowest
    assert reason(rows[1], "party_2") == "compute"
    assert reason(rows[6], "party_3") == "link"
    assert {reason(row, "party_4") for row in rows[1:4]} == {"held"}


def test_only_who_must_is_pruned_and_nothing_is_unpruned(adapting):
    _, rows = adapting
    assert max(ratios(rows, "alpha", "party_4")[:6]) == 0.0
    alphas = ratios(rows, "alpha", "party_2")
    assert alphas == sorted(alphas)
    assert alphas[1] > 0


def test_seconds_are_expected_exactly_while_machines_do_not_change(adapting):
    _, rows = adapting
    for number, row in enumerate(rows):
        for party in ("party_1", "party_2", "party_4"):
            if number > 0:
                expected = row[f"predicted_exchange_s/{party}"]
                assert row[f"exchange_s/{party}"] == pytest.approx(expected, rel=1e-9 if number < 6 else 0.03)


@pytest.mark.release
def test_a_resumed_run_decides_as_the_first_one_did(adapting, build, tmp_path):
    server, rows = adapting
    training = EIGHT | {"batch_size": 16}
    sections = {"simulation": MACHINES, "models": MODELS, "lightweighting": deadline(), "training": training}
    first, second = build(**sections), build(**sections)
    train_rounds(first, 3)
    store = CheckpointStore(tmp_path)
    store.save(3, first.state_dict())
    second.load_state_dict(store.load(3))
    assert train_rounds(second, 8, 3)[-1]["simulated_time_s/total"] == rows[-1]["simulated_time_s/total"]
    assert second.summary()["model_digest"] == server.summary()["model_digest"]


def test_decisions_in_the_rows_are_repeated_whatever_the_clock_says(build, tmp_path):
    server = build(lightweighting=deadline(), simulation=MACHINES)
    parties = {f"{tag}/party_{number}": 0.3 for tag in ("alpha", "beta") for number in range(1, 5)}
    row = {"round": 0, **parties, "reason/party_1/compute": 1.0, "predicted_exchange_s/party_1": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + '\n5\n{"round": 1, "alp')
    server.past_ratios = past_ratios(server.config, tmp_path)
    assert list(server.past_ratios) == [0]
    metrics = server.train_round(0)
    assert row.items() - {("round", 0)} <= metrics.items()
    assert server.train_round(1)["alpha/party_1"] == 0.3


CHANGING = {
    "parties": {
        "all": FAST,
        "party_2": FAST | {"macs_per_s": {0: SPEED / 4, 3: SPEED / 16}},
        "party_4": FAST | {"macs_per_s": {0: SPEED, 2: SPEED / 8}},
    },
}


def resumed(build, folder, rows, **sections):
    """A server that repeats the rounds of some rows, as one that was killed after them and before a checkpoint."""
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(row | {"round": at}) + "\n" for at, row in enumerate(rows))
    )
    server = build(**sections)
    server.past_ratios = past_ratios(server.config, folder)
    return server


@pytest.mark.release
@pytest.mark.parametrize(
    ("limit", "kills"), [("auto", [3]), release("auto", [1, 2, 4, 5]), release(DEADLINE_S, [1, 3, 5])]
)
def test_a_run_that_begins_anew_is_the_run_that_was_not_killed(build, tmp_path, limit, kills: list[int]):
    """Weights, ratios, and all bytes, those of evaluations too, after how many rounds it was killed."""
    sections = {
        "simulation": CHANGING,
        "models": MODELS,
        "lightweighting": deadline(seconds_per_exchange=limit),
        "training": {"rounds": 5, "batch_size": 16},
    }
    undisturbed = build(**sections)
    rows, expected = train_rounds(undisturbed, 5), timeless(undisturbed.summary())
    assert {row["alpha/party_4"] for row in rows} > {0.0}  # it is pruned, and not in the first round
    for killed in kills:
        server = resumed(build, tmp_path, rows[:killed], **sections)
        assert timeless(train_rounds(server, 5)) == timeless(rows)
        assert server.ledger.costs["party_4"].evaluation_bytes("uplink") > 0
        assert timeless(server.summary()) == expected


def test_a_controller_that_asks_late_gets_the_costs_of_unpruned_models(build):
    server = build(lightweighting=deadline())
    asked = []

    def late(round_index, reports):
        if round_index == 2:
            asked.append(server.price_list.forecast.macs["party_1"])
        return dict.fromkeys(server.roster.names, Ratios(0.5 if round_index else 0.0))

    server.assign = late
    whole = train_rounds(server, 1)[0]["macs_per_sample/party_1"]
    train_rounds(server, 3, 1)
    assert asked[0][0.0] == whole > 1.5 * asked[0][0.5]


@pytest.mark.release
def test_what_cannot_be_met_is_said_once_and_the_bounds_hold(build):
    server = build(lightweighting=deadline(seconds_per_exchange=1e-6, alpha_max=0.5, beta_max={"party_1": 0.5}))
    with pytest.warns(UserWarning, match="party_1, party_2, party_3, party_4 cannot meet") as told:
        rows = train_rounds(server, 3)
    assert len([each for each in told if "cannot meet" in str(each.message)]) == 1
    assert {reason(row, "party_1") for row in rows[1:]} == {"bound"}
    assert max(ratios(rows, "alpha", "party_1")) <= 0.5
    assert max(ratios(rows, "beta", "party_2")) == 0.0


def test_fixed_ratios_ask_no_party_for_prices(build):
    server = build()
    train_rounds(server, 1)
    assert server.price_list.prices == {}
    assert all(costs.evaluation_bytes("uplink") == 0 for costs in server.ledger.costs.values())


@pytest.mark.parametrize("machines", [None, MACHINES])
def test_a_deadline_by_this_machines_own_seconds_is_said(tmp_path, machines):
    shown = io.StringIO()
    simulation = {} if machines is None else {"simulation": machines}
    config = small_config(models=MODELS, lightweighting=deadline(), **simulation)
    console = Console(file=shown, width=500)
    VERTICAL.build(config, VERTICAL.stage(config, start_runtime(config), tmp_path, console))
    assert ("warning: lightweighting.controller: deadline goes by" in shown.getvalue()) == (machines is None)


def test_settings_of_another_controller_are_said_to_be_ignored():
    settings = {"seconds_per_exchange": 3, "alpha_max": 0.5}
    config = parse_config({"name": "small", "data": {"dataset": {"kind": "digits"}}, "lightweighting": settings})
    ignored = [line.partition(":")[0] for line in config.warnings() if "controller is fixed" in line]
    assert ignored == [f"lightweighting.{name}" for name in ("seconds_per_exchange", "alpha_max")]
    with warnings.catch_warnings(action="error"):
        measured = parse_config(
            {"name": "small", "data": {"dataset": {"kind": "digits"}}, "lightweighting": deadline()}
        )
    assert measured.warnings() == []
