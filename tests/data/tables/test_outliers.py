"""A cell far outside the training rows: clipped where rows are tested or predicted, without a score where they are
served; it ends nothing."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from predicted import predict_new_rows
from rich.console import Console
from tiny_training import train_run
from two_tables import sections_of, write_tables

from vfl.config import parse_config
from vfl.core.local import InProcess
from vfl.data.samples import Samples
from vfl.data.source import open_source
from vfl.data.tables.matching_result import Match, keys_digest, write_match
from vfl.data.tables.preparation import FARTHEST, TablePreparation
from vfl.parties.network.party.party_monitor import PartyMonitor
from vfl.parties.network.party.party_process import _wanted
from vfl.parties.serving.file_rows import FileRows, ServedDrift
from vfl.predict.trained_run import load_run_with_data
from vfl.runs.stored_run import Run

CELLS = pytest.mark.parametrize("cell", ["1e8", "-1e8", "1e30"])
KEY = 1003


def spoilt(path: Path, cell: str, spoilt_key: object = KEY) -> None:
    """Replace the first number of one key's row."""
    lines = path.read_text().splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith(f"{spoilt_key},"))
    key, _, *rest = lines[place].split(",")
    path.write_text("\n".join([*lines[:place], ",".join([key, cell, *rest]), *lines[place + 1 :]]))


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    sections = sections_of(write_tables(folder, range(80), labelled=True))
    sections["training"] |= {"rounds": 2, "batch_size": 16}
    return {"name": "far", "threads": 1, **sections, "wire": {"values": "float16"}, **more}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    folder = tmp_path_factory.mktemp("far")
    train_run(settings(folder), folder / "run")
    return load_run_with_data(Run(folder / "run"))


@CELLS
def test_a_predicted_row_is_clipped_and_named_and_the_others_keep_their_bits(
    cell: str, trained: InProcess, tmp_path: Path
):
    tables = write_tables(tmp_path, range(1000, 1020), labelled=False)
    before = predict_new_rows(trained, tables, (), "refuse")
    spoilt(tables["shop"], cell)
    told = re.escape(f"shop: key {KEY}, column 'spent': {float(cell):g} is over 10000 standard")
    with pytest.warns(UserWarning, match=told):
        found = predict_new_rows(trained, tables, (), "refuse")
    others = [place for place, key in enumerate(found.keys[1:]) if [*key] != [str(KEY)]]
    assert torch.equal(found.probabilities_NC[others], before.probabilities_NC[others])
    assert found.probabilities_NC.isfinite().all()


def test_the_key_that_is_named_is_the_row_s_where_others_are_not_held(trained: InProcess, tmp_path: Path):
    tables = write_tables(tmp_path, range(1000, 1020), labelled=False)
    spoilt(tables["shop"], "1e8")
    heading, *lines = tables["shop"].read_text().splitlines()
    tables["shop"].write_text(
        "\n".join([heading, *(line for line in lines if not line.startswith(("1000,", "1001,")))])
    )
    with pytest.warns(UserWarning, match=f"^shop: key {KEY}, column 'spent'"):
        predict_new_rows(trained, tables, (), "zeros")


@CELLS
def test_a_served_row_has_no_score_and_is_named_to_its_owner(cell: str, trained: InProcess, tmp_path: Path):
    path = write_tables(tmp_path, range(1000, 1020), labelled=False)["shop"]
    spoilt(path, cell)
    source: Any = trained.source
    party = next(each for each in trained.parties if each.name == "shop")
    said: list[str] = []

    drift = ServedDrift([], tmp_path / "drift.json", said.append)
    table = FileRows(path, source, "shop", None, drift, said.append)
    try:
        rows = table.find(party, [])
    finally:
        table.close()
    line = next(place for place, text in enumerate(path.read_text().splitlines()) if text.startswith(f"{KEY},"))
    assert len(rows.places) == 19
    assert said[1].startswith(f"{path}: shop: row {line}, column 'spent': {float(cell):g} is over"), said
    assert said[1].endswith("; the row has no score")


@pytest.mark.parametrize("matched", [False, True])
def test_an_owner_s_own_process_names_the_key_of_a_predicted_row(matched: bool, trained: InProcess, tmp_path: Path):
    path = write_tables(tmp_path, range(1000, 1020), labelled=False)["shop"]
    heading, *lines = path.read_text().splitlines()
    path.write_text("\n".join([heading, *lines[2:]]))
    spoilt(path, "1e8")
    source: Any = trained.source
    if matched:  # in an order of its own, with two rows that the owner lacks
        order = np.array([-1, 3, *range(3), *range(4, 18), -1])
        keys = keys_digest(source.read("shop", source.parties, path), {})
        write_match(path.with_name("shop.csv.match"), Match("shop", "ab" * 32, keys, "left", order, None))
    party = next(each for each in trained.parties if each.name == "shop")
    wanted, named = _wanted(source, path, "shop", party.train)
    said = io.StringIO()
    console, config = Console(file=said, width=200), trained.parties[0].config
    view = PartyMonitor("shop", config, tmp_path, console, 0, 0, wanted, named)
    view.warn_of_unseen_values(party)
    view.warn_of_unseen_values(party)  # every session restores the party
    assert said.getvalue().splitlines() == [
        f"warning: shop: key {KEY}, column 'spent': 1e+08 is over 10000 standard deviations from the training mean; "
        "mend it or leave it empty"
    ]


@CELLS
def test_a_test_row_ends_no_training(cell: str, tmp_path: Path):
    tables = write_tables(tmp_path, range(80), labelled=True)
    config = parse_config(settings(tmp_path))
    train_run(config, tmp_path / "plain")
    key = open_source(config).split().labels.test.keys[-1][0]
    spoilt(tables["shop"], cell, key)
    told = re.escape(f"test rows: shop: key {key}, column 'spent': {float(cell):g} is over 10000 standard")
    with pytest.warns(UserWarning, match=told):
        train_run(config, tmp_path / "run")
    before, found = (Run(tmp_path / name).summary for name in ("plain", "run"))
    assert found["model_digest"] == before["model_digest"]


def test_no_training_row_is_clipped():
    """Not the farthest that one of N can be, sqrt(N - 1)."""
    numbers = np.zeros((5000, 1))
    numbers[0] = 1e20
    samples = Samples(torch.arange(5000), torch.from_numpy(numbers), more=(torch.zeros(5000, 0, dtype=torch.int64),))
    preparation = TablePreparation(samples)
    assert list(preparation.outliers(samples, ["x"])) == []
    found = preparation.apply(samples).features[:, 0]
    assert found.max() == pytest.approx(4999**0.5)
    assert found.max() < FARTHEST
