"""A party process records its own messages, and the audit of them is that of the same run in one process."""

import io
import json

import pytest
import torch
from refusals import refuses
from rich.console import Console
from safetensors.torch import save

from vfl.audit.watch_run import FEWEST_ROWS, attack, audit_recorded, watch
from vfl.base.errors import ConfigError
from vfl.core.privacy.message_recorder import SEEN, read_recording
from vfl.predict.trained_run import load_run_with_data
from vfl.runs.run import run_experiment
from vfl.runs.run_folder import PROCESSES
from vfl.runs.stored_run import Run

SECTIONS = {
    "training": {"labels": "server"},
    "data": {"train_samples": 240},
    # Constant ratios: a watched round keeps those reached before it.
    "lightweighting": {"alpha": 0.2, "beta": 0.3},
    "privacy": {"record": True},
    "checkpoint": {"every": 1, "keep": 3},
}


@pytest.fixture(scope="module")
def recorded(trained_with):
    return trained_with(**SECTIONS)


def test_a_process_records_what_one_process_sees_of_the_same_round(recorded, in_process):
    last = recorded.config.training.rounds - 1
    trained = load_run_with_data(Run(recorded.run_dir), last)
    watched = watch(trained, last, 240)
    found = [read_recording(recorded.run_dir / PROCESSES / seen.party) for seen in watched]
    for seen, own in zip(watched, found, strict=True):
        assert own.round_index == last
        assert own.gradients_ND is not None
        assert torch.equal(own.embeddings_ND, torch.as_tensor(seen.embeddings_ND))
        assert torch.equal(own.gradients_ND, torch.as_tensor(seen.gradients_ND))
        assert torch.equal(trained.split.labels.train.values[own.rows_N], torch.as_tensor(seen.labels_N))
    assert (recorded.run_dir / PROCESSES / found[0].party / SEEN).stat().st_mode & 0o777 == 0o600
    # Recording changes no bit.
    plain = in_process(**{key: values for key, values in SECTIONS.items() if key != "privacy"})
    summary = json.loads((recorded.run_dir / "summary.json").read_text())
    assert summary["model_digest"] == plain["summary"]["model_digest"]


def test_one_process_says_that_it_records_nothing(recorded, tmp_path):
    shown = io.StringIO()
    config = recorded.config.model_copy(update={"training": recorded.config.training.model_copy(update={"rounds": 1})})
    run_experiment(config, tmp_path, resume=False, console=Console(file=shown, width=200))
    assert "privacy.record: ignored, as all parties are in this process" in shown.getvalue()


@pytest.mark.release
def test_the_audit_of_one_party_needs_its_folder_alone(recorded, tmp_path):
    own = tmp_path / "copy"
    own.mkdir()
    (own / SEEN).write_bytes((recorded.run_dir / PROCESSES / "party_2" / SEEN).read_bytes())
    (tmp_path / "config.yaml").write_text((recorded.run_dir / "config.yaml").read_text())  # no checkpoint of anybody
    found = audit_recorded(tmp_path, [own], FEWEST_ROWS)
    last = recorded.config.training.rounds - 1
    watched = watch(load_run_with_data(Run(recorded.run_dir), last), last, FEWEST_ROWS)
    expected = attack([seen for seen in watched if seen.party == "party_2"], recorded.config)
    assert list(found.findings) == expected
    assert found.rounds == recorded.config.training.rounds
    assert "party_1: privacy.record=true in that party's own settings" in found.left_out


def test_folders_without_a_recording_say_which_setting_makes_one(tmp_path, recorded):
    with pytest.raises(ConfigError, match=r"privacy\.record=true"):
        audit_recorded(recorded.run_dir, [tmp_path])
    refuses(recorded.run_dir.name, lambda: audit_recorded(recorded.run_dir, []))
    (tmp_path / SEEN).write_bytes(b"nothing")
    refuses(SEEN, lambda: audit_recorded(recorded.run_dir, [tmp_path]), tmp_path / SEEN)


ROW = torch.zeros(3, dtype=torch.int64)
MESSAGE = torch.zeros(3, 64)


@pytest.mark.parametrize(
    "other",
    [
        {"rows": ROW + 240},
        {"rows": ROW - 1},
        {"rows": ROW.float()},
        {"rows": ROW[:0], "embeddings": MESSAGE[:0]},
        {"embeddings": MESSAGE[:2]},
        {"embeddings": MESSAGE[0]},
        {"gradients": torch.zeros(2, 64)},
        {"shifts": torch.full((3, 2), 1 << 40)},
        {"shifts": torch.full((3, 2), -16)},
        {"shifts": torch.zeros(3, 2)},
        {"shifts": torch.zeros(3, dtype=torch.int64)},
    ],
)
def test_a_recording_that_does_not_fit_the_data_is_refused_before_it_is_used(recorded, tmp_path, other):
    (tmp_path / SEEN).write_bytes(
        save({"rows": ROW, "embeddings": MESSAGE} | other, {"party": "party_2", "round": "1"})
    )
    refuses("party_2", lambda: audit_recorded(recorded.run_dir, [tmp_path]))
