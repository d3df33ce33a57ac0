"""Owners of tables as processes, each with a table of its own alone: the bits of one process, also of new rows."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from parties.predict import predict_in_process
from parties.remote.tls.certificates import SERVER
from vfl.runs.experiments.run import run_experiment

SCRIPTS = Path(__file__).parents[2] / "scripts"
ROWS = 80
SAME = ("model_digest", "finished_model_digest", "test_metrics", "uplink_bytes", "downlink_bytes")


def write_tables(folder: Path, rows: range, labelled: bool) -> dict[str, Path]:
    """Write both owners' tables, the shop's in another order, with gaps and a rare category."""
    draw = np.random.default_rng(rows.start)
    numbers = draw.normal(size=(len(rows), 3)).round(3)
    bank = ["k,age,job" + ",late" * labelled]
    bank += [f"{k},{a},j{k % 4}" + f",{int(a + b > 0)}" * labelled for k, (a, b, _) in zip(rows, numbers, strict=True)]
    shop = [f"{k},{b},{'' if k % 9 == 0 else c}" for k, (_, b, c) in zip(rows, numbers, strict=True)]
    texts = {"bank": bank, "shop": ["k,spent,visits", *reversed(shop)]}
    for owner, lines in texts.items():
        (folder / f"{owner}.csv").write_text("\n".join(lines))
    return {owner: folder / f"{owner}.csv" for owner in texts}


def test_owners_of_tables_train_and_predict_the_bits_of_one_process(federate, tmp_path: Path):
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old = write_tables(tmp_path / "old", range(ROWS), labelled=True)
    new = write_tables(tmp_path / "new", range(1000, 1020), labelled=False)
    tables: dict[str, dict[str, Any]] = {owner: {"file": str(path), "key": "k"} for owner, path in old.items()}
    tables["bank"] |= {"label": "late", "features": {"age": "number", "job": "category"}}
    data = {"dataset": {"kind": "tables"}, "tables": tables, "train_samples": None, "test_samples": None}
    models = {"feature": {"kind": "mlp", "width": 0.1, "embedding_size": 8}}
    training = {"labels": "server", "optimizer": {"kind": "adam", "learning_rate": 0.01, "momentum": 0.0}}
    federation = federate(data=data, models=models, training=training)
    federation.own_tables("bank")
    federation.run()
    assert federation.codes == {name: [0] for name in federation.names}, federation.logs()
    summary = run_experiment(federation.config, tmp_path / "whole", resume=False, console=Console(quiet=True)).summary
    found = federation.outcome()["summary"]
    assert {name: found[name] for name in SAME} == {name: summary[name] for name in SAME}

    out = tmp_path / "new.csv"
    server = ["--serve", str(federation.folder / "server.yaml"), "--table", str(new["bank"]), "--out", str(out)]
    federation.launch(SERVER, [str(SCRIPTS / "predict.py"), str(federation.run_dir), *server])
    for owner, path in new.items():
        federation.start(owner, extra=("--samples", str(path)))
    federation.finish()
    assert federation.codes == {name: [0, 0] for name in federation.names}, federation.logs()
    expected = predict_in_process(tmp_path / "whole", None, [], "refuse", new)
    text = "".join(",".join(map(str, row)) + "\n" for row in expected.rows())
    assert out.read_text() == text
    assert text.splitlines()[1].endswith(",bank+shop")
