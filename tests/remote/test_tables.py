"""Owners of tables as processes, each with a table of its own alone: the bits of one process, also of new rows."""

import csv
import json
import shutil
import signal
import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from predicted import predict_in_process
from refusals import refuses
from rich.console import Console
from shorthand import release
from two_tables import ROWS, sections_of, with_clerk, write_labels, write_tables

import vfl
from vfl.comparison.importance import column_importance
from vfl.config import load_config, parse_config
from vfl.core.local import build_in_process
from vfl.data.tables.source import Tables
from vfl.parties.launch.local_launch import process_configs
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.training_terms import agreement
from vfl.predict.export_run import export_run
from vfl.predict.predict import Prediction
from vfl.predict.start_from import party_start, server_start
from vfl.runs.run import run_experiment
from vfl.runs.runtime import start_runtime
from vfl.runs.stored_run import Run

from .conftest import Federation
from .relay import Relay
from .service import Service

SCRIPTS = Path(__file__).parents[2] / "scripts"
SAME = ("model_digest", "finished_model_digest", "test_metrics", "uplink_bytes", "downlink_bytes")


def predicted_by_processes(federation: Federation, table: Path, samples: Mapping[str, Path]) -> str:
    """Predict the keys of ``table``, each owner from its own samples; return what the server wrote."""
    out = federation.folder / "predicted.csv"
    server = ["--listen", str(federation.folder / "server.yaml"), "--table", str(table), "--out", str(out)]
    federation.launch(SERVER, [str(SCRIPTS / "predict.py"), str(federation.run_dir), *server])
    for owner, path in samples.items():
        federation.start(owner, extra=("--samples", str(path)))
    federation.finish()
    assert federation.codes == {name: [0, 0] for name in federation.names}, federation.logs()
    return out.read_text()


def trains_the_bits_of_one_process(federation: Federation, folder: Path, *more: str) -> None:
    """Train by processes, and by one in ``folder``: the summaries must be the same."""
    federation.run()
    federation.check_ended()
    whole = run_experiment(federation.config, folder, resume=False, console=Console(quiet=True)).summary
    check_same(federation, whole, *more)


def check_same(federation: Federation, whole: Mapping[str, object], *more: str) -> None:
    found = federation.outcome()["summary"]
    assert {name: found[name] for name in (*SAME, *more)} == {name: whole[name] for name in (*SAME, *more)}


def as_file(prediction: Prediction) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in prediction.rows())


def test_owners_of_tables_train_and_predict_the_bits_of_one_process(federate, tmp_path: Path):
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old = write_tables(tmp_path / "old", range(ROWS), labelled=True)
    new = write_tables(tmp_path / "new", range(1000, 1020), labelled=False)
    sections = sections_of(old)
    sections["models"]["members"], sections["data"]["numbers"] = 2, "both"
    sections["training"]["loss"] = {"kind": "focal", "gamma": 0.5}
    federation = federate(**sections)
    federation.own_tables("bank")
    trains_the_bits_of_one_process(federation, tmp_path / "whole")

    new["bank"].write_text(new["bank"].read_text().replace(",j0", ",newcomer", 2))
    found = predicted_by_processes(federation, new["bank"], new)
    with pytest.warns(UserWarning, match="^bank: .*2 of column 'job'"):
        expected = predict_in_process(Run(tmp_path / "whole"), None, [], "refuse", new)
    told = (
        "warning: bank: cells that hold a category of fewer than 5 training rows and are taken as unknown: 2 of column"
    )
    assert [federation.log(name).count(told) for name in federation.names] == [0, 1, 0], "told to its owner alone, once"
    assert found == (text := as_file(expected))
    assert text.splitlines()[1].endswith(",bank+shop")


@pytest.mark.release
def test_an_owner_of_labels_alone_runs_the_server_and_no_party(federate, tmp_path: Path):
    """The bits of the two others; no owner's file says that the labels' owner has no features but that one's own."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old = write_tables(tmp_path / "old", range(ROWS), labelled=True)
    sections = sections_of(old)
    expected = federate(**sections).config
    whole = run_experiment(expected, tmp_path / "whole", resume=False, console=Console(quiet=True)).summary
    federation = federate(**with_clerk(sections, write_labels(tmp_path, old["bank"]), features={}))
    assert federation.names == (SERVER, "bank", "shop")
    federation.own_tables("clerk")
    federation.run()
    federation.check_ended()
    check_same(federation, whole)

    cards = {name: export_run(federation.folder / name, tmp_path / f"{name}-exported") for name in ("bank", "shop")}
    assert {name: [*card["models"]] for name, card in cards.items()} == {"bank": ["bank"], "shop": ["shop"]}
    vfl.report([vfl.Run(federation.run_dir)], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert [f">{name}</t" in page for name in ("bank", "shop", "clerk")] == [True, True, False]

    new = write_tables(tmp_path / "new", range(1000, 1020), labelled=False)
    clerk = tmp_path / "new/clerk.csv"
    clerk.write_text("\n".join(["k", *map(str, range(1000, 1020))]))
    found = predicted_by_processes(federation, clerk, new)
    assert found == as_file(predict_in_process(Run(tmp_path / "whole"), None, [], "refuse", new))

    service = Service(federation, new, tmp_path / "whole")
    service.start(SERVER, "bank", "shop")
    service.until_ready("bank", "shop")
    expected = service.predicted()
    scores = service.score(*range(1000, 1020))
    assert [score["probabilities"] for score in scores] == [expected[str(key)] for key in range(1000, 1020)]
    for name in federation.names:
        federation.signal(name, signal.SIGTERM)
        federation.wait(name)

    config = str(federation.folder / "server.yaml")
    federation.launch("bank", [str(SCRIPTS / "party.py"), config, "--party", "clerk", "--run-dir", str(tmp_path / "c")])
    assert federation.wait("bank") == 2
    assert "--party: clerk " in federation.log("bank")


@pytest.mark.release
@pytest.mark.parametrize("loss", [{}, {"loss": {"kind": "pinball", "quantile": 0.8}}], ids=["squared", "pinball"])
def test_amounts_train_and_predict_the_bits_of_one_process(federate, tmp_path: Path, loss: dict[str, object]):
    (tmp_path / "new").mkdir()
    paths = write_tables(tmp_path, range(ROWS), labelled=True)
    heading, *lines = paths["bank"].read_text().splitlines()
    amounts = [f"{line},{100 + 10 * float(line.split(',')[1]):.2f}" for line in lines]
    paths["bank"].write_text("\n".join([f"{heading},amount", *amounts]))
    sections = {**sections_of(paths), "task": "regression"}
    sections["data"]["tables"]["bank"]["label"] = "amount"
    sections["training"] |= loss
    federation = federate(**sections)
    trains_the_bits_of_one_process(federation, tmp_path / "whole")

    new = write_tables(tmp_path / "new", range(1000, 1020), labelled=False)
    found = predicted_by_processes(federation, new["bank"], new)
    assert found == as_file(predict_in_process(Run(tmp_path / "whole"), None, [], "refuse", new))


@pytest.mark.parametrize("labels", [release("shared"), "server"])
def test_missing_rows_train_the_bits_of_one_process(federate, tmp_path: Path, labels: str):
    paths = write_tables(tmp_path, range(ROWS), labelled=True)
    paths["shop"].write_text("\n".join(paths["shop"].read_text().splitlines()[:-20]))
    sections = sections_of(paths) | {"wire": {"bits": 4, "gradients": {"bits": 4}, "coding": "entropy"}}
    sections["data"]["join"] = "left"
    sections["training"] |= {"labels": labels, "party_dropout": 0.3}
    with pytest.warns(UserWarning, match="80 samples, without a row: 20 at shop"):
        federation = federate(**sections)
    with pytest.warns(UserWarning, match="80 samples, without a row: 20 at shop"):
        trains_the_bits_of_one_process(federation, tmp_path / "whole", "train_macs")


@pytest.mark.filterwarnings("ignore:--when-absent. no placeholder was learned, so zeros replace shop")
@pytest.mark.release
def test_new_rows_of_other_keys_are_matched_in_private_and_scored_as_in_one_process(federate, tmp_path: Path):
    """One owner lacks some of the label owner's rows and has others; rows are in another order."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    federation = federate(**sections_of(write_tables(tmp_path / "old", range(ROWS), labelled=True)))
    federation.own_tables("bank")
    federation.run()
    new = write_tables(tmp_path / "new", range(1000, 1030), labelled=False)
    for owner, kept in {"bank": slice(0, 20), "shop": slice(0, -4)}.items():
        heading, *lines = new[owner].read_text().splitlines()
        new[owner].write_text("\n".join([heading, *lines[kept][::-1]]))
    run_experiment(federation.config, tmp_path / "whole", resume=False, console=Console(quiet=True))

    align = [str(SCRIPTS / "align.py"), str(federation.folder / "server.yaml"), "--run-dir", str(tmp_path / "align")]
    federation.launch(SERVER, [*align, "--rows"])
    for owner, path in new.items():
        config = str(federation.folder / f"{owner}.yaml")
        folder = ["--run-dir", str(tmp_path / owner)]
        federation.launch(owner, [align[0], config, "--party", owner, "--rows", str(path), *folder])
    federation.finish()
    assert "20 samples are matched, 4 of them not at shop" in federation.log(SERVER)
    for owner in new:
        log = federation.log(owner)
        assert "20 samples are matched" in log
        assert "not at" not in log, "what another owner lacks is the server's to know"

    for when_absent in ("placeholder", "zeros", "mean", "refuse"):
        out = tmp_path / f"{when_absent}.csv"
        server = ["--listen", str(federation.folder / "server.yaml"), "--table", str(new["bank"]), "--out", str(out)]
        command = [str(SCRIPTS / "predict.py"), str(federation.run_dir), *server, "--when-absent", when_absent]
        federation.launch(SERVER, command)
        if when_absent == "refuse":
            assert federation.wait(SERVER) == 2
            assert "shop has no row for 4 of 20 keys" in federation.log(SERVER)
            break
        for owner, path in new.items():
            federation.start(owner, extra=("--samples", str(path)))
        federation.finish()
        assert {codes[-1] for codes in federation.codes.values()} == {0}, federation.logs()
        assert federation.log(SERVER).count("no placeholder was learned, so zeros replace shop") == 1  # the first time
        expected = predict_in_process(Run(tmp_path / "whole"), None, [], when_absent, new)
        assert out.read_text() == as_file(expected)
        assert {line.rpartition(",")[2] for line in out.read_text().splitlines()[1:]} == {"bank", "bank+shop"}
    new["shop"].write_text(new["shop"].read_text().replace("1010", "2010"))
    federation.start("shop", extra=("--samples", str(new["shop"])))
    assert federation.wait("shop") == 2
    assert "shop.csv.match matched other keys than" in federation.log("shop")


@pytest.mark.release
def test_owners_learn_what_their_columns_add_and_no_name_or_value_leaves_them(federate, tmp_path: Path):
    """Over processes as in one; refused by an owner that has not agreed, and then to be had from the same run."""
    sections = sections_of(write_tables(tmp_path, range(ROWS), labelled=True))
    federation = federate(**sections)
    federation.own_tables("bank")
    federation.run()
    built = build_in_process(federation.config, start_runtime(federation.config))
    for number in range(federation.config.training.rounds):
        built.server.train_round(number)
    expected = column_importance(built.server.joint)

    soon = federation.folder / "soon.yaml"
    soon.write_text("base: server.yaml\nnetwork: {wait_s: 15}\n")  # who refuses does not come back
    relay = Relay(int(federation.configs[SERVER].network.listen.rpartition(":")[2]))
    agreed = {"bank": ("network.consent.importance=true",), "shop": ()}

    def compare() -> None:
        command = [str(SCRIPTS / "compare.py"), str(federation.run_dir), "--listen", str(soon), "--insecure"]
        federation.launch(SERVER, command)
        federation.start("bank", extra=("--insecure", *agreed["bank"]))
        federation.start("shop", extra=("--insecure", f"network.server={relay.address}", *agreed["shop"]))
        federation.finish()

    compare()
    assert [codes[-1] for codes in federation.codes.values()] == [3, 3, 2], federation.logs()
    assert "network.consent.importance does not agree" in federation.log("shop")
    agreed["shop"] = agreed["bank"]
    compare()
    assert {codes[-1] for codes in federation.codes.values()} == {0}, federation.logs()

    found = json.loads((federation.run_dir / "summary.json").read_text())["comparison"]
    for owner, importance in expected.items():
        with (federation.folder / owner / "importance.csv").open(newline="") as file:
            heading, *rows = csv.reader(file)
        assert heading == ["column", "lost"]
        assert [row[0] for row in rows] == Tables(federation.config.data, 0).columns(owner).names
        assert tuple(float(row[1]) for row in rows) == importance.lost == tuple(found["columns"][owner].values())
    assert "shop adds " in federation.log(SERVER)
    assert len(relay.passed) > ROWS
    raw = Tables(federation.config.data, 0).held_by("shop")
    tables = [part.features for part in (raw.train, raw.test)]
    values = [value for features in tables for value in features.flatten().tolist() if value == value]
    # Five characters or eight bytes at least: among a million random bytes shorter ones stand by chance.
    told = [text for value in values if len(text := f"{value:g}") >= 5]
    assert told
    for secret in ("spent", "visits", *told):
        assert secret.encode() not in relay.passed
    assert not any(struct.pack("<d", value) in relay.passed for value in values)
    pairs = [
        pair for features in tables for each in (features, features.T) for pair in pairwise(each.flatten().tolist())
    ]
    assert not any(
        struct.pack("<2f", *pair) in relay.passed for pair in pairs if all(each == each != 0 for each in pair)
    )


@pytest.mark.release
@pytest.mark.parametrize("labels", [release("shared"), "server"])
def test_owners_start_from_their_own_folders_of_a_run_with_the_bits_of_one_process(federate, tmp_path: Path, labels):
    """Rows are others, the run has pruned its models; one owner is killed before it has a checkpoint of its own."""

    def of(rows: range, **training: object):
        (tmp_path / str(rows.start)).mkdir()
        sections = sections_of(write_tables(tmp_path / str(rows.start), rows, labelled=True))
        sections["training"] |= {"labels": labels, "batch_size": 16, **training}
        return sections

    first = federate(**of(range(ROWS)))
    if labels == "server":
        first.own_tables("bank")
    first.run()
    first.check_ended()
    run_experiment(first.config, tmp_path / "first", resume=False, console=Console(quiet=True))
    before = {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}

    more = of(range(200, 260))
    second = federate(**more | {"lightweighting": {"alpha": {2: 0.6}}})
    for name in second.names:
        path = second.folder / f"{name}.yaml"
        values = yaml.safe_load(path.read_text())
        values["training"]["start_from"] = str(first.run_dir if name == SERVER else first.folder / name)
        path.write_text(yaml.safe_dump(values, sort_keys=False))
    if labels == "server":
        second.own_tables("bank")
    second.run({"shop": [("gets its update", 2, "SIGKILL")]})
    assert second.codes == {name: [-signal.SIGKILL] * (name == "shop") + [0] for name in second.names}, second.logs()
    values = second.config.model_dump()
    values["training"]["start_from"] = tmp_path / "first"
    whole = run_experiment(parse_config(values), tmp_path / "second", resume=False, console=Console(quiet=True)).summary
    check_same(second, whole)
    assert before == {path: path.read_bytes() for path in before}, "the run stays as it was"

    own = load_config(second.folder / "bank.yaml")
    refuses("training.start_from", lambda: party_start(own, "bank", tmp_path / "new", "ab" * 32), "checkpoint")
    refuses("training.start_from", lambda: party_start(own, "shop", tmp_path / "new"), "shop's")
    refuses("training.start_from", lambda: server_start(parse_config(values), tmp_path / "new"), "one process")
    assert json.loads(agreement(own))["training.start_from"] == "a run", "both sides say that they start from one"
    whole_run = process_configs(parse_config(values), tmp_path / "new/processes")
    assert whole_run["shop"].training.start_from == tmp_path / "first/processes/shop"

    shutil.rmtree(first.folder)
    out = tmp_path / "tested.csv"
    server = ["--listen", str(second.folder / "server.yaml"), "--out", str(out)]
    second.launch(SERVER, [str(SCRIPTS / "predict.py"), str(second.run_dir), *server])
    for owner in ("bank", "shop"):
        second.start(owner)
    second.finish()
    assert {codes[-1] for codes in second.codes.values()} == {0}, second.logs()
    expected = predict_in_process(Run(tmp_path / "second"), None, [], "refuse").rows()
    found = [line.split(",")[1:6] for line in out.read_text().splitlines()]
    assert found == [[str(each) for each in row[1:6]] for row in expected]
