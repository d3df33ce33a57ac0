"""An epoch over two owners' tables in one process against the bare PyTorch loop on the same prepared rows.

100,000 rows, 30 numbers at the label owner and 300 at the other one, a perceptron of 128 and 64 at each: the sizes for
which FATE 2 publishes 2.4 s per epoch on two hosts of 16 cores.
"""

import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import torch

from scripts.lab.benchmarks.memory import in_fresh_process, peak_bytes
from scripts.lab.benchmarks.paired import Options, Requirement, Result, interleave, required_ratio
from scripts.lab.benchmarks.vertical import Bare, Drawn, Lightweight
from vfl.base.random import generator
from vfl.config import ExperimentConfig, parse_config
from vfl.core.build import TrainingLabels
from vfl.core.tasks import Classification
from vfl.data.samples import Samples
from vfl.data.source import Prepared, open_source, prepare_party
from vfl.data.tables.arrow import pa, pa_csv
from vfl.data.tables.preparation import TablePreparation

ROWS = 100_000
COLUMNS = {"guest": 30, "host": 300}
LEAST = {4096: 1.1, 1024: 0.9, 256: 0.8}
"""Smallest ratio to the bare loop, by batch size; an exchange's fixed cost does not shrink with the batch."""
FATE_S = 2.4
"""FATE 2's published seconds per epoch."""
FILE_ROWS, FILE_COLUMNS = 1_000_000, 100
BLOCK = 10_000
"""Rows of the file drawn at once."""


def benchmark_tables(options: Options) -> list[Result]:
    """Measure seconds per epoch, and the memory for reading and preparing a large file."""
    return [*(_epoch(options, size) for size in LEAST), _memory()]


def draw() -> Drawn:
    """Return both owners' prepared rows, which both loops train on."""
    ids_N, stream = torch.arange(ROWS), generator(0, "benchmark")
    labels_N = torch.randint(2, (ROWS,), generator=stream)
    parts: list[Prepared] = []
    for columns in COLUMNS.values():
        numbers = torch.randn(ROWS, columns, generator=stream).double()
        raw = Samples(ids_N, numbers, more=(ids_N.new_empty(ROWS, 0),))
        preparation = TablePreparation(raw)
        prepared = preparation.apply(raw)
        parts.append(Prepared(preparation, prepared, prepared))
    return Drawn(parts, TrainingLabels(labels_N, Classification(2)))


def _config(options: Options, batch_size: int) -> ExperimentConfig:
    tables = {"guest": {"key": "id", "label": "label"}, "host": {"key": "id"}}
    return parse_config(
        {
            "name": "benchmark",
            "threads": options.threads,
            "data": {"dataset": {"kind": "tables"}, "tables": tables},
            "models": {"feature": {"embedding_size": 16, "width": 0.5}, "head": {"hidden": [64]}},
            "training": {"batch_size": batch_size, "optimizer": {"kind": "adam", "learning_rate": 0.001}},
        }
    )


def _epoch(options: Options, batch_size: int) -> Result:
    config, drawn, rounds = _config(options, batch_size), draw(), count()
    bare, split = Bare(config, drawn), Lightweight(config, drawn)

    def bare_epoch() -> None:
        for _ in range(ROWS // batch_size):
            bare.step()

    sides: dict[str, Callable[[], object]] = {
        "bare": bare_epoch,
        "lvfl": lambda: split.server.train_round(next(rounds)),
    }
    raw = interleave(sides, options.pairs, 1)
    required = required_ratio(raw, ("bare", "lvfl"), ">=", LEAST[batch_size])
    return Result(
        f"an epoch of {ROWS:,} rows, {' + '.join(map(str, COLUMNS.values()))} numbers, perceptrons of 128 and 64",
        f"labels at the server, Adam, batches of {batch_size}",
        raw,
        ("bare", "lvfl"),
        details={"fate_2_s": FATE_S},
        requirement=required,
    )


def _memory() -> Result:
    """Read and prepare a file in a separate process; its numbers' bytes as float32 are the yardstick."""
    measured = in_fresh_process(read_and_prepare, FILE_ROWS, FILE_COLUMNS)
    used = measured["peak_bytes"] - measured["imported_bytes"]
    prepared = 4 * FILE_ROWS * FILE_COLUMNS
    return Result(
        f"peak memory above the imports of reading and preparing a CSV file of {FILE_ROWS:,} rows",
        f"{FILE_COLUMNS} numbers and a key",
        {"peak": [float(used)], "prepared rows": [float(prepared)]},
        ("peak", "prepared rows"),
        unit="bytes",
        details={"bytes_per_row": used / FILE_ROWS, "seconds": measured["seconds"]},
        requirement=Requirement(used / FILE_ROWS, "<=", 12 * FILE_COLUMNS, " bytes per row"),
    )


def write_numbers(path: Path, rows: int, columns: int) -> None:
    """Write a CSV file of random numbers and a key, block by block."""
    names = [f"c{number}" for number in range(columns)]
    draw = np.random.default_rng(0)
    with pa_csv.CSVWriter(str(path), pa.schema([("id", pa.int64()), *((name, pa.float32()) for name in names)])) as out:
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start)
            values = [pa.array(np.round(column, 4)) for column in draw.standard_normal((columns, count), np.float32)]
            out.write_batch(pa.record_batch([pa.array(range(start, start + count)), *values], ["id", *names]))


def read_and_prepare(rows: int, columns: int) -> dict[str, float]:
    """Read a file of random numbers as an owner does, prepare it, and return the peak before and after."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.csv"
        write_numbers(path, rows, columns)
        imported_bytes, started_s = peak_bytes(), time.perf_counter()
        kinds = {f"c{number}": "number" for number in range(columns)}
        config = parse_config(
            {
                "name": "memory",
                "data": {
                    "dataset": {"kind": "tables"},
                    "tables": {"owner": {"file": path, "key": "id", "features": kinds}},
                },
            }
        )
        source = open_source(config)
        prepared = prepare_party(source, source.held_by("owner"))
        assert len(prepared.train) + len(prepared.test) == rows
        seconds = time.perf_counter() - started_s
    return {"imported_bytes": imported_bytes, "peak_bytes": peak_bytes(), "seconds": seconds}
