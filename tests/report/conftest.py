"""Folders of made-up runs, and a browser that looks at their pages."""

import json
import shutil
from pathlib import Path

import pytest
from chromium import Browse, open_browser
from made_runs import ROUNDS, final_accuracy, vertical_rows, vertical_summary, write_run

from vfl.reports.runs import load_subject
from vfl.reports.write import write_report


@pytest.fixture(scope="session")
def browse(tmp_path_factory: pytest.TempPathFactory) -> Browse:
    """Headless Chromium."""
    return open_browser(tmp_path_factory.mktemp("profile"))


@pytest.fixture
def one_run(tmp_path: Path) -> Path:
    """A single vertical run."""
    return write_run(tmp_path / "one", {}, vertical_rows(0.2, 0.4, 0.8), vertical_summary(0.2, 0.4, 0.8))


@pytest.fixture(scope="session")
def made_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of three by three ratios and two seeds, one run of which is not finished; nobody may change it."""
    folder, runs = tmp_path_factory.mktemp("made") / "sweep", {}
    for alpha in (0.0, 0.2, 0.6):
        for beta in (0.0, 0.4, 0.8):
            for seed in (0, 1):
                name = f"alpha{alpha:g}-beta{beta:g}-seed{seed}"
                runs[name] = {"lightweighting.alpha": alpha, "lightweighting.beta": beta, "seed": seed}
                final = final_accuracy(alpha, beta, seed)
                settings = {"seed": seed, "lightweighting": {"alpha": alpha, "beta": beta}}
                rows, summary = vertical_rows(alpha, beta, final), vertical_summary(alpha, beta, final)
                write_run(folder / "runs" / name, settings, rows, summary)
    runs["alpha0.9-seed0"] = {"lightweighting.alpha": 0.9, "seed": 0}
    (folder / "sweep.json").write_text(json.dumps({"name": "made_sweep", "threads": 1, "runs": runs}))
    return folder


@pytest.fixture
def sweep(made_sweep: Path, tmp_path: Path) -> Path:
    """A copy of the sweep that a test may change."""
    return shutil.copytree(made_sweep, tmp_path / "sweep")


@pytest.fixture(scope="session")
def report_of_sweep(made_sweep: Path) -> Path:
    """The folder of the sweep's report, which many tests read."""
    folder = made_sweep.parent / "report"
    write_report(load_subject(made_sweep), folder)
    return folder


@pytest.fixture
def horizontal_run(tmp_path: Path) -> Path:
    """A horizontal run of 20 clients, evaluated every second round."""
    rows: list[dict[str, float]] = []
    for index in range(ROUNDS):
        row: dict[str, float] = {"round": index, "loss/train": 1.0, "simulated_time_s/total": 2.0 * (index + 1)}
        row |= {"uplink_bytes/clients": 50.0, "downlink_bytes/clients": 60.0, "train_macs/clients": 1000.0}
        rows.append(row | ({"accuracy/test": 0.2 * (index + 1)} if index % 2 else {}))
    client = {"uplink_bytes": 10, "downlink_bytes": 12, "train_macs": 200, "train_time_s": 1.0}
    clients = {f"client_{number}": client | {"samples": number} for number in range(1, 21)}
    summary = vertical_summary(0.0, 0.0, 0.8) | {"simulated_time_s": 8.0, "parties": clients}
    settings = {"mode": "horizontal", "horizontal": {"clients": 20}}
    return write_run(tmp_path / "horizontal", settings, rows, summary)
