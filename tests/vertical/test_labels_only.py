"""An owner of labels alone: no feature model, no embedding; the bits of the run whose parties are the others alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from predicted import predict_in_process
from refusals import refused, refuses
from shorthand import at_every_run, release
from tiny_matches import run as run_match
from tiny_training import train_run
from two_tables import ROWS, sections_of, with_clerk, write_labels, write_tables

import vfl
from vfl.comparison.compare import compare
from vfl.config import ConfigError, parse_config
from vfl.data.experiments import decide_parties
from vfl.data.source import open_source
from vfl.data.tables.describe import describe_table
from vfl.data.tables.proposal import proposed_yaml
from vfl.runs.stored_run import Run

SAME = ("model_digest", "finished_model_digest", "test_metrics", "uplink_bytes", "downlink_bytes", "parties")


def config_of(sections: Mapping[str, Any]):
    sections = {name: dict(section) for name, section in sections.items()}
    sections["models"] |= {"head": {"hidden": [16]}}
    sections["training"] |= {"rounds": 2, "batch_size": 16, "local_iterations": 2}
    return decide_parties(parse_config({"name": "small", "seed": 3, "threads": 1} | sections))


def trained(sections: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    summary = train_run(config_of(sections), run_dir)
    summary["parties"] = {
        name: {key: value for key, value in each.items() if key != "train_time_s"}
        for name, each in summary["parties"].items()
    }
    return {name: summary[name] for name in SAME}


@pytest.fixture(scope="module", params=["server", "shared"])
def without_clerk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """The outcome of a run in which the bank has the labels, and who has them then."""
    folder = tmp_path_factory.mktemp("two")
    sections = sections_of(write_tables(folder, range(ROWS), labelled=True))
    sections["training"]["labels"] = request.param
    return trained(sections, folder / "run"), request.param


@pytest.mark.parametrize(
    ("place", "own"),
    [(0, {"features": {}}), (1, {}), release(2, {"features": {"k": "ignore"}})],
    ids=["none", "left out", "ignored"],
)
def test_an_owner_of_labels_alone_leaves_the_bits_of_the_others(tmp_path: Path, place: int, own, without_clerk):
    paths = write_tables(tmp_path, range(ROWS), labelled=True)
    sections = sections_of(paths)
    expected, sections["training"]["labels"] = without_clerk
    clerk = write_labels(tmp_path, paths["bank"])
    assert trained(with_clerk(sections, clerk, place, **own), tmp_path / "three") == expected
    assert [*expected["parties"]] == ["bank", "shop"]
    kept = yaml.safe_load((tmp_path / "three/config.yaml").read_text())
    assert kept["data"]["tables"]["clerk"]["features"] == own.get("features", {})
    assert json.loads((tmp_path / "three/summary.json").read_text())["parties"].keys() == {"bank", "shop"}


def test_new_rows_are_named_by_the_labels_owner_or_by_the_first(tmp_path: Path):
    (tmp_path / "new").mkdir()
    paths = write_tables(tmp_path, range(ROWS), labelled=True)
    sections = sections_of(paths)
    trained(sections, tmp_path / "two")
    trained(with_clerk(sections, write_labels(tmp_path, paths["bank"])), tmp_path / "three")
    new = write_tables(tmp_path / "new", range(1000, 1020), labelled=False)
    clerk = tmp_path / "new/clerk.csv"
    clerk.write_text("\n".join(["k", *map(str, range(1004, 1020))]))
    expected = predict_in_process(Run(tmp_path / "two"), None, [], "refuse", new).rows()
    found = predict_in_process(Run(tmp_path / "three"), None, [], "refuse", new).rows()
    assert found == expected
    named = predict_in_process(Run(tmp_path / "three"), None, [], "refuse", new | {"clerk": clerk}).rows()
    assert named == [expected[0], *expected[5:]]
    (row,) = {tuple(row) for row in vfl.Run(tmp_path / "three").predict({"clerk": clerk, **new})[:1].tolist()}
    assert row[1] == pytest.approx(float(named[1][-2]))
    refuses("--absent", lambda: predict_in_process(Run(tmp_path / "three"), None, ["clerk"], "zeros", new), "'clerk'")


def test_foreign_keys_need_the_table_that_has_them(tmp_path: Path):
    paths = write_tables(tmp_path, range(ROWS), labelled=True)
    clerk = write_labels(tmp_path, paths["bank"])
    lines = clerk.read_text().splitlines()
    clerk.write_text("\n".join([lines[0] + ",card", *(f"{line},c{line.split(',')[0]}" for line in lines[1:])]))
    heading, *rows = paths["shop"].read_text().splitlines()
    paths["shop"].write_text("\n".join([heading, *(f"c{row}" for row in rows)]))
    sections = with_clerk(sections_of(paths), clerk, keys={"shop": "card"})
    assert [*trained(sections, tmp_path / "run")["parties"]] == ["bank", "shop"]
    refuses("--table", lambda: predict_in_process(Run(tmp_path / "run"), None, [], "refuse", paths), "clerk")
    assert (
        len(predict_in_process(Run(tmp_path / "run"), None, [], "refuse", paths | {"clerk": clerk}).rows()) == 1 + ROWS
    )


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"shop": {"features": {}}}, ("data.tables.shop.features", "which")),
        ({"bank": {"features": {}}, "shop": {"features": {}}}, ("data.tables.shop.features", "left")),
        ({"bank": {"features": {}}, "shop": None}, ("data.tables", "under")),
    ],
)
def test_only_the_labels_owner_needs_no_feature(tmp_path: Path, tables, message):
    sections = sections_of(write_tables(tmp_path, range(ROWS), labelled=True))
    given = sections["data"]["tables"]
    for owner, own in tables.items():
        given[owner] = None if own is None else given[owner] | own
    sections["data"]["tables"] = {owner: table for owner, table in given.items() if table is not None}
    with refused(*message):
        config_of(sections)


def test_a_table_whose_columns_are_left_out_is_asked_about(tmp_path: Path):
    paths = write_tables(tmp_path, range(ROWS), labelled=True)
    sections = with_clerk(sections_of(paths), write_labels(tmp_path, paths["bank"], "constant"))
    refuses("clerk.csv", lambda: trained(sections, tmp_path / "run"), "'constant'")


@pytest.mark.parametrize("rows", [8, 40])
def test_describe_writes_the_table_of_labels_alone(tmp_path: Path, rows: int):
    path = tmp_path / "clerk.csv"
    path.write_text("\n".join(["k,late", *(f"{row},{row % 2}" for row in range(rows))]))
    text = proposed_yaml(path, describe_table(path), tmp_path, "late")
    assert "features: {} " in text or rows == 40
    proposed = yaml.safe_load(text)
    assert proposed["key"] == "k"
    tables = {"clerk": proposed, "shop": {"file": "shop.csv", "key": "k"}}
    config = parse_config({"name": "x", "data": {"dataset": {"kind": "tables"}, "tables": tables}})
    assert (config.parties, config.owners) == (("shop",), ("clerk", "shop"))


@pytest.mark.release
@pytest.mark.filterwarnings("ignore:X. .* rows of clerk have")
@pytest.mark.parametrize("key", at_every_run([None, "k"], "k"))
def test_estimators_take_labels_alone(key: str | None):
    draw = np.random.default_rng(0)
    left, right, y = draw.normal(size=(60, 3)), draw.normal(size=(60, 2)), draw.integers(0, 2, 60)
    keyed = {} if key is None else {"k": [f"c{row}" for row in range(60)]}
    tables = {
        name: {f"{name}{i}": each[:, i] for i in range(each.shape[1])} | keyed
        for name, each in (("l", left), ("r", right))
    }
    settings: dict[str, Any] = {"rounds": 2, "random_state": 0, "key": key, "settings": {"threads": 1}}
    expected = vfl.VerticalClassifier(**settings).fit(tables, y)
    scores = expected.predict_proba(tables).tolist()
    for alone in [keyed] if key else [None, np.empty((60, 0))]:
        model = vfl.VerticalClassifier(**settings).fit({"clerk": alone, **tables}, y)
        assert model.run_.summary["model_digest"] == expected.run_.summary["model_digest"]
        assert model.predict_proba(tables).tolist() == scores
        assert model.predict_proba({"clerk": alone, **tables}).tolist() == scores
        assert model.contributions_ == expected.contributions_
        assert len(model.costs_["bytes"]) == 2
    with pytest.raises(ConfigError, match=r"nobody else is there|no owner has a feature"):
        vfl.VerticalClassifier(**settings).fit({"clerk": keyed or None}, y)
    if key is None:
        with refused("X", "different"):
            vfl.VerticalClassifier(**settings).fit({"clerk": np.empty((59, 0)), **tables}, y)


def test_compare_measures_against_the_class_shares(tmp_path: Path):
    paths = write_tables(tmp_path, range(ROWS), labelled=True)
    config = config_of(with_clerk(sections_of(paths), write_labels(tmp_path, paths["bank"])))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(json.loads(config.model_dump_json())))
    found = compare(tmp_path / "config.yaml", run_dir=tmp_path / "compared")
    assert (found.leader, found.others, found.reached["alone"]) == ("clerk", ("bank", "shop"), 0.5)
    assert found.columns.keys() == {"bank", "shop"}


@pytest.mark.parametrize("join", ["inner", "left"])
def test_a_match_names_the_owner_of_labels_and_training_does_without(tmp_path: Path, join: str):
    paths = write_tables(tmp_path, range(ROWS), labelled=True)
    clerk = write_labels(tmp_path, paths["bank"])
    paths["shop"].write_text("\n".join(paths["shop"].read_text().splitlines()[:-20]))
    sections = with_clerk(sections_of(paths), clerk, place=1)
    for owner, table in sections["data"]["tables"].items():
        table["match"] = str(tmp_path / f"{owner}.match")
    sections["data"]["join"] = join
    config = config_of(sections)
    outcome, _ = run_match(config)
    assert outcome.samples == (ROWS if join == "left" else ROWS - 20)
    split = open_source(config).split()
    assert [part.party for part in split.parties] == ["bank", "shop"]
    for part in split.parties:  # each alone: the labels' owner has features as far as the others know
        tables = {owner: table if owner == part.party else {} for owner, table in sections["data"]["tables"].items()}
        alone = open_source(config_of(sections | {"data": sections["data"] | {"tables": tables}}))
        assert alone.held_by(part.party).ids_digests() == part.ids_digests()
    tables = {owner: table if owner == "clerk" else {} for owner, table in sections["data"]["tables"].items()}
    held = open_source(config_of(sections | {"data": sections["data"] | {"tables": tables}})).held_labels()
    assert held.ids_digests() == split.labels.ids_digests()
    present = held.train.present
    assert (None if present is None else present.tolist()) == (
        None if split.labels.train.present is None else split.labels.train.present.tolist()
    )
    assert (present is None) == (join == "inner")
