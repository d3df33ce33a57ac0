"""Whoever names a removed setting, value, option or command is told so in one line."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_training import Ended

from vfl.__main__ import COMMANDS, REMOVED_COMMANDS
from vfl.config import ConfigError, load_config, parse_config
from vfl.config.experiment import REMOVED, Removed
from vfl.config.files import load_stored_config


@pytest.mark.parametrize("removed", REMOVED, ids=lambda each: f"{each.key}={each.value}")
def test_a_removed_setting_is_refused_in_a_file_and_on_the_command_line(removed: Removed):
    words = f"{removed.value} was removed" if removed.value else "removed"
    words = f"{words} in 0.2.0" if removed.constant is None else f"is always {removed.constant} now"
    told = f"^{removed.key}: {re.escape(words)}; "
    with pytest.raises(ConfigError, match=told) as refused:
        load_config(Path("quickstart"), [f"{removed.key}={removed.value or 0.5}"])
    assert "\n" not in str(refused.value)
    *sections, name = removed.key.split(".")
    values: dict[str, object] = {name: removed.value or {"share": 0.5}}
    for section in reversed(sections):
        values = {section: values}
    with pytest.raises(ConfigError, match=told):
        parse_config({"name": "old"} | values)


@pytest.mark.parametrize("removed", REMOVED, ids=lambda each: f"{each.key}={each.value}")
def test_a_removed_setting_is_no_setting(removed: Removed):
    """Else the table would refuse what works."""
    at: object = parse_config({"name": "new"})
    *sections, name = removed.key.split(".")
    for section in sections:
        at = getattr(at, section)
    assert removed.value or not hasattr(at, name)


CONSTANTS = [each for each in REMOVED if each.constant is not None]


@pytest.mark.parametrize("former", ["constant", 17])
def test_an_old_run_whose_configuration_names_what_is_constant_now_is_read(tmp_path: Path, former: object):
    values: dict[str, Any] = {"name": "old", "seed": 5}
    for each in CONSTANTS:
        section, name = each.key.split(".")
        values.setdefault(section, {})[name] = each.constant if former == "constant" else former
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert load_stored_config(tmp_path / "config.yaml") == parse_config({"name": "old", "seed": 5})
    ignored = set() if former == "constant" else {each.key for each in CONSTANTS}
    assert {each.key for each in CONSTANTS for one in told if each.key in str(one.message)} == ignored


@pytest.mark.parametrize("name", REMOVED_COMMANDS)
def test_a_removed_command_is_refused(call: Callable[..., Ended], name: str):
    assert name not in COMMANDS
    code, _, said = call("lvfl", name, "runs/bank")
    assert code == 2
    assert said.startswith(f"error: {name}: removed in 0.2.0; ")
    assert said.count("\n") == 1
