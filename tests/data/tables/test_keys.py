"""Keys of a table: read alike from a file and from a frame, and never another row's."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from refusals import refuses

from vfl.api.frames import owner_of
from vfl.data.tables.arrow import pq
from vfl.data.tables.cells import MISSING
from vfl.data.tables.columns import key_cell, read_table

EDGE = 2**53


def keys_of_file(folder: Path, cells: Any) -> list[str]:
    pq.write_table(pa.table({"k": cells, "x": [1.0] * len(cells)}), folder / "t.parquet")
    return read_table(folder / "t.parquet", {}, [("k",)]).keys[("k",)].to_pylist()


def keys_of_frame(folder: Path, cells: Any) -> list[str]:
    return owner_of("X['bank']", pa.table({"k": cells, "x": [1.0] * len(cells)}), "k").keys.to_pylist()


def decimals(values: list[int], precision: int, scale: int = 0) -> pa.Array:
    return pa.array([Decimal(value) for value in values], pa.decimal128(precision, scale))


WAYS = pytest.mark.parametrize("keys_of", [keys_of_file, keys_of_frame])


@WAYS
@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (pa.array([EDGE + 1, -7, 0]), [str(EDGE + 1), "-7", "0"]),
        (pa.array([EDGE - 1.0, -7.0, 0.0]), [str(EDGE - 1), "-7", "0"]),
        (pa.array([2.0**24 - 1, -7.0], pa.float32()), [str(2**24 - 1), "-7"]),
        (decimals([EDGE + 1, EDGE + 2, -7], 19), [str(EDGE + 1), str(EDGE + 2), "-7"]),
        (decimals([10**17 + 1, 7], 18), [str(10**17 + 1), "7"]),
        (decimals([10**37, 10**37 + 1], 38), [str(10**37), str(10**37 + 1)]),
        (decimals([12, 7], 10, 2), ["12", "7"]),
        (pa.array([" a", "b\u00a0", "e\u0301"]), ["a", "b", "\u00e9"]),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    ],
)
def test_a_key_is_its_own_digits_or_text(tmp_path: Path, keys_of: Any, cells: Any, wanted: list[str]):
    assert keys_of(tmp_path, cells) == wanted


@WAYS
@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (pa.array([1.0, EDGE + 1.0]), "is no whole number below 2\\*\\*53"),
        (pa.array([1.0, -float(EDGE)]), "is no whole number below 2\\*\\*53"),
        (pa.array([1.0, 2.0**24], pa.float32()), "is no whole number below 2\\*\\*24"),
        (pa.array([1.0, 2.5]), "2.5 is no whole number"),
        (pa.array([1.0, float("inf")]), "inf is no whole number"),
        (pa.array([1.0, float("nan")]), "is missing|has no value"),
        (pa.array([1, None]), "is missing|has no value"),
        (pa.array(["a", " "]), "is missing|has no value"),
        (pa.array(["a", "b\nc"]), "line end or control character"),
    ],
)
def test_a_key_that_may_stand_for_another_row_is_refused(tmp_path: Path, keys_of: Any, cells: Any, line: str):
    with pytest.raises(ValueError, match=f"column 'k', .*{line}"):
        keys_of(tmp_path, cells)


def test_whole_numbers_and_their_rounded_floats_are_not_matched():
    whole = pd.DataFrame({"k": EDGE + 4 * np.arange(9), "x": 1.0})
    rounded = whole.assign(k=(whole["k"] + 1).astype(np.float64))
    assert owner_of("X", whole, "k").keys.to_pylist()[1] == str(EDGE + 4)
    refuses("X", lambda: owner_of("X", rounded, "k"), "row 0")


def test_a_key_that_is_sent_is_spelled_as_one_in_a_file(tmp_path: Path):
    draw = np.random.default_rng(0)
    spaces, letters = " \t\u00a0\u2003\u3000\u0085", "ae\u0301\u00e9o\u0308k\u030a\u212b\uac001\u1161\u11a8/.-"
    texts = ["".join(draw.choice([*(spaces + letters)], draw.integers(1, 9))) for _ in range(2000)]
    texts += ["2024-01-02 03:04:05.500", "2024-01-02T03:04:05.000Z", "2024-01-02 03:04:05.5", " 007 ", "1.0"]
    texts = [text for text in texts if text.strip() and text.strip() not in MISSING and "\t" not in text.strip()]
    assert [key_cell(text) for text in texts] == keys_of_file(tmp_path, pa.array(texts))
