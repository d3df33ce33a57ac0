import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.split_data import main
from vfl.data.files import load_label_data, load_party_data
from vfl.data.sources.images import check_images

ROOT = Path(__file__).parents[2]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Done:
        monkeypatch.setattr("sys.argv", ["split_data.py", str(ROOT / "configs" / "quickstart.yaml"), *arguments])
        code = main()
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return call


def test_files_and_what_is_said_of_them(split, tmp_path: Path):
    small = ("data.train_samples=30", "data.test_samples=20", "training.batch_size=10")
    done = split("--out", "data", "training.labels=server", *small)
    assert (done.returncode, done.stderr) == (0, "")
    names = [f"party_{number}.safetensors" for number in (1, 2, 3, 4)]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["labels.safetensors", *names]
    labels = load_label_data(tmp_path / "data" / "labels.safetensors")
    party = load_party_data(tmp_path / "data" / "party_4.safetensors", "party_4", check_images)
    assert len(labels.train.ids) == 30
    assert len(labels.test.ids) == 20
    assert party.ids_digests() == labels.ids_digests()
    shown = re.search(r"ids of 30 training samples: sha256 (\w+)", done.stdout)
    assert shown is not None
    assert shown[1] == hashlib.sha256(party.train.ids.numpy().tobytes()).hexdigest()
    for name in names:
        assert re.search(rf"data/{name} +{name[:7]}: data\.file +[\d.]+ MB", done.stdout)

    keyed = ("--secret", "key", "training.labels=server", *small)
    said = [split("--out", out, *keyed).stdout.splitlines()[-2:] for out in ("one", "two")]
    assert said[0] == said[1] != done.stdout.splitlines()[-2:]
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "key").write_bytes(b"short")
    assert split("--out", "three", *keyed).stderr.startswith("error: --secret: key holds 5 bytes")

    again = split("--out", "data", *small)
    assert again.returncode == 2
    assert again.stderr == "error: data/party_1.safetensors is there already; add --overwrite to replace it\n"
    assert not (tmp_path / "data" / "shared_labels.safetensors").exists()
