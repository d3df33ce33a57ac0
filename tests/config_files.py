"""What tests of the experiment's files share: a small one, and the line that a mistake ends with."""

from pathlib import Path

import pytest
import yaml

from vfl.config import ConfigError, load_experiment
from vfl.config.files import parse_overrides

DIGITS = {"name": "small", "data": {"train_samples": 100}, "training": {"batch_size": 10}}


def write(folder: Path, content: object, name: str = "experiment.yaml") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def refusal(path: Path, *overrides: str) -> str:
    """The one line that loading ends with."""
    with pytest.raises(ConfigError) as caught:
        load_experiment(path, parse_overrides(overrides))
    text = str(caught.value)
    assert len(text.splitlines()) == 1, text
    return text
