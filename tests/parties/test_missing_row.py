"""New rows that one owner lacks: a file to mend, not a lost peer."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from tiny_training import Ended
from two_tables import sections_of, write_tables

from vfl.config import parse_config
from vfl.runs.run import run_experiment


def test_a_row_that_one_owner_lacks_is_bad_input_in_one_line(tmp_path: Path, call: Callable[..., Ended]):
    sections = sections_of(write_tables(tmp_path, range(80), labelled=True))
    training = sections["training"] | {"rounds": 1, "steps_per_round": 1, "batch_size": 16}
    config = parse_config(sections | {"name": "two", "threads": 1, "training": training})
    run_experiment(config, tmp_path / "run", resume=False, console=Console(quiet=True))
    (tmp_path / "new").mkdir()
    new = write_tables(tmp_path / "new", range(100, 110), labelled=False)
    new["shop"].write_text("\n".join(new["shop"].read_text().splitlines()[:-2]))
    tables = [f"--table={owner}={path}" for owner, path in new.items()]
    out = tmp_path / "out.csv"
    code, _, line = call("predict", tmp_path / "run", *tables, "--out", out)
    assert code == 2
    assert line.startswith("error: shop has no row for 2 of 10 keys")
    assert line.count("\n") == 1
    assert not out.exists()
