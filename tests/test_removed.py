"""Whoever names a removed setting, value, option or command is told so in one line."""

import sys
from pathlib import Path

import pytest

from vfl.__main__ import COMMANDS, REMOVED_COMMANDS, parse_arguments
from vfl.config import ConfigError, load_config, parse_config
from vfl.config.experiment import REMOVED, Removed


@pytest.mark.parametrize("removed", REMOVED, ids=lambda each: f"{each.key}={each.value}")
def test_a_removed_setting_is_refused_in_a_file_and_on_the_command_line(removed: Removed):
    words = f"{removed.value} was removed" if removed.value else "removed"
    told = rf"^{removed.key}: {words} in 0\.2\.0; "
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


@pytest.mark.parametrize("name", REMOVED_COMMANDS)
def test_a_removed_command_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str):
    assert name not in COMMANDS
    monkeypatch.setattr(sys, "argv", ["lvfl", name, "runs/bank"])
    with pytest.raises(SystemExit) as end:
        parse_arguments()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {name}: removed in 0.2.0; ")
    assert said.count("\n") == 1
