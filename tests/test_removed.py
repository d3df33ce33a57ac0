"""A removed setting, value, option or command is refused or ignored in one line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from tiny_training import Ended

from vfl.__main__ import COMMANDS, REMOVED_COMMANDS
from vfl.base.errors import ConfigWarning
from vfl.config import ConfigError, load_config, parse_config, parse_experiment
from vfl.config.files import load_stored_config
from vfl.config.removed import REMOVED, Removed

REFUSED = [each for each in REMOVED if each.always is None]
IGNORED = [each for each in REMOVED if each.always is not None]


def nested(key: str, value: object) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return {"name": "old"} | cast(dict[str, Any], value)


def id_of(removed: Removed) -> str:
    return f"{removed.key}={removed.value}"


@pytest.mark.parametrize("removed", REFUSED, ids=id_of)
def test_a_removed_setting_is_refused_in_a_file_and_on_the_command_line(removed: Removed):
    words = f"{removed.value} was removed" if removed.value else "removed"
    told = f"^{removed.key}: {re.escape(words)} in 0.2.0; "
    with pytest.raises(ConfigError, match=told) as refused:
        load_config(Path("quickstart"), [f"{removed.key}={removed.value or 0.5}"])
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=told):
        parse_config(nested(removed.key, removed.value or {"share": 0.5}))


@pytest.mark.parametrize("removed", IGNORED, ids=id_of)
def test_a_setting_that_became_a_constant_is_ignored_with_a_line(removed: Removed):
    for read in (
        lambda: load_config(Path("quickstart"), [f"{removed.key}=17"]).model_copy(update={"name": "old"}),
        lambda: parse_config(nested(removed.key, 17)),
    ):
        with pytest.warns(ConfigWarning, match=f"^{removed.key}: ignored, it is always ") as told:
            read()
        assert len(told) == 1
    constant = removed.always if removed.default is None else removed.default
    assert parse_config(nested(removed.key, constant)) == parse_config(nested(removed.key, None))
    assert parse_config(nested(removed.key, None)) == parse_config({"name": "old"})


@pytest.mark.parametrize("removed", REMOVED, ids=id_of)
def test_a_removed_setting_is_no_setting(removed: Removed):
    """Else the table would refuse or ignore what works."""
    at: object = parse_config({"name": "new"})
    *sections, name = removed.key.split(".")
    for section in sections:
        at = getattr(at, section)
    assert removed.value or not hasattr(at, name)


@pytest.mark.parametrize("mode", ["vertical", "horizontal"])
def test_an_old_run_whose_configuration_names_what_is_constant_now_is_read(tmp_path: Path, mode: str):
    values = parse_experiment({"name": "old", "seed": 5, "mode": mode}).model_dump(mode="json")
    for each in IGNORED:
        at, (*sections, name) = values, each.key.split(".")
        for section in sections:
            at = at.setdefault(section, {})
        at[name] = each.always if each.default is None else each.default
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    assert load_stored_config(tmp_path / "config.yaml") == parse_experiment({"name": "old", "seed": 5, "mode": mode})


@pytest.mark.parametrize("name", REMOVED_COMMANDS)
def test_a_removed_command_is_refused(call: Callable[..., Ended], name: str):
    assert name not in COMMANDS
    code, _, said = call("lvfl", name, "runs/bank")
    assert code == 2
    assert said.startswith(f"error: {name}: removed in 0.2.0; ")
    assert said.count("\n") == 1
