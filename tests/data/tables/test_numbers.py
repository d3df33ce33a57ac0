"""Numbers of a CSV file: parsed straight away, they are what they are as text, and so are errors about them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from shorthand import examples

from vfl.data.tables.cells import MISSING, Reading, TableError
from vfl.data.tables.columns import Numbers, read_table

FAR = 40_000
"""Rows before the odd ones, more than a block of the file holds."""
ODD = ["1", "-0", "+3", "1e5", "1e-400", "1e31", " 2.5 ", "\t7", "\u00a08", " NA ", "1,5", "0x10", "1_0", "inf", "-nan"]
LONG = ["0.1000000000000000055511151231257827", "123456789012345678901"]
CELLS = st.sampled_from([*MISSING, *ODD, *LONG, "many", "x", "\u0663", "true"])


def read(path) -> bytes | str:
    """Return the numbers' bits, or the error's text."""
    try:
        column = read_table(path, {"x": "number"}, [("id",)], Reading(missing=("many",))).columns["x"]
    except TableError as error:
        return str(error)
    assert isinstance(column, Numbers)
    return column.values.tobytes()


@examples(150)
@given(cells=st.lists(CELLS | st.floats(width=64).map(repr), min_size=1, max_size=6), quoted=st.booleans())
def test_numbers_are_those_of_their_text(tmp_path_factory, cells, quoted):
    path, as_text = tmp_path_factory.mktemp("table") / "t.csv", tmp_path_factory.mktemp("text") / "t.csv"
    lines = [f'{place},"{cell}"' if quoted or "," in cell else f"{place},{cell}" for place, cell in enumerate(cells)]
    path.write_text("\n".join(["id,x", *lines, ""]))
    # A cell with a no-break space, which is stripped from text alone, sends the whole block through text.
    as_text.write_text("\n".join(["id,x", *lines, f"{len(cells)},\u00a00", ""]))
    numbers, from_text = read(path), read(as_text)
    if isinstance(from_text, str):
        assert numbers == from_text.replace(str(as_text), str(path))
    else:
        assert numbers == from_text[:-8]


def test_blocks_before_and_after_a_cell_that_is_stripped_are_whole(tmp_path):
    values = np.arange(3 * FAR, dtype=np.float64) / 8
    cells = [f"{value:.3f}" + " " * 60 for value in values]
    cells[2 * FAR] = "\u00a0" + cells[2 * FAR]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["id,x", *(f"{place},{cell}" for place, cell in enumerate(cells)), ""]))
    assert read(path) == values.tobytes()
    cells[2 * FAR + 1] = "word"
    path.write_text("\n".join(["id,x", *(f"{place},{cell}" for place, cell in enumerate(cells)), ""]))
    assert f"row {2 * FAR + 3}: 'word' is no number" in str(read(path))
