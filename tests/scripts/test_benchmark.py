import json
import runpy
from pathlib import Path
from statistics import median

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmark.py"
MODEL = ["--width", "0.05"]


@pytest.fixture(scope="module")
def main():
    return runpy.run_path(str(SCRIPT))["main"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """One case of each kind, and PyTorch's threads as they were."""
    monkeypatch.setattr("parties.benchmark.LAYOUTS", ("bfloat16 channels_last",))
    monkeypatch.setattr("parties.benchmark.LABELS", {"labels server": "server"})
    monkeypatch.setattr("parties.benchmark.BETAS", (0.9,))
    monkeypatch.setattr("vfl.benchmarks.pruning.ROUND_TO", (None, 8))
    monkeypatch.setattr("vfl.benchmarks.codec.DENSITIES", (1.0, 0.1))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("benchmark", "options", "cases"),
    [("vertical", MODEL, 1 + 1 + 1 + 1), ("pruning", MODEL, 2 * 2 * 2), ("codec", [], 2 * 3 * 2)],
)
def test_json_holds_every_raw_value_and_their_ratios(main, benchmark, options, cases, tmp_path, capsys):
    file = tmp_path / "result.json"
    argv = [benchmark, "--pairs", "1", "--threads", "1", "--batch-size", "8", "--embedding-size", "8", *options]
    assert main([*argv, "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert content["benchmark"] == benchmark
    assert content["command"].startswith(f"scripts/benchmark.py {benchmark} --pairs 1")
    assert content["options"]["batch_size"] == 8
    assert {"cpu", "cores", "threads", "avx512_bf16", "amx_bf16", "torch"} <= content["machine"].keys()
    assert content["machine"]["threads"] == 1
    assert len(content["results"]) == cases
    shown = capsys.readouterr().out
    for result in content["results"]:
        over, under = result["ratio_of"]
        raw = result["raw"]
        assert all(len(values) == 1 and values[0] > 0 for values in raw.values())
        assert result["ratios"] == [raw[over][0] / raw[under][0]]
        assert result["ratio"]["median"] == median(result["ratios"])
        assert result["medians"] == {side: median(values) for side, values in raw.items()}
        assert result["requirement"]["met"] in (True, False, None)
        assert result["requirement"]["text"] in shown


def test_pairs_alternate_and_warm_up_does_not_count():
    from vfl.benchmarks.paired import interleave

    calls = []
    raw = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, pairs=3, warm_up=2)
    assert "".join(calls) == "ab" + "ba" + "ab" + "ba" + "ab"
    assert {side: len(values) for side, values in raw.items()} == {"a": 3, "b": 3}


def test_requirement_says_whether_it_is_met():
    from vfl.benchmarks.paired import Requirement

    assert str(Requirement(0.98, ">=", 0.97)) == "0.98, target >= 0.97: met"
    assert str(Requirement(3.5, "<=", 3.0, "%")) == "3.5%, target <= 3: MISSED"
    assert Requirement(1.0, ">=", 1.6, excuse="this CPU has no AVX512-BF16").met is None


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["codec", "--pairs", "0"], "--pairs"),
        (["pruning", "--batch-size", "1"], "--batch-size"),
        (["vertical", "--width", "nan"], "--width"),
        (["codec", "--json", "nowhere/at/all.json"], "--json"),
        (["codec", "--pairs", "many"], "--pairs"),
        (["codec", "--width", "1"], "--width"),
        (["unheard-of"], "unheard-of"),
        ([], "{vertical"),
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
