"""What describe writes is what every command uses; reading settings opens no file of data."""

import sys
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from predicted import predict_in_process
from refusals import refused, refuses
from two_tables import write_tables

import vfl
from vfl.config import ExperimentConfig, load_config
from vfl.config.files import lay_over, parse_config
from vfl.data.experiments import decide_parties, load_user_config
from vfl.data.source import open_source
from vfl.data.tables.fitting import experiment_of
from vfl.runs.stored_run import Run

SMALL = {"training.rounds": 1, "threads": 1}


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two owners' files and their YAML, whose classes are words."""
    paths = write_tables(tmp_path, range(80), labelled=True)
    heading, *lines = paths["bank"].read_text().splitlines()
    words = {"0": "paid", "1": "late"}
    paths["bank"].write_text("\n".join([heading, *(f"{line[:-1]}{words[line[-1]]}" for line in lines)]))
    assert run(monkeypatch, "describe", str(paths["bank"]), "--label", "late") == 0
    assert run(monkeypatch, "describe", str(paths["shop"])) == 0
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["lvfl", *words])
    return import_module("vfl.__main__").main()


def tables_of(folder: Path) -> list[str]:
    return [word for owner in ("bank", "shop") for word in ("--table", f"{owner}={folder / owner}.yaml")]


def test_train_and_predict_take_what_describe_wrote(described: Path, monkeypatch: pytest.MonkeyPatch):
    by_command, small = described / "run", ["training.rounds=1", "threads=1"]
    assert run(monkeypatch, "train", *tables_of(described), *small, "--run-dir", str(by_command)) == 0
    mapped = {owner: described / f"{owner}.yaml" for owner in ("bank", "shop")}
    by_python = vfl.train(mapped, SMALL, run_dir=described / "python")
    config = Run(by_command).vertical
    assert (config.data.tables["bank"].key, config.data.tables["bank"].label) == (("k",), "late")
    assert config.model_copy(update={"name": "x"}) == by_python.config.model_copy(update={"name": "x"})
    out = described / "scores.csv"
    assert run(monkeypatch, "predict", str(by_command), *tables_of(described), "--out", str(out)) == 0
    files = {owner: described / f"{owner}.csv" for owner in mapped}
    assert out.read_text().count("\n") == 1 + 80
    expected = predict_in_process(Run(by_command), None, (), "refuse", files).probabilities_NC
    in_python = by_python.predict({"bank": files["bank"], "shop": mapped["shop"]})
    assert sorted(expected[:, 1].tolist()) == sorted(in_python[:, 1].tolist())


def test_predict_refuses_yaml_of_another_key(described: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    vfl.train({owner: described / f"{owner}.yaml" for owner in ("bank", "shop")}, SMALL, run_dir=described / "run")
    other = yaml.safe_load((described / "bank.yaml").read_text()) | {"key": "age"}
    (described / "bank.yaml").write_text(yaml.safe_dump(other))
    capsys.readouterr()
    assert run(monkeypatch, "predict", str(described / "run"), *tables_of(described)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "age" in line
    assert "--table" in line


def test_the_positive_class_is_proposed_first_and_counts(described: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    named = {owner: described / f"{owner}.yaml" for owner in ("bank", "shop")}
    proposed = yaml.safe_load((described / "bank.yaml").read_text())
    assert proposed["positive_class"] == "paid"  # as without a word: the second by name
    assert "positive_class" not in yaml.safe_load((described / "shop.yaml").read_text())
    (described / "bank.yaml").write_text(yaml.safe_dump(proposed | {"positive_class": "late"}))
    assert experiment_of(named, None, {}, {}).data.positive_class == "late"
    assert experiment_of(named, None, {}, {"data.positive_class": "paid"}).data.positive_class == "paid"
    capsys.readouterr()
    again = ("--label", "late", "--out", str(described / "again.yaml"))
    assert run(monkeypatch, "describe", str(described / "bank.csv"), *again) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert "'paid'" in first
    assert "'late'" in first


@pytest.mark.parametrize("words", [("0", "1"), ("false", "true"), ("a", "b", "c")])
def test_no_class_is_asked_for_where_none_is_doubtful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words):
    lines = [f"k{row},{row % 7},{words[row % len(words)]}" for row in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["k,a,y", *lines]))
    assert run(monkeypatch, "describe", str(tmp_path / "t.csv"), "--label", "y") == 0
    assert "positive_class" not in (tmp_path / "t.yaml").read_text()


def experiment(folder: Path, overrides: Mapping[str, object], **features: object) -> ExperimentConfig:
    tables: dict[str, dict[str, object]]
    tables = {owner: {"file": str(folder / f"{owner}.csv"), "key": "k"} for owner in ("bank", "shop")}
    tables["bank"] |= {"label": "late", **features}
    return parse_config(lay_over({"name": "x", "data": {"dataset": {"kind": "tables"}, "tables": tables}}, overrides))


def kinds_of(config: ExperimentConfig) -> dict[str, str]:
    source = open_source(config)
    with warnings.catch_warnings(action="ignore"):
        source.split()
    return dict(zip(source.names("bank")["columns"], source.names("bank")["kinds"], strict=True))


def test_one_setting_changes_one_column(tmp_path: Path):
    write_tables(tmp_path, range(80), labelled=True)
    proposed = kinds_of(experiment(tmp_path, {}))
    assert proposed == {"age": "number", "job": "category"}
    ignored = experiment(tmp_path, {"data.tables.bank.features.age": "ignore"})
    assert kinds_of(ignored) == {"age": "ignore", "job": "category"}
    two = {"data.tables.bank.features.age": "category", "data.tables.bank.features.job": "ignore"}
    assert kinds_of(experiment(tmp_path, two)) == {"age": "category", "job": "ignore"}
    listed = experiment(tmp_path, {"data.tables.bank.features.age": "ignore"}, features={"job": "category"})
    assert listed.data.tables["bank"].features == {"job": "category", "age": "ignore"}
    only = experiment(tmp_path, {}, features={"job": "propose"})
    assert kinds_of(only) == {"job": "category"}


def test_a_column_that_is_not_there_is_no_silent_setting(tmp_path: Path):
    write_tables(tmp_path, range(80), labelled=True)
    with refused("data.tables.bank.features", "'agee'"):
        kinds_of(experiment(tmp_path, {"data.tables.bank.features.agee": "ignore"}))


def test_a_column_with_dots_in_its_name_and_a_file_named_beside_it(tmp_path: Path):
    paths = write_tables(tmp_path, range(80), labelled=True)
    paths["bank"].write_text(paths["bank"].read_text().replace("k,age,", "k,age.in.years,"))
    own = tmp_path / "bank.yaml"
    own.write_text("file: bank.csv\nkey: k\nlabel: late\n")
    settings = {"data.tables.bank": str(own), "data.tables.bank.features.age.in.years": "ignore"}
    assert kinds_of(experiment(tmp_path, settings)) == {"age.in.years": "ignore", "job": "category"}


def test_the_label_is_taken_from_whoever_has_it(described: Path):
    named = {owner: described / f"{owner}.yaml" for owner in ("shop", "bank")}
    config = experiment_of(named, None, {}, SMALL)
    assert (config.parties, config.data.tables["bank"].label) == (("shop", "bank"), "late")
    with refused("--label", "missing"):
        experiment_of({"shop": described / "shop.yaml", "bank": described / "bank.csv"}, None, {}, SMALL)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    tables = {"clerk": {"key": "k", "label": "late"}, "bank": {"key": "k"}}
    for owner, file in {"clerk": "gone.csv", "bank": "away.parquet"}.items():
        tables[owner]["file"] = str(tmp_path / file)
    values = {"name": "x", "data": {"dataset": {"kind": "tables"}, "tables": tables}}
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def test_settings_of_tables_that_are_not_there_are_read(settings: Path):
    config = load_config(settings)
    assert config.parties == ("clerk", "bank")
    assert decide_parties(config) == config
    refuses("gone.csv", lambda: open_source(config).split(), "moved")


def test_only_the_header_of_the_label_owners_table_decides_who_the_parties_are(settings: Path, tmp_path: Path):
    (tmp_path / "gone.csv").write_text("k,late\n1,yes\n")
    assert load_config(settings).parties == ("clerk", "bank")
    config = load_user_config(settings)
    assert (config.parties, config.owners) == (("bank",), ("clerk", "bank"))
    assert config.data.tables["clerk"].features == {}
    assert config.model_fields_set == load_config(settings).model_fields_set
    with refused("lightweighting.alpha", "'clerk'"):
        load_user_config(settings, ["lightweighting.alpha={clerk: 0.5}"])
    (tmp_path / "gone.csv").write_text("k,late,age\n1,yes,30\n")
    assert load_user_config(settings).parties == ("clerk", "bank")
