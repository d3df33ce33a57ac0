from pathlib import Path

import pytest

from scripts.lab.reference import OFTEN, reference
from vfl.config.experiment import ExperimentConfig

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_what_the_types_say():
    assert PAGE.read_text(encoding="utf-8") == reference(), "python -m scripts.lab.reference > docs/configuration.md"


@pytest.mark.release
def test_the_page_has_the_default_the_type_and_the_meaning_of_a_setting():
    line = "| `checkpoint.every` | 5; integer from 1 | Rounds between checkpoints; the last round and an inter"
    assert any(each.startswith(line) for each in reference().splitlines())
    assert all(f"`{key}`" in reference() or f"\n## {key}\n" in reference() for key in ExperimentConfig.model_fields)


def test_keys_that_are_often_needed_are_keys():
    page = reference()
    assert [key for key in OFTEN.split() if page.count(f"| `{key}` |") != 1] == []


def test_every_setting_has_a_meaning():
    assert [line for line in reference().splitlines() if line.endswith(("|  |", "): "))] == []
