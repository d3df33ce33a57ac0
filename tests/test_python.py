"""The Python API: docs/python.md runs as it stands, and nothing is public by accident."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused, refuses

import vfl

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL)
OF_RUNS = 1 + next(number for number, block in enumerate(BLOCKS) if "ratios=" in block)
"""Blocks up to the one of a run with chosen ratios; the others are of estimators, comparisons and own modules."""
RUNS = ("pruned", "whole", "chosen")
TINY = """base: quickstart
threads: 1
data: {train_samples: 64, test_samples: 40}
models: {feature: {kind: mlp, width: 0.1}}
training: {batch_size: 32, optimizer: {learning_rate: 0.02}}
lightweighting: {alpha: 0.0, beta: 0.0}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python")


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    """Run the page's blocks up to the ratios that a function chooses, on a quickstart that is tiny; return their names.

    One after another, as a notebook does.
    """
    (folder / "quickstart").write_text(
        TINY.replace("base: quickstart", f"base: {ROOT / 'configs' / 'quickstart.yaml'}")
    )
    return run_blocks(BLOCKS[:OF_RUNS], folder, {})


def run_blocks(blocks: list[str], folder: Path, names: dict[str, Any]) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in blocks:
            exec(compile(block, "docs/python.md", "exec"), names)
    return names


@pytest.mark.release
def test_the_page_runs_as_it_stands(told: dict[str, Any], folder: Path):
    """Runs the rest, and checks what the blocks leave behind, the ratios that a function chose included."""
    run_blocks(BLOCKS[OF_RUNS:], folder, dict(told))
    pruned, whole, chosen = (json.loads((folder / f"runs/{name}/summary.json").read_text()) for name in RUNS)
    assert pruned["train_macs"] < whole["train_macs"] == whole["unpruned_train_macs"]
    assert told["probabilities_NC"].shape == (3, 10)
    assert np.allclose(told["probabilities_NC"].sum(axis=1), 1.0)
    assert [row["beta/party_1"] for row in told["run"].metrics] == [0.8, 0.8]
    assert [row["beta/party_4"] for row in told["run"].metrics] == [0.0, 0.0]
    first = told["run"].metrics[0]["accuracy/test"]
    assert told["run"].metrics[1]["alpha/party_1"] == (0.4 if first > 0.1 else 0.0)
    assert chosen["parties"]["party_2"]["beta"] == 0.5
    assert "<svg" in (folder / "report.html").read_text()


@pytest.mark.release
def test_the_notebook_runs_as_it_stands_and_is_kept_without_outputs():
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(ROOT / "docs" / "python.ipynb", as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    NotebookClient(notebook, timeout=300).execute()
    shown = {cell.id: cell.outputs[-1].data["text/plain"] for cell in notebook.cells if cell.get("outputs")}
    assert "clinic alone" in shown["gain"]
    assert "laboratory" in shown["costs"]
    assert "laboratory" in shown["contributions"]
    assert shown["away"].count("[") == 4
    assert "alpha" in shown["grid"]


def test_a_run_is_what_the_command_leaves(told: dict[str, Any], folder: Path):
    run = vfl.Run(folder / "runs/chosen")
    assert run.summary == told["run"].summary
    assert run.config.training.rounds == len(run.metrics) == 2
    assert run.predict().shape == (40, 10)
    assert (run.predict().argmax(axis=1)).dtype.kind == "i"
    refuses("samples", lambda: run.predict(np.zeros((3, 8, 8), np.uint8)), "32", "[3, 8, 8]")
    refuses("samples", lambda: run.predict("none.npz"), "none.npz")


def test_what_is_no_run_is_one_line(tmp_path: Path):
    refuses("none", lambda: vfl.Run(tmp_path / "none"), "holds")
    refuses("runs", lambda: vfl.report([], tmp_path / "page.html"), "none")


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ({"party_9": (0.0, 0.0)}, "'party_9'"),
        ({"party_1": 0.3}, "{'party_1': 0.3}"),
        (None, "None"),
        ({"party_1": (1.0, 0.0)}, "1.0 of party_1"),
    ],
)
def test_ratios_that_cannot_be_are_one_line(told: dict[str, Any], folder: Path, ratios: Any, said: str):
    config = folder / "quickstart"
    with refused("ratios", said):
        vfl.train(config, run_dir=folder / f"bad-{len(said)}", ratios=lambda round_index, metrics: ratios)


def test_horizontal_runs_have_no_ratios(tmp_path: Path):
    with refused("ratios", "mode"):
        vfl.train(
            "horizontal/fedavg",
            {"data.dataset.kind": "digits"},
            run_dir=tmp_path / "run",
            ratios=lambda round_index, metrics: {},
        )


def test_nothing_is_public_by_accident():
    known = [
        "Callback",
        "ConfigError",
        "Party",
        "Run",
        "VerticalClassifier",
        "VerticalRegressor",
        "compare",
        "fit",
        "prune",
        "report",
        "train",
    ]
    assert vfl.__all__ == dir(vfl) == known
    for name in vfl.__all__:
        assert getattr(vfl, name).__doc__
    members = {name for name in vars(vfl.Run) if not name.startswith("_")}
    told = {"config", "explain", "finished", "metrics", "metrics_frame", "predict", "summary"}
    assert members == told | {"checkpoints", "prediction", "rows_and_summary", "saved_rounds", "vertical"}
    assert all(vars(vfl.Run)[name].__doc__ for name in members)
