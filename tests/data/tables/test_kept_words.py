"""Words that usually count as missing and are values of a column: a class None, a continent NA."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from refusals import refused, refuses

from vfl.config import parse_config
from vfl.config.tables import ColumnKind
from vfl.data.source import Split, open_source
from vfl.data.tables.cells import MISSING, Reading, TableError
from vfl.data.tables.columns import Categories, read_table
from vfl.data.tables.labels import read_labels

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
    tables = {"bank": {"file": str(path), "key": "k", "label": "y", **settings}}
    values = {"dataset": {"kind": "tables"}, "tables": tables}
    return open_source(parse_config({"name": "x", "data": values})).split()


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
