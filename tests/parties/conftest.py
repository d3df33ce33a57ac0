"""A trained run of two owners, with new rows of both as typed files and in databases."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from served_owner import NEW, Owner, fill
from two_tables import sections_of, write_tables

from vfl.config import parse_config
from vfl.core.local import InProcess
from vfl.data.tables.arrow import pa_csv, pq
from vfl.predict.trained_run import load_run_with_data
from vfl.runs.run import run_experiment
from vfl.runs.stored_run import Run


@pytest.fixture(scope="module")
def trained_rows(tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    folder = tmp_path_factory.mktemp("rows")
    sections = sections_of(write_tables(folder, range(80), labelled=True))
    sections["training"] |= {"rounds": 2, "batch_size": 16}
    config = parse_config({"name": "rows", "threads": 1, **sections})
    run_experiment(config, folder / "run", resume=False, console=Console(quiet=True))
    return load_run_with_data(Run(folder / "run"))


@pytest.fixture(scope="module")
def new_rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """New rows of both owners in typed files and, beside each, in a database."""
    folder = tmp_path_factory.mktemp("new")
    paths = dict[str, Path]()
    for owner, path in write_tables(folder, NEW, labelled=False).items():
        table = pa_csv.read_csv(path)
        paths[owner] = path.with_suffix(".parquet")
        pq.write_table(table, paths[owner])
        fill(path.with_suffix(".db"), table.to_pylist())
    return paths


@pytest.fixture
def owned(trained_rows: InProcess, tmp_path: Path) -> Iterator[Callable[[str], Owner]]:
    owners = list[Owner]()

    def own(name: str) -> Owner:
        owners.append(Owner(trained_rows, name, tmp_path))
        return owners[-1]

    yield own
    for each in owners:
        each.close()
