"""pyarrow behind one untyped face: it ships no stubs, and makes `pyarrow.compute`'s functions at its import."""
# pyright: reportMissingTypeStubs=false

from typing import Any, cast

import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

pa = cast(Any, pyarrow)
pc = cast(Any, pyarrow.compute)
pa_csv = cast(Any, pyarrow.csv)
pq = cast(Any, pyarrow.parquet)
ArrowInvalid: type[ValueError] = pa.ArrowInvalid

Column = Any
"""A pyarrow.Array."""
