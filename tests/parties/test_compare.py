"""lvfl compare: gains with intervals on the same test samples, and importance of columns against brute force."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from refusals import refused
from rich.console import Console
from shorthand import at_every_run
from two_tables import sections_of_branches, write_branches

import vfl
from scripts.compare import add_arguments, read_experiment
from vfl.comparison.compare import _estimate_difference, compare_models
from vfl.comparison.importance import column_importance
from vfl.comparison.train_on_split import single_party_config
from vfl.config import ExperimentConfig, parse_config
from vfl.config.tables import table_settings
from vfl.console import OneLineParser
from vfl.core.local import build_in_process
from vfl.core.tasks import Classification
from vfl.data.source import open_source
from vfl.data.tables.fitting import fitting_experiment
from vfl.data.tables.source import Tables
from vfl.messages.control import MOST_DRAWS
from vfl.runs.runtime import start_runtime
from vfl.runs.stored_run import Run

ROWS = 400


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ExperimentConfig:
    """Two owners, each with an informative column and one of noise; the label needs both."""
    folder = tmp_path_factory.mktemp("tables")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, 4))
    label = np.where(x[:, 0] + 2 * x[:, 2] + draw.normal(size=ROWS) / 4 > 0, "yes", "no")
    columns = {"bank": ("income", "noise", x[:, :2]), "insurer": ("claims", "dust", x[:, 2:])}
    tables = {}
    for owner, (first, second, values) in columns.items():
        own = owner == "bank"
        with (folder / f"{owner}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["key", first, second, *(["late"] if own else [])])
            for row, pair in enumerate(values):
                writer.writerow([f"k{row:04}", *pair, *([label[row]] if own else [])])
        tables[owner] = {"file": str(folder / f"{owner}.csv"), "key": "key"} | ({"label": "late"} if own else {})
    return parse_config(
        {
            "name": "mine",
            "threads": 1,
            "data": {"dataset": {"kind": "tables"}, "tables": tables},
            "models": {"feature": {"embedding_size": 4, "width": 0.1}, "head": {"hidden": [8]}},
            "training": {"rounds": 6, "batch_size": 32, "optimizer": {"kind": "adam", "learning_rate": 0.01}},
        }
    )


def test_what_the_other_owner_adds_is_told_with_its_interval_and_cost(config: ExperimentConfig, tmp_path: Path):
    found = compare_models(config, tmp_path, Console(quiet=True))
    assert found.gain.low > 0.1
    assert found.gain.low < found.gain.value < found.gain.high
    assert found.gain.value == pytest.approx(found.reached["lvfl"] - found.reached["alone"])
    assert found.headline().startswith("insurer adds 0.")
    assert found.reached.keys() == {"alone", "lvfl", "perceptron", "boosting"}
    assert found.columns["bank"]["income"] > 5 * abs(found.columns["bank"]["noise"])
    assert found.columns["insurer"]["claims"] > 5 * abs(found.columns["insurer"]["dust"])
    saved = Run(tmp_path / "lvfl").summary
    assert saved["comparison"]["text"] == found.headline()
    alone = Run(tmp_path / "alone").summary
    assert [*alone["parties"]] == ["bank"]


def test_importance_is_that_of_the_joint_model_with_its_inputs_permuted(config: ExperimentConfig):
    built = build_in_process(config, start_runtime(config))
    built.server.train_round(0)
    found = column_importance(built.server.joint)
    joint, labels = built.server.joint, built.split.labels.test.values
    auc = joint.task.metrics
    whole = auc(joint.predictions(), labels)["auc"]
    models = [party.evaluated.finished_copy() for party in built.parties]
    stream = np.random.default_rng(0)
    for place, owner in enumerate(("bank", "insurer")):
        for column, told in enumerate(found[owner].lost):
            lost = []
            for _ in range(40):
                rows = [party.test.features.clone() for party in built.parties]
                rows[place][:, column] = rows[place][torch.from_numpy(stream.permutation(len(labels))), column]
                with torch.no_grad():
                    embeddings = torch.cat([model(own) for model, own in zip(models, rows, strict=True)], 1)
                    lost.append(whole - auc(joint.head.head(embeddings).softmax(1), labels)["auc"])
            assert abs(told - np.mean(lost)) < 4 * np.std(lost) / MOST_DRAWS**0.5 + 1e-6


def _read(*arguments: str) -> ExperimentConfig:
    parser = OneLineParser()
    add_arguments(parser)
    return read_experiment(parser.parse_intermixed_args(arguments))


@pytest.mark.release
def test_files_alone_tell_the_gain_and_a_report_begins_with_it(config: ExperimentConfig, tmp_path: Path):
    """Keys are found by their looks, and settings come from the defaults for tables."""
    files = [f"{owner}={table.file}" for owner, table in config.data.tables.items()]
    tables = [part for file in files for part in ("--table", file)]
    quick = ("threads=1", "training.rounds=2", "training.steps_per_round=40")
    proposed = _read(*tables, "--label", "late", *quick)
    assert [table.key for table in proposed.data.tables.values()] == [("key",), ("key",)]
    found = compare_models(proposed, tmp_path, Console(quiet=True))
    assert found.leader == "bank"
    vfl.report([vfl.Run(tmp_path / "lvfl")], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.partition("</h1>")[2].strip().startswith(f"<p><strong>{found.headline()}</strong>")


@pytest.mark.filterwarnings("ignore:no better than a constant")
@pytest.mark.parametrize(
    ("classes", "task", "wide"), [(8, (), 0), (9, (), 9), (70, (), 64), (70, ("task=regression",), 0)]
)
def test_many_classes_have_wider_models_from_files_as_from_python(
    tmp_path: Path, classes: int, task: tuple[str, ...], wide: int
):
    labels = np.arange(10 * classes) % classes
    rows = pd.DataFrame({"key": [f"k{row}" for row in range(len(labels))], "a": np.arange(len(labels)) / 7})
    rows.assign(label=labels).to_csv(tmp_path / "bank.csv", index=False)
    rows.to_csv(tmp_path / "shop.csv", index=False)
    tables = [part for owner in ("bank", "shop") for part in ("--table", f"{owner}={tmp_path / owner}.csv")]
    proposed = _read(*tables, "--label", "label", "--key", "bank=key", "--key", "shop=key", *task)
    quick: Any = {"rounds": 1, "random_state": 0, "settings": {"threads": 1, "training.steps_per_round": 1}}
    kind = vfl.VerticalRegressor if task else vfl.VerticalClassifier
    fitted = kind(**quick).fit({"bank": rows[["a"]], "shop": rows[["a"]]}, labels).run_.vertical
    for config in (proposed, fitted):
        feature = config.models.feature
        members = 1 if wide or task else 4
        assert (feature.embedding_size, feature.width) == ((wide, 1.0) if wide else (16 if members == 4 else 8, 0.25))
        assert (config.models.members, config.models.linear_path) == (members, not wide)
        assert config.models.head.hidden == ((4 * wide,) if wide else (16,))
        assert config.training.optimizer.weight_decay == (0.1 if wide else 0.3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (4, 16, True)),
        ({"models.feature.width": 0.5}, (4, 16, True)),
        ({"models.feature.embedding_size": 6}, (1, 6, False)),
        ({"models.members": 2}, (2, 8, False)),
        ({"models.feature": {"kind": "mlp", "embedding_size": 5}}, (1, 5, False)),
        ({"models.parties.party_1.embedding_size": 3}, (1, 8, False)),
        ({"models.parties": {"party_1": {"kind": "mlp", "embedding_size": 3}}}, (1, 8, False)),
    ],
)
def test_who_shapes_the_models_gets_one_without_a_linear_path(given: dict[str, Any], expected: tuple[int, int, bool]):
    values = {"name": "shaped", "data": {"dataset": {"kind": "digits"}}}
    models = fitting_experiment(values, given, 2).models
    assert (models.members, models.feature.embedding_size, models.linear_path) == expected


@pytest.mark.filterwarnings("ignore")  # of rows without a counterpart, in either's words
@pytest.mark.parametrize("shared", at_every_run([70, 2100], 70))
@pytest.mark.parametrize(
    "override", ["seed=0", "data.test_share=0.5", "data.train_samples=40", "data.join=left", "training.batch_size=7"]
)
def test_files_and_python_have_the_settings_that_fit_the_training_rows(tmp_path: Path, shared: int, override: str):
    """Those that the owners share and that are not tested, whatever else their tables have."""
    keys, draw = [f"k{row:04}" for row in range(2100)], np.random.default_rng(0)
    rows = pd.DataFrame({"key": keys, "a": draw.normal(size=2100)})
    labelled = rows.assign(label=(rows["a"] + draw.normal(size=2100) > 0).astype(int))
    labelled.to_csv(tmp_path / "bank.csv", index=False)
    rows[:shared].to_csv(tmp_path / "shop.csv", index=False)
    tables = [part for owner in ("bank", "shop") for part in ("--table", f"{owner}={tmp_path / owner}.csv")]
    by_files = _read(*tables, "--label", "label", "--key", "key", override)
    name, _, value = override.partition("=")
    quick = {"threads": 1, "training.steps_per_round": 1, name: yaml.safe_load(value)}
    made = vfl.VerticalClassifier(rounds=1, random_state=0, key="key", validation_fraction=0.2, settings=quick)
    by_python = made.fit({"bank": rows, "shop": rows[:shared]}, labelled["label"]).run_.vertical
    for config in (by_files, by_python):
        train = len(open_source(config).split().labels.train.values)
        expected = table_settings(train, 2)["training"]
        batch = 7 if "batch_size" in override else expected["batch_size"]
        assert config.training.batch_size == batch <= train
        if config is by_files:
            assert config.training.steps_per_round == expected["steps_per_round"]


@pytest.mark.parametrize(
    ("spellings", "wide"), [(("{}", "{}.0"), 16), (("c{}", "C{}"), 10), (("{}", "0{}"), 10), (("{}", "{}"), 16)]
)
def test_spellings_of_one_number_are_one_class_of_many(tmp_path: Path, spellings: tuple[str, ...], wide: int):
    labels = [spellings[row // 5 % 2].format(row % 5) for row in range(60)]
    rows = pd.DataFrame({"key": [f"k{row}" for row in range(60)], "a": np.arange(60) / 7, "label": labels})
    rows.to_csv(tmp_path / "bank.csv", index=False)
    tables = [part for owner in ("bank", "shop") for part in ("--table", f"{owner}={tmp_path}/bank.csv")]
    proposed = _read(*tables, "--label", "label", "--key", "bank=key", "--key", "shop=key")
    assert proposed.models.feature.embedding_size == wide


TWO = ("--table", "bank=FILE", "--table", "shop=FILE")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), ("CONFIG", "OWNER=FILE")),
        (("mine.yaml", "--key", "key"), ("--label", "with")),
        (("--table", "BANK"), ("--table", "'BANK'", "OWNER=FILE")),
        (("--table", "bank=FILE", "--label", "late"), ("--table", "comparing")),
        (("--table", "bank=FILE", "--table", "bank=x.csv"), ("--table", "x.csv")),
        ((*TWO,), ("--label", "missing")),
        ((*TWO, "--label", "none"), ("--label", "'s --table, has no column '")),
        ((*TWO, "--label", "late", "--key", "id"), ("--key", "'id'", "bank=COLUMN")),
        ((*TWO, "--label", "late", "--key", "key", "--key", "shop=id"), ("--key", "id", "shop=COLUMN")),
    ],
)
def test_files_that_cannot_be_compared_are_one_line(
    config: ExperimentConfig, arguments: tuple[str, ...], line: tuple[str, ...]
):
    file = str(config.data.tables["bank"].file)
    with refused(*line):
        _read(*(each.replace("FILE", file) for each in arguments))


def test_an_interval_covers_no_difference_between_equals():
    torch.manual_seed(0)
    labels = torch.randint(2, (200,))
    first, second = ((labels + torch.randn(2, 200) * 2).sigmoid()).unbind(0)
    one, other = (torch.stack([1 - each, each], 1) for each in (first, second))
    found = _estimate_difference(Classification(2, metric="auc"), one, other, labels)
    assert found.low < 0 < found.high
    assert found.low < found.value < found.high


@pytest.mark.filterwarnings("ignore:all labels are of one class")
def test_tested_rows_of_one_class_are_compared_by_what_needs_no_other():
    good, bad = torch.tensor([0.9, 0.1]).expand(30, 2), torch.tensor([0.1, 0.9]).expand(30, 2)
    found = _estimate_difference(Classification(2, metric="accuracy"), good, bad, torch.zeros(30, dtype=torch.int64))
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)


def test_the_label_owner_alone_needs_no_key_of_the_others(tmp_path: Path):
    sections = sections_of_branches(write_branches(tmp_path, range(80), labelled=True))
    config = parse_config({"name": "branches", **sections})
    source = open_source(config)
    assert isinstance(source, Tables)
    assert single_party_config(config, source, "bank").parties == ("bank",)


def test_owners_who_hold_the_labels_are_compared_with_owners_who_never_meet(config: ExperimentConfig, tmp_path: Path):
    training = config.training.model_copy(update={"labels": "shared", "rounds": 2, "auxiliary": 1.0})
    found = compare_models(config.model_copy(update={"training": training}), tmp_path, Console(quiet=True))
    apart = Run(tmp_path / "apart")
    assert apart.vertical.training.local_rounds == 2
    alone = Run(tmp_path / "lvfl").summary["alone"]
    assert found.own == {owner: metrics[found.metric] for owner, metrics in alone.items()}
    assert found.meeting is not None
    assert found.meeting["gain"]["value"] == pytest.approx(found.reached["lvfl"] - found.reached["apart"])
    sent = [run.summary["uplink_bytes"] + run.summary["downlink_bytes"] for run in (Run(tmp_path / "lvfl"), apart)]
    assert found.meeting["bytes"] == sent[0] - sent[1] > 0
    assert Run(tmp_path / "lvfl").summary["comparison"]["meeting"]["text"] == found.meeting["text"]
