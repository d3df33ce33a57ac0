"""Words that count as missing: those that are values of a column, and those that describe and the reader find."""

import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from predicted import predict_in_process
from refusals import refused, refuses
from tiny_training import train_run
from two_tables import bank_config

from vfl.config.tables import ColumnKind
from vfl.data.source import Split, open_source
from vfl.data.tables.cells import MISSING, Reading, TableError
from vfl.data.tables.columns import Categories, read_table
from vfl.data.tables.fitting import experiment_of
from vfl.data.tables.labels import read_labels
from vfl.data.tables.proposal import describe_as_found, proposed_yaml
from vfl.runs.stored_run import Run

ROWS = 40
WORDS = MISSING[1:]


def table_file(folder: Path, kind: str, **columns: list[str]) -> Path:
    cells = {"k": [f"r{row}" for row in range(ROWS)], "a": [str(row % 7) for row in range(ROWS)], **columns}
    text = folder / "t.csv"
    text.write_text("\n".join(map(",".join, [tuple(cells), *zip(*cells.values(), strict=True)])))
    if kind == "csv":
        return text
    as_text = pa_csv.ConvertOptions(column_types=dict.fromkeys(cells, pa.string()), strings_can_be_null=False)
    pq.write_table(pa_csv.read_csv(text, convert_options=as_text), folder / "t.parquet")
    return folder / "t.parquet"


def split(path: Path, **settings: object) -> Split:
    return open_source(bank_config(path, "y", **settings)).split()


def some(word: str, other: str = "yes") -> list[str]:
    return [other if row % 3 else word for row in range(ROWS)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_a_label_is_told_and_can_be_kept(tmp_path: Path, kind: str, word: str):
    path = table_file(tmp_path, kind, y=some(word))
    with pytest.raises(TableError, match=r"counts as missing; if it is a value, set data.tables.bank.not_missing: \{y"):
        split(path)
    found = split(path, not_missing={"y": word})
    assert set(found.labels.classes) == {word, "yes"}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_kept_word_is_a_category_in_its_column_alone(tmp_path: Path, kind: str):
    path = table_file(tmp_path, kind, continent=some("NA", "EU"), other=some("NA", "EU"), third=some("null", "b"))
    kinds: dict[str, ColumnKind] = {"continent": "category", "other": "category", "third": "category"}
    table = read_table(
        path, kinds, [("k",)], Reading(missing=["EU"], kept={"continent": ["NA", "EU"], "third": ["NA"]})
    )
    names = {name: column.names for name, column in table.columns.items() if isinstance(column, Categories)}
    assert names == {"continent": ("NA", "EU"), "other": (), "third": ("b",)}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_kept_word_of_a_key_and_of_a_number(tmp_path: Path, kind: str):
    path = table_file(tmp_path, kind, c=["NA", *(f"c{row}" for row in range(1, ROWS))])
    with pytest.raises(TableError, match=r"row [12]: is missing, as 'NA' counts as missing.*; every row needs its key"):
        read_table(path, {}, [("c",)])
    assert read_table(path, {}, [("c",)], Reading(kept={"c": ["NA"]})).keys[("c",)][0].as_py() == "NA"
    with pytest.raises(TableError, match="'NA' is no number"):  # kept, so it is an error there, and not missing
        read_table(path, {"c": "number"}, [("k",)], Reading(kept={"c": ["NA"]}))


def test_a_column_that_is_not_there_keeps_no_word(tmp_path: Path):
    with refused("data.tables.bank.not_missing", "'z'"):
        split(table_file(tmp_path, "csv", y=some("no")), not_missing={"z": ["NA"]})


def test_an_empty_label_is_missing_and_names_no_setting(tmp_path: Path):
    with refused("t.csv", "row 2", "13") as told:
        split(table_file(tmp_path, "csv", y=some("")))
    assert "not_missing" not in str(told.value)


def test_a_tables_own_word_is_missing_and_names_no_setting(tmp_path: Path):
    table = read_table(
        table_file(tmp_path, "csv", y=some("gone")), {"y": "category"}, [("k",)], Reading(missing=["gone"])
    )
    refuses("t.csv", lambda: read_labels(table, "y", table.row_numbers - 2), "row 2", "13")


BANK_ROWS = 80


def write_bank(folder: Path, rows: int, label: bool = True) -> Path:
    """Write a table in which a word stands for missing incomes, and for a class."""
    lines = ["k,age,income" + ",late" * label]
    for row in range(rows):
        income = "unknown" if row % 4 == 0 else f"{1000 + 7 * row}.5"
        lines.append(f"k{row},{row % 23},{income}" + f",{['unknown', 'no'][row * 7 % 11 > 5]}" * label)
    path = folder / f"bank{rows}.csv"
    path.write_text("\n".join(lines))
    return path


def test_the_reader_proposes_what_describe_proposes_and_says_so_in_one_line(tmp_path: Path):
    path = write_bank(tmp_path, BANK_ROWS)
    summaries, found = describe_as_found(path, ["late"])
    source = open_source(bank_config(path))
    with warnings.catch_warnings(record=True, action="always") as caught:
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
    path, new = write_bank(tmp_path, BANK_ROWS), write_bank(tmp_path, 40, label=False)
    with warnings.catch_warnings(action="ignore"):
        for name, config in (
            ("found", bank_config(path)),
            ("given", bank_config(path, not_missing={"late": ["unknown"]}, missing=["unknown"])),
        ):
            train_run(config, tmp_path / name)
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
    bank = write_bank(tmp_path, BANK_ROWS)
    shop = tmp_path / "shop.csv"
    shop.write_text("k,spent\n" + "\n".join(f"k{row},{row * 5 % 17}" for row in range(BANK_ROWS)))
    summaries, marks = describe_as_found(bank, ["late"])
    (tmp_path / "bank.yaml").write_text(proposed_yaml(bank, summaries, tmp_path, "late", marks))
    found = experiment_of({"bank": tmp_path / "bank.yaml", "shop": shop}, None, {}, []).data.tables
    assert (found["bank"].key, found["bank"].label, found["bank"].missing) == (("k",), "late", ("unknown",))
    assert found["bank"].features == {each.name: each.proposal()[0] for each in summaries if each.name != "late"}
    assert found["bank"].file == bank
    assert found["shop"].key == ("k",)
    refuses("--label", lambda: experiment_of({"bank": bank, "shop": shop}, None, {}, []), "missing")
