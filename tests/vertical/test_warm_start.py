"""training.start_from: a training begins with a finished run's models and preparation, on other rows of its columns."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predicted import predict_in_process, predict_new_rows
from refusals import refused, refuses
from shorthand import at_every_run, build_here
from tiny_training import content_of, rows_of, train_run
from torch import nn
from two_tables import ROWS, lay_tables, write_tables

import vfl
from vfl.comparison.train_on_split import single_party_config
from vfl.config import ExperimentConfig, parse_config
from vfl.config.files import lay_over
from vfl.core.local import InProcess
from vfl.data.source import prepare_samples
from vfl.data.tables.source import Tables
from vfl.predict.start_from import start_of
from vfl.runs.stored_run import Run

OWN: dict[str, dict[str, Any]] = {
    "classes": {},
    "both forms": {"data": {"numbers": "both"}, "models": {"members": 2}},
    "amounts": {"task": "regression", "data": {"numbers": "quantiles"}},
    "shared": {"training": {"labels": "shared"}},
    "shared amounts": {"task": "regression", "training": {"labels": "shared"}},
    "pruned": {"lightweighting": {"alpha": {1: 0.5}}},
    "placeholders": {"training": {"party_dropout": 0.3}},
}


def start(folder: Path, sections: dict[str, Any], run_dir: Path | None = None, **training: Any) -> ExperimentConfig:
    """Settings that begin with the run in ``folder``."""
    return parse_config(sections | {"training": sections["training"] | {"start_from": folder} | training})


def built(config: ExperimentConfig, run_dir: Path) -> InProcess:
    return build_here(config, start=start_of(config, run_dir))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train_run(lay_tables(folder / "old", range(ROWS), {}), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("kind", at_every_run(OWN, "amounts", "pruned"))
def test_before_its_first_round_it_predicts_the_bits_of_the_run(tmp_path: Path, kind: str):
    """The rows are others, with other means, and have no gap and no rare category of the run's rows."""
    old = tmp_path / "run"
    train_run(lay_tables(tmp_path / "old", range(ROWS), OWN[kind]), old)
    before = content_of(old)
    other = OWN[kind] | {"lightweighting": {}}
    if kind == "placeholders":
        other["training"] = {}
    config = start(old, lay_tables(tmp_path / "more", range(200, 200 + ROWS), other))
    begun = built(config, tmp_path / "next")
    assert {each.evaluation_macs for each in begun.server.describe().values()} == {0}, "costs begin anew"
    for party, raw in zip(begun.parties, begun.split.parties, strict=True):
        assert party.train.features.equal(prepare_samples(party.preparation, raw.train).features)
    new = write_tables(tmp_path, range(1000, 1020), labelled=False)
    found, expected = predict_new_rows(begun, new, [], "refuse"), predict_in_process(Run(old), None, [], "refuse", new)
    assert found.probabilities_NC.tolist() == expected.probabilities_NC.tolist()
    kept = vfl.Run(old).checkpoints.load(2)
    assert {n: weights.tolist() for n, weights in begun.server.trainer.head.state_dict().items()} == {
        n: weights.tolist() for n, weights in kept["server"]["head"]["weights"].items()
    }
    for number in range(2):
        begun.server.train_round(number)
    trained = train_run(config, tmp_path / "next")
    assert trained["model_digest"] == begun.server.summary()["model_digest"]
    assert content_of(old) == before, "the run stays as it was"
    assert {row.get("head_drift/shop", 0.0) for row in rows_of(tmp_path / "next")} == {0.0}
    if kind == "pruned":
        assert {row["alpha/shop"] for row in rows_of(tmp_path / "next")} == {0.5}, "nothing un-prunes"


def test_images_start_as_tables_do(tmp_path: Path, configure):
    train_run(configure(training={"rounds": 2, "batch_size": 16}), tmp_path / "run")
    config = configure(training={"rounds": 1, "batch_size": 16, "start_from": tmp_path / "run"})
    begun = built(config, tmp_path / "next")
    assert begun.joint.predictions().tolist() == vfl.Run(tmp_path / "run").predict().tolist()


@pytest.mark.parametrize("kind", at_every_run(["amounts", "pruned", "shared"], "pruned"))
def test_resumed_it_equals_the_uninterrupted_one_without_the_run_it_began_with(tmp_path: Path, kind: str):
    old = tmp_path / "run"
    sections = lay_tables(tmp_path / "old", range(ROWS), OWN[kind])
    train_run(sections, old)
    more = lay_tables(tmp_path / "more", range(200, 200 + ROWS), OWN[kind])
    whole = train_run(start(old, more, rounds=3), tmp_path / "whole")
    train_run(start(old, more, rounds=1), tmp_path / "parts")
    shutil.rmtree(old)
    parts = train_run(start(old, more, rounds=3), tmp_path / "parts", resume=True)
    keys = ("model_digest", "finished_model_digest", "test_metrics", "uplink_bytes", "train_macs", "evaluation_macs")
    assert {key: parts[key] for key in keys} == {key: whole[key] for key in keys}
    assert len(vfl.Run(tmp_path / "parts").predict()) == 16, "its own test rows, by the columns that were kept"


def test_rows_may_lack_a_class_and_a_column_may_be_empty_but_no_class_is_new(tmp_path: Path):
    old, labels = tmp_path / "run", ["a", "b", "c"]

    def of(folder: str, rows: range, chosen: list[str]) -> dict[str, Any]:
        sections = lay_tables(tmp_path / folder, rows, {})
        bank = tmp_path / folder / "bank.csv"
        heading, *lines = bank.read_text().splitlines()
        named = [f"{line.rpartition(',')[0]},{chosen[k // 3 % len(chosen)]}" for k, line in enumerate(lines)]
        bank.write_text("\n".join([heading, *named]))
        return sections

    train_run(of("old", range(ROWS), labels), old)
    more = of("more", range(200, 240), ["c", "b"])
    shop = tmp_path / "more/shop.csv"
    shop.write_text(
        "\n".join(
            line.rpartition(",")[0] + "," * (place > 0) for place, line in enumerate(shop.read_text().splitlines())
        ).replace("k,spent", "k,spent,visits", 1)
    )
    begun = built(start(old, more), tmp_path / "next")
    assert begun.server.trainer.task.names == ("a", "b", "c")
    assert set(begun.split.labels.train.values.tolist()) == {1, 2}
    with refused("training.start_from", "'d'"):
        built(start(old, of("others", range(300, 340), ["a", "d"])), tmp_path / "next")


def test_a_head_gains_the_placeholders_that_its_new_rows_need(trained: Path, tmp_path: Path):
    config = start(trained, lay_tables(tmp_path / "more", range(200, 240), {}), party_dropout=0.3)
    head = built(config, tmp_path / "next").server.trainer.head
    weights = head.state_dict()
    assert weights["placeholder"].count_nonzero() == 0
    kept = vfl.Run(trained).checkpoints.load(2)["server"]["head"]["weights"]
    assert weights["output.weight"].equal(kept["output.weight"])


OTHER_SETTINGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "width": ({"models.feature.width": 0.2}, ("models.parties.bank.width", "0.1", "0.2")),
    "head": ({"models.head.hidden": [8]}, ("models.head.hidden", "16")),
    "task": ({"task": "regression"}, ("regr",)),
    "labels": ({"training.labels": "shared"}, ("training.labels",)),
    "kind": ({"data.tables.bank.features": {"age": "category", "job": "category"}}, ("bank.csv", "'age'")),
}
OTHER_FILES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no run": (lambda f: shutil.rmtree(f / "run"), ("holds",)),
    "unfinished": (lambda f: (f / "run/summary.json").unlink(), ("finished",)),
    "further column": (
        lambda f: _write(f / "more/shop.csv", lambda line, place: f"{line},{place or 'tax'}"),
        ("shop.csv", "'tax'"),
    ),
    "column less": (
        lambda f: _write(f / "more/shop.csv", lambda line, place: line.rpartition(",")[0]),
        ("shop.csv", "'visits'"),
    ),
}


def _write(path: Path, change: Any) -> None:
    path.write_text("\n".join(change(line, place) for place, line in enumerate(path.read_text().splitlines())))


@pytest.mark.parametrize("kind", [*OTHER_SETTINGS, *OTHER_FILES, "owners"])
def test_what_does_not_fit_is_one_line(trained: Path, tmp_path: Path, kind: str):
    shutil.copytree(trained, tmp_path / "run")
    sections = lay_tables(tmp_path / "more", range(200, 240), {})
    settings, line = OTHER_SETTINGS.get(kind, ({}, ("mall",)))
    if kind == "owners":
        tables = sections["data"]["tables"]
        sections["data"]["tables"] = {"bank": tables["bank"], "mall": tables["shop"]}
    if kind in OTHER_FILES:
        change, line = OTHER_FILES[kind]
        change(tmp_path)
    config = start(tmp_path / "run", lay_over(sections, settings))
    with refused("training.start_from", *line):
        train_run(config, tmp_path / "next")
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize(
    ("own", "what"), [({"label": "job"}, ("bank.csv", "label")), ({"weight": "age"}, ("bank.csv", "weight"))]
)
def test_a_feature_of_the_run_does_not_become_the_label_or_the_weight(
    trained: Path, tmp_path: Path, own: dict[str, str], what: tuple[str, ...]
):
    sections = lay_tables(tmp_path / "more", range(200, 240), {})
    sections["data"]["tables"]["bank"].update(own)
    with refused(*what):
        train_run(start(trained, sections), tmp_path / "next")


def test_the_label_owner_alone_trains_from_the_seed(trained: Path):
    config = start(trained, lay_tables(trained.parent / "old", range(ROWS), {}))
    assert single_party_config(config, Tables(config.data, 3), "bank").training.start_from is None


def test_a_resume_takes_no_other_start_and_asking_commands_none(trained: Path):
    config = start(trained, lay_tables(trained.parent / "old", range(ROWS), {}))
    refuses("--resume", lambda: train_run(config, trained, resume=True), "training.start_from")
    refuses("training.start_from", lambda: build_here(config), "trainings")


def test_a_name_is_that_of_a_run_below_runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, "runs/first")
    train_run(start(Path("first"), lay_tables(tmp_path / "old", range(ROWS), {})), Path("runs/second"))
    assert vfl.Run("runs/second").vertical.training.start_from == tmp_path / "runs/first"


@pytest.mark.filterwarnings("ignore:no better than a constant")
def test_estimators_start_from_a_fitted_one_and_leave_it_as_it_was():
    draw = np.random.default_rng(0)
    X, Z = draw.normal(size=(60, 4)), 5 + draw.normal(size=(40, 4))
    y, z = np.array(["a", "b", "c"])[np.arange(60) % 3], np.array(["c", "b"])[np.arange(40) % 2]
    quick: dict[str, Any] = {"rounds": 1, "random_state": 0, "settings": {"threads": 1, "training.steps_per_round": 2}}
    still = quick | {
        "settings": quick["settings"] | {"training.optimizer.learning_rate": 1e-30, "models.feature.batch_norm": False}
    }
    first = vfl.VerticalClassifier(**still).fit({"a": X}, y)
    told = first.predict_proba({"a": X})
    second = vfl.VerticalClassifier(**still).fit({"a": Z}, z, start_from=first)
    assert [*second.classes_] == ["a", "b", "c"]
    assert (second.predict_proba({"a": X}) == told).all(), "a rate of nothing keeps the bits, and so all that is kept"
    assert (first.predict_proba({"a": X}) == told).all()
    with refused("y", "'d'", "start_from"):
        vfl.VerticalClassifier(**still).fit({"a": Z}, np.where(z == "c", "d", z), start_from=first)
    other: Any = first
    with refused("start_from", "VerticalClassifier"):
        vfl.VerticalRegressor(**still).fit({"a": X}, X.sum(axis=1), start_from=other)
    with refused("settings", "training.start_from"):
        vfl.VerticalClassifier(settings={"training.start_from": "runs/x"}).fit({"a": X}, y)
    values = vfl.VerticalRegressor(**still).fit({"a": X}, X.sum(axis=1))
    again = vfl.VerticalRegressor(**still).fit({"a": Z}, 100 * Z.sum(axis=1), start_from=values)
    assert (again.predict({"a": X}) == values.predict({"a": X})).all()


@pytest.mark.filterwarnings("ignore:no better than a constant")
def test_an_estimator_of_an_earlier_versions_sizes_is_started_from():
    """Nine classes had models as narrow as two; the sizes need not be said again."""
    X, y = np.linspace(0, 1, 90)[:, None], np.arange(90) % 9
    quick: Any = {"rounds": 1, "random_state": 0}
    settings = {"threads": 1, "training.steps_per_round": 1}
    sizes = {"models.feature.width": 0.25, "models.feature.embedding_size": 8, "models.head.hidden": [16]}
    earlier = vfl.VerticalClassifier(**quick, settings=settings | sizes).fit({"a": X}, y)
    more = vfl.VerticalClassifier(**quick, settings=settings).fit({"a": X}, y, start_from=earlier)
    assert more.run_.config.models == earlier.run_.config.models


def test_own_models_start_from_a_run_and_another_model_is_one_line(tmp_path: Path):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(40, 4)).astype(np.float32)
    quick: dict[str, Any] = {"threads": 1, "training.rounds": 1, "training.batch_size": 16}

    def fit(model: nn.Module, folder: str, settings: dict[str, Any]) -> vfl.Run:
        parties = [vfl.Party("a", X, model)]
        return vfl.fit(parties, (X[:, 0] > 0).astype(int), settings=quick | settings, run_dir=tmp_path / folder)

    first = fit(nn.Linear(4, 3), "first", {})
    from_first = {"training.start_from": first.folder, "training.optimizer.learning_rate": 1e-30}
    again = fit(nn.Linear(4, 3), "again", from_first)
    assert again.predict({"a": X}).tolist() == first.predict({"a": X}).tolist()
    with refused("training.start_from", "Error"):
        fit(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), "other", from_first)
