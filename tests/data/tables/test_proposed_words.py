"""A table without settings of its columns is read as `lvfl describe` proposes: the same words, the same kinds."""

import warnings
from pathlib import Path
from typing import Any

from predicted import predict_in_process
from refusals import refuses
from rich.console import Console

from vfl.config import parse_config
from vfl.data.source import open_source
from vfl.data.tables.fitting import experiment_of
from vfl.data.tables.proposal import describe_as_found, proposed_yaml
from vfl.runs.run import run_experiment
from vfl.runs.stored_run import Run

ROWS = 80


def write_bank(folder: Path, rows: int, label: bool = True) -> Path:
    """Write a table in which a word stands for missing incomes, and for a class."""
    lines = ["k,age,income" + ",late" * label]
    for row in range(rows):
        income = "unknown" if row % 4 == 0 else f"{1000 + 7 * row}.5"
        lines.append(f"k{row},{row % 23},{income}" + f",{['unknown', 'no'][row * 7 % 11 > 5]}" * label)
    path = folder / f"bank{rows}.csv"
    path.write_text("\n".join(lines))
    return path


def config_of(path: Path, **settings: Any):
    tables = {"bank": {"file": str(path), "key": "k", "label": "late", **settings}}
    values = {"name": "x", "data": {"dataset": {"kind": "tables"}, "tables": tables}}
    return parse_config(values | {"training": {"rounds": 1, "batch_size": 16, "labels": "server"}})


def test_the_reader_proposes_what_describe_proposes_and_says_so_in_one_line(tmp_path: Path):
    path = write_bank(tmp_path, ROWS)
    summaries, found = describe_as_found(path, ["late"])
    source = open_source(config_of(path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        split = source.split()
    told = [str(each.message) for each in caught if "'unknown'" in str(each.message)]
    assert found.missing == ("unknown",)
    assert len(told) == 1
    assert "'income'" in told[0]
    assert split.labels.classes == ("no", "unknown")  # a word among numbers is still a class
    kinds = {each.name: each.proposal()[0] for each in summaries}
    assert source.names("bank")["columns"] == ["age", "income"]
    assert source.names("bank")["kinds"] == [kinds["age"], kinds["income"]]
    assert int(split.parties[0].train.features[:, 1].isnan().sum()) > 0


def test_a_run_reads_new_rows_with_the_words_that_it_found(tmp_path: Path):
    path, new = write_bank(tmp_path, ROWS), write_bank(tmp_path, 40, label=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, config in (
            ("found", config_of(path)),
            ("given", config_of(path, not_missing={"late": ["unknown"]}, missing=["unknown"])),
        ):
            run_experiment(config, tmp_path / name, resume=False, console=Console(quiet=True))
    first, second = (
        predict_in_process(Run(tmp_path / name), None, (), "refuse", {"bank": new}) for name in ("found", "given")
    )
    assert first.probabilities_NC.tolist() == second.probabilities_NC.tolist()


def test_a_column_that_is_left_out_names_the_cells_that_spoil_it(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("k,income\n" + "\n".join(f"k{row},{'about 5' if row % 9 == 3 else row * 1.5}" for row in range(60)))
    (_, income), _ = describe_as_found(path)
    assert income.proposal()[0] == "ignore"
    assert "'about 5' in row 5" in income.proposal()[1]


def test_compare_takes_what_describe_wrote_with_its_label_and_key(tmp_path: Path):
    bank = write_bank(tmp_path, ROWS)
    shop = tmp_path / "shop.csv"
    shop.write_text("k,spent\n" + "\n".join(f"k{row},{row * 5 % 17}" for row in range(ROWS)))
    summaries, marks = describe_as_found(bank, ["late"])
    (tmp_path / "bank.yaml").write_text(proposed_yaml(bank, summaries, tmp_path, "late", marks))
    found = experiment_of({"bank": tmp_path / "bank.yaml", "shop": shop}, None, {}, []).data.tables
    assert (found["bank"].key, found["bank"].label, found["bank"].missing) == (("k",), "late", ("unknown",))
    assert found["bank"].features == {each.name: each.proposal()[0] for each in summaries if each.name != "late"}
    assert found["bank"].file == bank
    assert found["shop"].key == ("k",)
    refuses("--label", lambda: experiment_of({"bank": bank, "shop": shop}, None, {}, []), "missing")
