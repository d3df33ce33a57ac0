"""lvfl train: what lies in the run folder, and what is shown."""

import io
import sys
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_training import CLIENTS, QUICK, Train, content_of, rows_of, summary_of, timeless

from vfl.base.costs import amount
from vfl.base.modules import combined_digest, weights_digest
from vfl.config import load_config
from vfl.predict.mode import VERTICAL
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.tensorboard import how_to_watch

PARTIES = ("party_1", "party_2")
TAGS_OF_PARTIES = (
    *("alpha", "beta", "macs_per_sample", "parameters", "uplink_bytes", "downlink_bytes", "train_time_s"),
    *("omega", "psi"),
)
TAGS = {"accuracy/test", "loss/train", "loss/test", "savings/compute", "savings/communication"} | {
    f"{tag}/{party}" for tag in TAGS_OF_PARTIES for party in PARTIES
}


def test_the_run_folder_holds_what_the_contract_names(finished: Path):
    events = [path.name for path in finished.iterdir() if path.name.startswith("events.out.tfevents.")]
    assert len(events) == 1
    held = {path.name for path in finished.iterdir()} - set(events)
    assert held == {"config.yaml", "prediction.json", "metrics.jsonl", "checkpoints", "summary.json"}
    assert CheckpointStore(finished / "checkpoints").rounds() == [3, 4]


def test_config_yaml_is_the_whole_resolved_experiment(finished: Path):
    path = finished / "config.yaml"
    assert load_config(path) == load_config(finished.parent / "tiny.yaml")
    written = yaml.safe_load(path.read_text())
    assert written["training"]["labels"] == "shared"  # a default
    assert written["lightweighting"]["alpha"] == {1: 0.2, 3: 0.5}


def test_metrics_jsonl_has_a_row_per_round_with_the_contract_s_tags(finished: Path):
    rows = rows_of(finished)
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        assert row.keys() >= TAGS
        assert all(isinstance(value, int | float) for value in row.values())
    assert [row["alpha/party_2"] for row in rows] == [0.0, 0.2, 0.2, 0.5]


def test_tensorboard_has_the_contract_s_tags_at_every_round(finished: Path):
    events = EventAccumulator(str(finished))
    events.Reload()
    rows = rows_of(finished)
    assert set(events.Tags()["scalars"]) >= TAGS
    for tag in TAGS:
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == [0, 1, 2, 3]
        assert [scalar.value for scalar in scalars] == pytest.approx([row[tag] for row in rows], rel=1e-6)


def test_summary_json_has_all_keys_of_the_contract_and_adds_up(finished: Path):
    summary, rows = summary_of(finished), rows_of(finished)
    assert summary.keys() >= {
        *("rounds", "test_accuracy", "test_loss", "wall_time_s", "uplink_bytes", "downlink_bytes"),
        *("dense_uplink_bytes", "train_macs", "unpruned_train_macs", "model_digest", "parties"),
    }
    assert summary["parties"].keys() == set(PARTIES)
    for party in summary["parties"].values():
        assert party.keys() >= {
            *("alpha", "beta", "parameters", "macs_per_sample", "uplink_bytes", "downlink_bytes", "train_time_s")
        }
    assert (summary["rounds"], summary["test_accuracy"]) == (4, rows[-1]["accuracy/test"])
    assert summary["test_loss"] == rows[-1]["loss/test"]
    assert 0 < summary["uplink_bytes"] < summary["dense_uplink_bytes"]
    assert 0 < summary["train_macs"] < summary["unpruned_train_macs"]
    for direction in ("uplink_bytes", "downlink_bytes"):
        assert summary[direction] == sum(party[direction] for party in summary["parties"].values())
        for name, party in summary["parties"].items():
            assert party[direction] == sum(row[f"{direction}/{name}"] for row in rows)
    for name, party in summary["parties"].items():
        for key in ("alpha", "beta", "parameters", "macs_per_sample"):
            assert party[key] == rows[-1][f"{key}/{name}"]
    assert summary["wall_time_s"] > sum(party["train_time_s"] for party in summary["parties"].values()) > 0


@pytest.mark.parametrize("what", ["compute", "communication"])
def test_what_is_saved_is_one_number_wherever_it_stands(train: Train, tmp_path: Path, what: str):
    """Pruned from round 1 on, so that no round saves what the run does."""
    ended = train("--run-dir", tmp_path / "run")
    summary, rows = summary_of(tmp_path / "run"), rows_of(tmp_path / "run")
    keys = {
        "compute": (["train_macs"], ["unpruned_train_macs"]),
        "communication": (["uplink_bytes", "downlink_bytes"], ["dense_uplink_bytes", "dense_downlink_bytes"]),
    }
    spent, whole = (sum(summary[key] for key in names) for names in keys[what])
    saved = 1 - spent / whole
    assert summary["savings"][what] == rows[-1][f"savings/{what}"] == saved
    assert rows[-1][f"round_savings/{what}"] != pytest.approx(saved, abs=1e-6)
    assert rows[0][f"round_savings/{what}"] == rows[0][f"savings/{what}"]
    assert f"{what} {saved:.1%}" in next(line for line in ended.out.splitlines() if line.startswith("4 of 4 rounds"))
    assert f"\n{what} {saved:.1%}: " in "\n".join(line.strip() for line in ended.out.splitlines())
    events = EventAccumulator(str(tmp_path / "run"), size_guidance={"tensors": 0})
    events.Reload()
    assert events.Scalars(f"savings/{what}")[-1].value == pytest.approx(saved, rel=1e-6)  # first page and HParams
    last = events.Tensors("result/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert f"| savings/{what} | {saved:.6g} |" in last
    of_parties = [row[-1] for row in ([each[f"savings_{what}/{name}"] for each in rows] for name in PARTIES)]
    assert min(of_parties) <= saved <= max(of_parties)


def test_the_model_digest_is_that_of_the_last_checkpoint_s_weights(finished: Path):
    sections = CheckpointStore(finished / "checkpoints").load(4)
    digests = {name: weights_digest(sections[name]["model"]) for name in PARTIES}
    digests["server"] = weights_digest(sections["server"]["head"]["weights"])
    assert summary_of(finished)["model_digest"] == combined_digest(digests)


def test_what_is_shown_ends_with_a_table_of_what_was_reached_and_saved(train: Train, tmp_path: Path, finished: Path):
    run_dir = tmp_path / "shown"
    ended = train("--run-dir", run_dir)
    summary = summary_of(run_dir)
    assert (ended.code, ended.err) == (0, "")
    assert f"tiny: run folder {run_dir}; {how_to_watch(run_dir, VERTICAL.front_page)}\n" in ended.out
    lines = ended.out.splitlines()
    for number in range(1, 5):
        assert sum(line.startswith(f"{number} of 4 rounds  loss ") for line in lines) == 1
    table = ended.out[ended.out.index("test accuracy", ended.out.index("4 of 4 rounds") + 60) :]
    assert table.startswith(f"test accuracy {summary['test_accuracy']:.2%} after 4 rounds")
    assert max(len(line) for line in table.splitlines()) <= 80
    assert "…" not in table
    for heading in ("party", "alpha", "beta", "MACs", "sent up", "sent down"):
        assert heading in table
    for name, party in summary["parties"].items():
        row = next(line for line in table.splitlines() if line.strip().startswith(name))
        for shown in ("0.5", amount(party["macs_per_sample"]), f"{amount(party['uplink_bytes'])}B"):
            assert shown in row
    assert f"{1 - summary['train_macs'] / summary['unpruned_train_macs']:.1%}" in table
    # The same run as the other one, which was started from another folder.
    assert timeless(summary) == timeless(summary_of(finished))
    assert timeless(rows_of(run_dir)) == timeless(rows_of(finished))


def test_overrides_hold_and_warnings_are_shown(train: Train, tmp_path: Path):
    ended = train("lightweighting.alpha={0: 0.5, 1: 0.2}", *QUICK, "--run-dir", tmp_path / "run", "seed=9")
    assert ended.code == 0
    assert "warning: lightweighting.alpha: falls from 0.5 to 0.2 at {1: ...} (party_1)" in ended.out
    config = load_config(tmp_path / "run/config.yaml")
    assert (config.seed, config.training.rounds, config.lightweighting.alpha) == (9, 1, {0: 0.5, 1: 0.2})


@pytest.mark.parametrize("mode", ["vertical", "horizontal"])
def test_a_narrow_terminal_without_unicode_shows_all(train: Train, tmp_path: Path, monkeypatch, mode: str):
    config, settings = (tmp_path / "tiny.yaml", QUICK) if mode == "vertical" else (tmp_path / "clients.yaml", ())
    (tmp_path / "clients.yaml").write_text(yaml.safe_dump(CLIENTS))
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding="ascii", write_through=True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert train(*settings, "--run-dir", tmp_path / "run", config=config).code == 0
    shown = written.getvalue().decode("ascii")
    assert ("MACs" if mode == "vertical" else "clients") in shown
    assert "\x1b" not in shown


def test_early_stopping_ends_well_and_says_so(train: Train, tmp_path: Path):
    settings = ["training.rounds=9", "training.patience=1", "training.optimizer.learning_rate=1e-9"]
    ended = train(*QUICK, *settings, "--run-dir", tmp_path / "run")
    assert ended.code == 0
    assert "stopped early: no better test accuracy than" in ended.out
    assert summary_of(tmp_path / "run")["rounds"] < 9
    before = summary_of(tmp_path / "run")
    assert train(*QUICK, *settings, "--run-dir", tmp_path / "run", "--resume").code == 0
    assert summary_of(tmp_path / "run") == before


def test_runs_without_a_folder_are_numbered_and_the_newest_is_resumed(train: Train):
    for folder in ("runs/tiny", "runs/tiny-2", "runs/tiny-3"):
        ended = train(*QUICK)
        assert ended.code == 0
        assert f"run folder {folder};" in ended.out
    before = content_of(Path("runs"))
    resumed = train(*QUICK, "--resume")
    assert "run folder runs/tiny-3;" in resumed.out
    assert "resumed after 1 of 1 rounds" in resumed.out
    assert content_of(Path("runs")) == before
    assert "run folder runs/other;" in train(*QUICK, "name=other", "--resume").out  # nothing there: a new one
