"""Reading settings opens no file of data: the tables report what is wrong with them, later and in one line."""

from pathlib import Path

import pytest
import yaml
from refusals import refused, refuses

from vfl.config import load_config
from vfl.data.experiments import decide_parties, load_user_config
from vfl.data.source import open_source


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    tables = {"clerk": {"key": "k", "label": "late"}, "bank": {"key": "k"}}
    for owner, file in {"clerk": "gone.csv", "bank": "away.parquet"}.items():
        tables[owner]["file"] = str(tmp_path / file)
    values = {"name": "x", "data": {"dataset": {"kind": "tables"}, "tables": tables}}
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def test_settings_of_tables_that_are_not_there_are_read(settings: Path):
    config = load_config(settings)
    assert config.parties == ("clerk", "bank")
    assert decide_parties(config) == config
    refuses("gone.csv", lambda: open_source(config).split(), "moved")


def test_only_the_header_of_the_label_owners_table_decides_who_the_parties_are(settings: Path, tmp_path: Path):
    (tmp_path / "gone.csv").write_text("k,late\n1,yes\n")
    assert load_config(settings).parties == ("clerk", "bank")
    config = load_user_config(settings)
    assert (config.parties, config.owners) == (("bank",), ("clerk", "bank"))
    assert config.data.tables["clerk"].features == {}
    assert config.model_fields_set == load_config(settings).model_fields_set
    with refused("lightweighting.alpha", "'clerk'"):
        load_user_config(settings, ["lightweighting.alpha={clerk: 0.5}"])
    (tmp_path / "gone.csv").write_text("k,late,age\n1,yes,30\n")
    assert load_user_config(settings).parties == ("clerk", "bank")
