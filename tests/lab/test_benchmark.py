import json
import runpy
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import pytest
import torch

from scripts.lab.benchmarks import horizontal
from scripts.lab.benchmarks.memory import PAIRS
from vfl.config import load_config
from vfl.plan import tune

pytestmark = pytest.mark.release

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmark.py"
MODEL = ["--width", "0.05"]
SIZES = ["--batch-size", "8", "--embedding-size", "8"]


@pytest.fixture(scope="module")
def main():
    return runpy.run_path(str(SCRIPT))["main"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """One case of each kind, and PyTorch's threads as they were."""
    monkeypatch.setattr("scripts.lab.benchmarks.vertical.LAYOUTS", ("bfloat16 channels_last",))
    monkeypatch.setattr("scripts.lab.benchmarks.vertical.LABELS", {"labels server": "server"})
    monkeypatch.setattr("scripts.lab.benchmarks.vertical.BETAS", (0.9,))
    monkeypatch.setattr("scripts.lab.benchmarks.memory.PAIRS", 1)
    for name, value in (("ROWS", 64), ("LEAST", {32: 1.0}), ("FILE_ROWS", 300), ("FILE_COLUMNS", 3)):
        monkeypatch.setattr(f"scripts.lab.benchmarks.tables.{name}", value)
    monkeypatch.setattr("scripts.lab.benchmarks.pruning.ROUND_TO", (None, 8))
    monkeypatch.setattr("scripts.lab.benchmarks.codec.DENSITIES", (1.0, 0.1))
    short = replace(horizontal.CASES[1], clients=10, samples=20, rounds=1)
    monkeypatch.setattr("scripts.lab.benchmarks.horizontal.CASES", (short, replace(short, engine="sequential")))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("benchmark", "options", "cases"),
    [
        ("vertical", [*SIZES, *MODEL], 1 + 1 + 1 + 1),
        ("tables", [], 1 + 1),
        ("pruning", [*SIZES, *MODEL], 2 * 2 * 2),
        ("light", [], 2),
        ("codec", SIZES, 2 * 3 * 2),
        ("horizontal", [], 2 + 1),
    ],
)
def test_json_holds_every_raw_value_and_their_ratios(main, benchmark, options, cases, tmp_path, capsys):
    file = tmp_path / "result.json"
    threads = 2 if benchmark == "vertical" else 1
    assert main([benchmark, "--pairs", "1", "--threads", str(threads), *options, "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert content["benchmark"] == benchmark
    assert content["command"].startswith(f"scripts/benchmark.py {benchmark} --pairs 1")
    assert content["options"]["batch_size"] == (8 if options else 256)
    assert {"cpu", "cores", "threads", "avx512_bf16", "amx_bf16", "torch"} <= content["machine"].keys()
    assert content["machine"]["threads"] == threads
    assert len(content["results"]) == cases
    shown = capsys.readouterr().out
    for result in content["results"]:
        over, under = result["ratio_of"]
        raw = result["raw"]
        assert all(len(values) in (1, PAIRS) and min(values) > 0 for values in raw.values())
        assert result["ratios"] == [above / below for above, below in zip(raw[over], raw[under], strict=True)]
        assert result["ratio"]["median"] == median(result["ratios"])
        assert result["medians"] == {side: median(values) for side, values in raw.items()}
        assert result["requirement"]["met"] in (True, False, None)
        assert result["requirement"]["text"] in shown
    if benchmark == "horizontal":  # no timing: 3,500 models would be 23 GB
        assert content["results"][-1]["requirement"]["met"]


def test_both_sides_of_a_round_learn_the_same():
    """The bare loop is what it is compared with: one epoch of FedAvg from the same weights."""
    case = replace(horizontal.CASES[1], clients=horizontal.PER_ROUND, samples=horizontal.BATCH, rounds=1)
    bare = horizontal.Bare(case)
    ours = horizontal.build_trainer(case, bare.rows, len(bare.labels), threads=1)
    bare.round()
    ours.train_round(0)
    learned = ours.fleet.model.split(ours.state["weights"])
    for tensor, expected in zip(learned, bare.weights.values(), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-7)


def test_pairs_alternate_and_warm_up_does_not_count():
    from scripts.lab.benchmarks.paired import interleave

    calls = []
    raw = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, pairs=3, warm_up=2)
    assert "".join(calls) == "ab" + "ba" + "ab" + "ba" + "ab"
    assert {side: len(values) for side, values in raw.items()} == {"a": 3, "b": 3}


def test_requirement_says_whether_it_is_met():
    from scripts.lab.benchmarks.paired import Requirement

    assert str(Requirement(0.98, ">=", 0.97)) == "0.98, target >= 0.97: met"
    assert str(Requirement(3.5, "<=", 3.0, "%")) == "3.5%, target <= 3: MISSED"
    assert Requirement(1.0, ">=", 1.6, excuse="this CPU has no AVX512-BF16").met is None


TINY = [
    *("quickstart", "data.train_samples=64", "data.test_samples=10", "training.batch_size=32", "threads=2"),
    *("models.feature={kind: cnn, width: 0.1, embedding_size: 8}", "data.partition={rows: 1, columns: 2}"),
]


def test_tune_tells_settings_that_a_training_takes(monkeypatch, capsys):
    monkeypatch.setattr(tune, "SECONDS", 0.0)
    monkeypatch.setattr(tune, "NOISE", 0.0)  # recommend whatever it is
    monkeypatch.setattr(sys, "argv", ["tune.py", *TINY])
    assert runpy.run_path(str(SCRIPT.with_name("tune.py")))["main"]() == 0
    *rows, last = capsys.readouterr().out.splitlines()
    measured = [tuple(row.split()[:3]) for row in rows if row.split() and row.split()[0] in tune.PRECISIONS]
    assert set(measured) == set(product(("float32", "bfloat16"), ("false", "true"), ("null", "16")))
    assert len(measured) == 8
    assert last.startswith("fastest here")
    parsed = load_config(Path("quickstart"), last.partition(": ")[2].split())
    assert parsed.lightweighting.pruning.round_to in (None, 16)


def test_tune_recommends_by_how_long_the_model_is_pruned():
    faster_pruned, faster_whole = tune.Seconds(3.0, 1.0), tune.Seconds(2.0, 1.9)
    assert faster_pruned.mean(0.2) > faster_whole.mean(0.2)
    assert faster_pruned.mean(0.8) < faster_whole.mean(0.8)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["doctor", "quickstart"], "lvfl tune CONFIG"),
        (["codec", "--pairs", "0"], "--pairs"),
        (["pruning", "--batch-size", "1"], "--batch-size"),
        (["vertical", "--width", "nan"], "--width"),
        (["codec", "--json", "nowhere/at/all.json"], "--json"),
        (["codec", "--pairs", "many"], "--pairs"),
        (["codec", "--width", "1"], "--width"),
        (["unheard-of"], "unheard-of"),
        ([], "{vertical,tables,"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(main, argv, named, capsys):
    try:
        code = main(argv)
    except SystemExit as error:
        code = error.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert named in captured.err
    assert captured.err.count("\n") == 1
