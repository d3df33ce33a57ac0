"""What tests of models of an owner's own share: files of Python with them, and a user who has named no code yet."""

from pathlib import Path

import pytest

from vfl.config import own_models

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden=16, size=8):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(512, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, size)
        )

    def forward(self, images):
        return self.layers(images)
"""


def write_model(folder: Path, text: str = NET, name: str = "my_models.py") -> Path:
    """Write a file of Python that also notes, in a file beside it, that it has run; return that file."""
    folder.mkdir(parents=True, exist_ok=True)
    ran = folder / f"{name}.ran"
    (folder / name).write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n{text}")
    return ran


def become_stranger(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Go on as a user whose configurations have named no code, in a process that has imported none."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    monkeypatch.setattr(own_models, "_noted", set())
