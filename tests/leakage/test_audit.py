"""The audit of runs that were really trained, and training with defences."""

import copy
import hashlib
import json

import numpy as np
import pytest
import yaml
from shorthand import release
from tiny_training import TINY, summary_of

import vfl
from vfl.audit.audit import NORM, Finding
from vfl.audit.watch_run import audit, label_attacks, watch
from vfl.base.estimates import Estimate
from vfl.config import ConfigError, parse_config
from vfl.parties.network.transport.security import NOISE_KEY, noise_key
from vfl.predict.trained_run import load_run_with_data
from vfl.runs.stored_run import Run


def trained(folder, **overrides):
    config = copy.deepcopy(TINY) | {"data": TINY["data"] | {"train_samples": 160}}
    config["training"] = config["training"] | {"steps_per_round": 10}
    (folder.parent / "tiny.yaml").write_text(yaml.safe_dump(config))
    vfl.train(folder.parent / "tiny.yaml", overrides, run_dir=folder)
    return folder


@pytest.fixture
def train(tmp_path):
    return lambda folder, **overrides: trained(tmp_path / folder, **overrides)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run with all its checkpoints, which nobody may change."""
    return trained(tmp_path_factory.mktemp("kept") / "run", **{"training.labels": "server", "checkpoint.keep": 4})


def contents(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.release
def test_an_audit_finds_planted_leaks_and_changes_nothing(kept):
    before = contents(kept)
    found = audit(kept, rows=160)
    assert contents(kept) == before
    by_attack = {(each.attack, each.attacker): each for each in found.findings}
    # Two digits' gradients at initialisation point apart: p - y has the sign of the class.
    direction = by_attack["gradient direction", "party_1"]
    assert direction.leaks
    assert direction.control.holds(0.5)
    decoder = by_attack["embedding decoder", "who sees party_1's embeddings"]
    assert decoder.found.value < decoder.control.value
    assert sorted(found.by_round) == [1, 2, 3, 4]
    assert {leak.attack for leaks in found.by_round.values() for leak in leaks} == {NORM}
    assert found.left_out == ()
    json.dumps(found.as_json(), allow_nan=False)


@pytest.mark.release
def test_the_round_that_is_watched_is_the_one_that_followed(kept):
    watched = load_run_with_data(Run(kept), 3)
    watch(watched, 3, 160)
    # Round 3 prunes further: the ratios of the watched round are those reached before it.
    expected = load_run_with_data(Run(kept), 3)
    expected.server.assign = watched.server.assign
    expected.server.train_round(3)
    assert watched.server.summary()["model_digest"] == expected.server.summary()["model_digest"]


@pytest.mark.parametrize("settings", [{}, release({"training.staleness": 1})])
def test_watching_ends_when_enough_rows_were_sent(kept, train, settings):
    run = train("run", **{"training.labels": "server", "checkpoint.keep": 4, **settings}) if settings else kept
    whole, few = load_run_with_data(Run(run), 3), load_run_with_data(Run(run), 3)
    expected, found = watch(whole, 3, 160), watch(few, 3, 40)
    assert len(few.server.exchanges.losses) == 3 < len(whole.server.exchanges.losses)  # of 16 rows each
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.gradients_ND is not None
        assert theirs.gradients_ND is not None
        assert np.array_equal(mine.labels_N, theirs.labels_N[:40])
        assert np.array_equal(mine.embeddings_ND, theirs.embeddings_ND[:40])
        assert np.array_equal(mine.gradients_ND, theirs.gradients_ND[:40])


@pytest.mark.release
def test_shared_labels_leave_only_features_to_attack(train):
    found = audit(train("run"), rows=160)
    assert {each.attack for each in found.findings} == {"embedding decoder"}
    assert found.left_out == ("inference of labels: training.labels=server; here all parties hold the labels",)


@pytest.mark.parametrize(
    ("measure", "value", "leaks"),
    [
        ("AUC", 0.9, True),
        ("AUC", 0.1, True),
        ("AUC", 0.52, False),
        ("error left", 0.1, True),
        ("error left", 0.9, False),
        ("labels right", 0.1, False),
    ],
)
def test_a_leak_is_what_lies_apart_from_chance_on_a_side_that_tells(measure, value, leaks):
    found, chance = Estimate(value, value - 0.05, value + 0.05), Estimate(0.5, 0.45, 0.55)
    assert Finding("gradient norm", "anna", measure, found, chance, 200).leaks is leaks


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({"task": "regression"}, "inference of labels: task=classification"),
        ({"training": {"labels": "shared"}}, "inference of labels: training.labels=server"),
        ({"training": {"labels": "server"}}, None),
    ],
)
def test_a_run_whose_labels_cannot_be_attacked_says_which_setting_would_do(settings, left_out):
    config = parse_config(TINY).model_copy(deep=True)
    training = config.training.model_copy(update=settings.get("training", {}))
    task = settings.get("task", config.task)
    possible, lines = label_attacks(config.model_copy(update={"training": training, "task": task}))
    assert possible is (left_out is None)
    assert [line.startswith(left_out or "") for line in lines] == [True] * (not possible)


def test_a_run_with_one_checkpoint_says_how_rounds_are_compared(train, monkeypatch):
    monkeypatch.setattr("vfl.audit.watch_run.attack", lambda *_: [])
    found = audit(
        train("run", **{"training.labels": "server", "training.rounds": 1, "lightweighting.alpha": 0}), rows=160
    )
    assert found.left_out == ("gradients by round: checkpoint.keep of as many rounds as are to be compared",)


def test_too_few_rows_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--rows: 5 are too few"):
        audit(tmp_path, rows=5)


DEFENDED = {
    "training.labels": "server",
    "privacy.gradients": {"kind": "gaussian", "strength": 0.5},
    "privacy.embeddings": {"kind": "gaussian", "strength": 0.2},
    "models.feature.batch_norm": False,
}


@pytest.mark.release
@pytest.mark.parametrize(
    "defence",
    [
        DEFENDED,
        *(
            pytest.param({"training.labels": "server", f"privacy.{side}": kind}, marks=pytest.mark.release)
            for side, kind in (("gradients", "max_norm"), ("embeddings", "distance_correlation"))
        ),
    ],
)
def test_a_defence_costs_no_byte_and_the_epsilon_of_noise_is_in_the_summary(train, defence):
    same = {"training.labels": "server", "lightweighting.beta": 0, "models.feature.batch_norm": defence is not DEFENDED}
    plain = summary_of(train("plain", **same))
    defended = summary_of(train("defended", **defence, **{"lightweighting.beta": 0}))
    assert defended["model_digest"] != plain["model_digest"]
    for party, spent in plain["parties"].items():
        sent = defended["parties"][party]["bytes_by_kind"]
        assert sent["uplink"]["embedding"] == spent["bytes_by_kind"]["uplink"]["embedding"]
        assert sent["downlink"]["gradient"] == spent["bytes_by_kind"]["downlink"]["gradient"]
    assert defended["train_macs"] == plain["train_macs"]
    assert "privacy" not in plain
    if defence is not DEFENDED:
        assert "privacy" not in defended  # these promise nothing
        return
    assert defended["privacy"]["gradients"]["releases"] == 4
    assert defended["privacy"]["gradients"]["epsilon"] < defended["privacy"]["embeddings"]["epsilon"]


@pytest.mark.release
def test_other_noise_is_another_run_and_the_same_noise_the_same(train):
    digests = [
        summary_of(train(f"run{place}", **DEFENDED, **{"privacy.noise_seed": seed}))["model_digest"]
        for place, seed in enumerate((1, 1, 2))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_process_keeps_its_secret_to_itself(tmp_path):
    noisy = parse_config(TINY | {"privacy": {"embeddings": "gaussian"}})
    secret = noise_key(noisy, tmp_path)
    assert secret is not None
    assert len(secret) == 32
    assert noise_key(noisy, tmp_path) == secret
    assert (tmp_path / NOISE_KEY).stat().st_mode & 0o777 == 0o600
    (tmp_path / NOISE_KEY).write_text("nothing")
    with pytest.raises(ValueError, match="holds no secret"):
        noise_key(noisy, tmp_path)
    assert noise_key(parse_config(TINY), tmp_path / "other") is None
    assert noise_key(parse_config(TINY | {"privacy": {"embeddings": "gaussian", "noise_seed": 1}}), tmp_path) is None
