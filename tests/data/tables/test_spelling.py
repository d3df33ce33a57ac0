"""One value has one spelling, whatever kind of file or frame holds it."""

import datetime
import warnings
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from predicted import predict_in_process
from tiny_training import train_run
from two_tables import bank_config

from vfl.data.source import open_source
from vfl.data.tables import own_columns
from vfl.data.tables import source as tables_source
from vfl.data.tables.canonical import as_written, spell
from vfl.data.tables.cells import FrameTable, TablePlace
from vfl.data.tables.columns import read_table
from vfl.data.tables.frames import frame_table
from vfl.data.tables.own_columns import OwnColumns, raw_samples
from vfl.runs.stored_run import Run

TYPES: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "boolean": (st.booleans(), pa.bool_()),
    "whole": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "large": (st.integers(2**53, 2**64 - 1), pa.uint64()),
    "code": (st.integers(0, 99).map(float), pa.float64()),
    "fraction": (st.floats(allow_nan=False, allow_infinity=False), pa.float64()),
    "short": (st.integers(0, 9999).map(lambda eighths: eighths / 8), pa.float32()),
    "decimal": (st.decimals(0, 1000, places=2), pa.decimal128(12, 2)),
    "day": (st.dates(), pa.date32()),
    "time": (st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)), pa.timestamp("us")),
    "zone": (
        st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),
        pa.timestamp("us", tz="UTC"),
    ),
    "text": (st.sampled_from(["007", "7", "red", "12E3", "1.10", "-", "TRUE story"]), pa.string()),
}


def hashes(path: TablePlace) -> list[int]:
    """Return the hashes of the column's cells, which a model's codes come from."""
    table = read_table(path, {"x": "category"}, [("key",)])
    rows = np.arange(len(table.row_numbers))
    (samples,) = raw_samples(table, [(rows, torch.arange(len(rows)))], OwnColumns({"x": "category"}))
    return samples.more[0][:, 0].tolist()


def written(folder: Path, table: pa.Table) -> list[TablePlace]:
    """Return one table as every kind of file and frame."""
    encoded = table.set_column(1, "x", table["x"].dictionary_encode())
    typed = table.to_pandas(types_mapper=pd.ArrowDtype)
    paths = [folder / name for name in ("a.csv", "b.csv.gz", "c.csv", "d.parquet", "e.parquet")]
    pa_csv.write_csv(table, paths[0])
    typed.to_csv(paths[1], index=False)
    paths[2].write_text("key,x\n" + "".join(f"{row['key']},{_python(row['x'])}\n" for row in table.to_pylist()))
    pq.write_table(table, paths[3])
    pq.write_table(encoded, paths[4])
    frame = pl.DataFrame(pl.from_arrow(table))
    frame.write_csv(folder / "h.csv")
    frames = {"pandas": typed, "categorical": typed.assign(x=typed["x"].astype("category")), "polars": frame}
    in_memory = [FrameTable(name, frame_table(name, each)) for name, each in frames.items()]
    return [*paths, folder / "h.csv", *in_memory]


def _python(value: object) -> str:
    return "" if value is None else str(value)


@given(data=st.data(), kind=st.sampled_from([*TYPES]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_same_cells_are_the_same_categories_in_every_kind_of_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
):
    strategy, arrow = TYPES[kind]
    values = data.draw(st.lists(st.none() | strategy, min_size=1, max_size=8).filter(any))
    table = pa.table({"key": [f"k{row}" for row in range(len(values))], "x": pa.array(values, arrow)})
    first, *others = (hashes(path) for path in written(tmp_path_factory.mktemp("kinds"), table))
    for other in others:
        assert other == first
    assert [each == -1 for each in first] == [value is None for value in values]


@given(st.text(max_size=12) | st.from_regex(r"-?[0-9]{0,3}\.?[0-9]{0,3}([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_spelling_is_stable_and_keeps_numbers(text: str):
    spelt = spell(text)
    assert spell(spelt) == spelt
    if spelt != text and text.lower() not in ("true", "false") and ":" not in text:
        assert float(spelt) == float(text)


@pytest.mark.parametrize(
    "texts",
    [("True", "TRUE", "true"), ("1", "1.0", "1.00"), ("0.5", ".5", "0.50"), ("1e+05", "100000"), ("0", "-0.0")],
)
def test_spellings_of_one_value_are_one(texts: tuple[str, ...]):
    assert len({*map(spell, texts)}) == 1


@pytest.mark.parametrize("text", ["007", "12E3", "1e999", "1_000", "٣", "1,5", "Truth", "9" * 400, "1.", "+1"])
def test_codes_and_text_stay_as_they_are(text: str):
    assert spell(text) == text


ROWS = 90


def write_bank(folder: Path) -> Path:
    """Write a table whose categories and labels have types, as Parquet; the score depends on the categories."""
    draw = np.random.default_rng(0)
    flag, code = draw.random(ROWS) > 0.5, draw.integers(1, 4, ROWS).astype(float)
    amount = [Decimal(int(each)) / 4 for each in draw.integers(1, 5, ROWS)]
    late = [bool(a) != (b > 2) for a, b in zip(flag, code, strict=True)]
    columns = {"k": [f"k{row:02}" for row in range(ROWS)], "flag": flag, "code": code, "late": late}
    table = pa.table(columns).append_column("amount", pa.array(amount, pa.decimal128(6, 2)))
    pq.write_table(table, folder / "bank.parquet")
    return folder / "bank.parquet"


def as_csv(parquet: Path) -> Path:
    """Write the same rows as pandas writes CSV."""
    path = parquet.with_suffix(".csv")
    pq.read_table(parquet).to_pandas().to_csv(path, index=False)
    return path


def train(folder: Path, file: Path, **data: object) -> Run:
    """Train on one owner's table."""
    kinds = dict.fromkeys(("flag", "code", "amount"), "category")
    train_run(bank_config(file, data=data, features=kinds), folder)
    return Run(folder)


def probabilities(run: Run, table: Path | None = None) -> list[list[float]]:
    """Predict the rows of a table, by default the run's test samples."""
    tables = None if table is None else {"bank": table}
    return predict_in_process(run, None, (), "refuse", tables).probabilities_NC.tolist()


def test_rows_of_csv_and_parquet_train_and_predict_to_the_same_bits(tmp_path: Path):
    parquet = write_bank(tmp_path)
    csv = as_csv(parquet)
    runs = [train(tmp_path / file.suffix[1:], file, positive_class=False) for file in (parquet, csv)]
    first, *others = [probabilities(run, file) for run in runs for file in (parquet, csv)]
    assert all(other == first for other in others)
    assert len({each.summary["model_digest"] for each in runs}) == 1
    assert [each.summary["positive_class"].lower() for each in runs] == ["false", "false"]
    with warnings.catch_warnings(action="error"):  # no cell is unknown
        probabilities(runs[0], csv)


def test_a_run_of_an_earlier_version_knows_categories_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    csv, choose = as_csv(write_bank(tmp_path)), own_columns.choose_columns

    def choose_as_before(*arguments: Any) -> OwnColumns:
        return replace(choose(*arguments), spelling=as_written)

    with monkeypatch.context() as earlier:
        earlier.setattr(tables_source, "choose_columns", choose_as_before)
        run = train(tmp_path / "run", csv)
        expected = probabilities(run), probabilities(run, csv)
    assert (probabilities(run), probabilities(run, csv)) == expected


@pytest.mark.parametrize(("classes", "given"), [(("no", "yes"), False), (("on", "off"), True), (("1.0", "2.0"), 1)])
def test_the_positive_class_is_meant_as_yaml_reads_it(tmp_path: Path, classes: tuple[str, str], given: object):
    rows = [f"{row},{row % 7},{classes[row % 2]}" for row in range(40)]
    (tmp_path / "bank.csv").write_text("\n".join(["k,a,y", *rows]))
    config = bank_config(tmp_path / "bank.csv", "y", {"positive_class": given}, features={"a": "number"})
    assert open_source(config).split().labels.classes == classes[::-1]
