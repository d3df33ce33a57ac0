"""pyarrow as an untyped module: it ships no stubs, and creates `pyarrow.compute`'s functions at import."""
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
