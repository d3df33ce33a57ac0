"""Reasons of scores over processes: those of one process, and no more of a column than its owner agrees to tell."""

import csv
import json
from pathlib import Path

import pytest
from two_tables import ROWS, sections_of, write_tables

from vfl.core.local import build_in_process
from vfl.data.tables.source import Tables
from vfl.parties.network.tls.certificates import SERVER
from vfl.predict.reasons import ReasonsWanted, explain
from vfl.runs.runtime import start_runtime

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.release
@pytest.mark.parametrize("told", ["ranks", "itself", "nothing"])
def test_owners_explain_scores_as_in_one_process_and_tell_what_they_agreed_to(federate, tmp_path: Path, told: str):
    sections = sections_of(write_tables(tmp_path, range(ROWS), labelled=True))
    sections["training"] |= {"party_dropout": 0.2}
    federation = federate(**sections)
    federation.own_tables("bank")
    federation.run()
    built = build_in_process(federation.config, start_runtime(federation.config))
    for number in range(federation.config.training.rounds):
        built.server.train_round(number)
    expected = explain(built.server.joint, ReasonsWanted(steps=8))

    out = tmp_path / "out.csv"
    listen = ["--listen", str(federation.folder / "server.yaml"), "--insecure", "--when-absent", "placeholder"]
    reasons = ["--reasons", "--reasons-steps", "8", "--out", str(out)]
    federation.launch(SERVER, [str(SCRIPTS / "predict.py"), str(federation.run_dir), *listen, *reasons])
    for name, tells in (("bank", "amounts"), ("shop", told)):
        federation.start(name, extra=("--insecure", f"network.consent.reasons={tells}"))
    federation.finish()
    assert {codes[-1] for codes in federation.codes.values()} == {0}, federation.logs()

    with out.open(newline="") as file:
        heading, *rows = csv.reader(file)
    found = [dict(zip(heading, row, strict=True)) for row in rows]
    names = {owner: Tables(federation.config.data, 0).columns(owner).names for owner in ("bank", "shop")}
    for place, (row, cells) in enumerate(zip(found, map(expected.cells, range(len(found))), strict=True)):
        wanted = dict(zip(expected.heading(), cells, strict=True))
        common = {name: value for name, value in wanted.items() if name in row and not name.startswith("shop.")}
        assert {"bank", "shop", "log_odds", *(f"bank.{name}" for name in names["bank"])} <= common.keys()
        assert {name: row[name] for name in common} == common
        if told == "ranks":
            amounts = expected.columns["shop"].moved_NC[place].tolist()
            ranks = [float(row[f"rank_shop.{name}"]) for name in names["shop"]]
            assert [(rank > 0) - (rank < 0) for rank in ranks] == [(each > 0) - (each < 0) for each in amounts]
    assert any(name.startswith("rank_shop.") for name in heading) == (told == "ranks")
    assert not any(name.startswith("shop.") for name in heading)
    assert ("error_shop" in heading) == (told != "nothing")

    kept = federation.folder / "shop" / "reasons.csv"
    logged = [json.loads(line)["event"] for line in (federation.folder / "shop/audit.jsonl").read_text().splitlines()]
    assert kept.exists() == ("explained" in logged) == (told != "nothing")
    if kept.exists():
        assert kept.stat().st_mode & 0o077 == 0
        with kept.open(newline="") as file:
            heading, *rows = csv.reader(file)
        assert heading == ["id", *names["shop"], "error"]
        amounts = [[f"{each:.6g}" for each in row] for row in expected.columns["shop"].moved_NC.tolist()]
        assert sorted(row[1:-1] for row in rows) == sorted(row for row in amounts if row[0] != "nan")
