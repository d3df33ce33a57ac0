"""A match of real processes: killed at any moment, slow, and without PyTorch; training reads what it leaves."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses
from rich.console import Console
from shorthand import release
from two_tables import ROWS, sections_of, with_clerk, write_labels, write_tables

from vfl.config import parse_config
from vfl.console import LOST
from vfl.data.experiments import decide_parties
from vfl.data.source import open_source
from vfl.data.tables.matching_result import Match, read_match, write_match
from vfl.parties.launch.supervisor import make_keys, networked, write_configs
from vfl.parties.matching.processes import match_together, serve_match
from vfl.parties.network.tls.certificates import SERVER

from .conftest import ROOT, Federation, ForkServer, Strike, train_in_process

OWNERS = ("bank", "shop", "club")
FILES = {"audit.jsonl", "ca.pem", "certificate.pem", "key.pem", "ca-key.pem", "issued.txt"}
FILES |= {f"{name}.{kind}" for name in OWNERS for kind in ("csv", "log", "match", "yaml")} | {
    "server.log",
    "server.yaml",
}
"""What a match leaves, whoever was killed: no part of a result, nothing secret but the keys."""
TIMING = {"heartbeat_s": 0.3, "silence_s": 30, "wait_s": 60}


class Matching(Federation):
    """The processes of one match: three owners with customers of their own, and of the bank's that all have."""

    def __init__(self, fork_server: ForkServer, folder: Path) -> None:
        self.fork_server, self.folder = fork_server, folder
        draw = random.Random(0)
        self.keys = {name: draw.sample([f"kunde-ä{number}" for number in range(60)], 40) for name in OWNERS}
        folder.mkdir()
        tables = {}
        for name, keys in self.keys.items():
            lines = [f"{key},{draw.random()},{'yn'[row % 2]}" for row, key in enumerate(keys)]
            (folder / f"{name}.csv").write_text("\n".join(["id,amount,left", *lines]), encoding="utf-8")
            tables[name] = {"file": str(folder / f"{name}.csv"), "key": "id", "match": str(folder / f"{name}.match")}
            tables[name]["features"] = {"amount": "number"}
        tables["bank"]["label"] = "left"
        self.data = data = {"dataset": {"kind": "tables"}, "tables": tables}
        self.config = parse_config({"name": "m", "threads": 1, "data": data, "network": TIMING})
        self.configs = networked(self.config, folder)
        make_keys(self.config, folder, self.configs)
        write_configs(folder, self.configs)
        self.names = (SERVER, *OWNERS)
        self.running: dict[str, int] = {}
        self.codes: dict[str, list[int]] = {name: [] for name in self.names}

    def start(self, name: str, *strikes: Strike, extra: tuple[str, ...] = ()) -> None:
        argv = [str(ROOT / "scripts/align.py"), str(self.folder / f"{name}.yaml"), "--run-dir", str(self.folder / name)]
        self.launch(name, [*argv, *([] if name == SERVER else ["--party", name]), *extra], *strikes)

    def found(self) -> set[tuple[str, ...]]:
        """The keys of all owners that stand for each sample."""
        matches = [read_match(self.folder / f"{name}.match", name) for name in OWNERS]
        assert len({match.order for match in matches}) == 1
        rows = zip(*(match.rows for match in matches), strict=True)
        return {tuple(self.keys[name][row] for name, row in zip(OWNERS, each, strict=True)) for each in rows}

    def files(self) -> set[str]:
        """The names of all files here."""
        return {path.name for path in self.folder.rglob("*") if path.is_file()}

    def expected(self) -> set[tuple[str, ...]]:
        return {(key,) * 3 for key in set.intersection(*map(set, self.keys.values()))}


@pytest.mark.parametrize(
    "killed",
    [
        {
            "bank": ("brings its keys", 1),
            "shop": ("multiplies", 3),
            SERVER: ("joins", 1),
            "club": ("takes its result", 1),
        },
        release({"shop": ("has its result, unanswered", 1), SERVER: ("has matched", 1), "bank": ("says its hello", 1)}),
    ],
    ids=["before it ends", "at its end"],
)
def test_whoever_is_killed_is_started_again_and_the_match_is_the_same(fork_server, tmp_path, killed):
    matching = Matching(fork_server, tmp_path / "m")
    try:
        matching.run({name: [(*where, "SIGKILL")] for name, where in killed.items()})
        died = {name: codes[:-1] for name, codes in matching.codes.items()}
        assert died == {name: [-signal.SIGKILL] * (name in killed) for name in matching.names}, matching.logs()
        assert {codes[-1] for codes in matching.codes.values()} == {0}, matching.logs()
        assert matching.found() == matching.expected()
        assert matching.files() == FILES
        for name in OWNERS:
            held = open_source(matching.config).held_by(name)
            assert len(held.train) + len(held.test) == len(matching.expected())
    finally:
        matching.close()


@pytest.mark.release
@pytest.mark.timeout(900)
def test_matches_with_sides_killed_at_any_moment_leave_nothing(fork_server, tmp_path):
    """Kills until forty have died, at moments that adapt to earlier deaths: how long a match takes is open."""
    draw, died, came_late, longest_s = random.Random(1), 0, 0, 0.5
    descriptors, number = _descriptors(fork_server), 0
    while died < 40:
        number += 1
        assert number < 90, f"only {died} sides were killed in {number} matches"
        matching, before = Matching(fork_server, tmp_path / str(number)), died
        try:
            for name in matching.names:
                matching.start(name)
            for victim in draw.sample(matching.names, 2):
                time.sleep(draw.uniform(0, longest_s))
                if victim in matching.running and matching.poll(victim) is None:
                    matching.signal(victim, signal.SIGKILL)
                    if matching.wait(victim) == -signal.SIGKILL:  # else it had ended just before
                        died += 1
                        matching.start(victim, extra=("network.wait_s=20",))
            longest_s *= 1.1 if died == before + 2 else 0.8
            matching.finish()
            # A side killed while it takes its leave finds nobody when it comes back: its result stands all the same.
            late = {name for name, codes in matching.codes.items() if codes == [-signal.SIGKILL, LOST]}
            ended = {codes[-1] for name, codes in matching.codes.items() if name not in late}
            assert ended == {0}, matching.logs()
            came_late += len(late)
            assert matching.found() == matching.expected()
            assert matching.files() == FILES
        finally:
            matching.close()
    assert came_late <= died // 2
    assert _descriptors(fork_server) == descriptors


def _descriptors(fork_server: ForkServer) -> int:
    """Return how many files the server of forks holds open."""
    return len(list(Path(f"/proc/{fork_server.process.pid}/fd").iterdir()))


def test_an_owner_that_claims_the_label_is_refused_alone(fork_server, tmp_path):
    matching = Matching(fork_server, tmp_path / "m")
    try:
        for name in (SERVER, "bank", "club"):
            matching.start(name)
        matching.start("shop", extra=("data.tables.shop.label=left", "data.tables.bank.label=null"))
        assert matching.wait("shop") == 2
        assert "known_as: must come from bank, the owner of the label, and from no other" in matching.log("shop")
        matching.start("shop")
        matching.finish()
        assert {name: codes[-1] for name, codes in matching.codes.items()} == dict.fromkeys(matching.names, 0)
        assert matching.found() == matching.expected()
    finally:
        matching.close()


def test_a_server_that_does_not_know_who_has_the_label_says_so(tmp_path):
    config = parse_config({"name": "m", "data": {"dataset": {"kind": "tables"}, "tables": {"bank": {}, "shop": {}}}})
    refuses("data.tables", lambda: serve_match(config, tmp_path / "run", insecure=False, console=Console()), "label")
    assert not (tmp_path / "run").exists()


@pytest.mark.release
def test_an_owner_of_another_join_is_refused_and_a_slow_one_is_waited_for(fork_server, tmp_path):
    matching = Matching(fork_server, tmp_path / "m")
    try:
        for name in (SERVER, "bank"):
            matching.start(name)
        matching.start("club", ("multiplies", 2, "busy 1"))
        matching.start("shop", extra=("data.join=left",))
        assert matching.wait("shop") == 2
        assert 'data.join (server "inner", party "left")' in matching.log("shop")
        matching.start("shop")
        matching.finish()
        assert matching.found() == matching.expected()
        assert "done at" in matching.log(SERVER)
    finally:
        matching.close()


@pytest.mark.release
def test_a_left_join_trains_over_processes_to_the_bits_of_one(fork_server, federate, tmp_path):
    matching = Matching(fork_server, tmp_path / "m")
    try:
        for name in matching.names:
            matching.start(name, extra=("data.join=left",))
        matching.finish()
        assert {codes[-1] for codes in matching.codes.values()} == {0}, matching.logs()
    finally:
        matching.close()
    federation = federate(  # half of the rows test: of a fifth, which a match draws, all may have one label
        data=matching.data | {"join": "left", "test_share": 0.5, "train_samples": None, "test_samples": None},
        models={"feature": {"kind": "mlp", "width": 0.1, "embedding_size": 8}},
        training={"labels": "server", "party_dropout": 0.2},
    )
    federation.own_tables("bank")
    federation.run()
    federation.check_ended()
    outcome = federation.outcome()
    assert outcome == train_in_process(federation.config, tmp_path / "whole")
    held = {name: read_match(tmp_path / "m" / f"{name}.match", name).rows for name in OWNERS}
    assert [min(rows) for rows in held.values()] == [0, -1, -1]  # the others have no row for some of the bank's
    assert outcome["summary"]["parties"]["shop"]["bytes_by_kind"]["downlink"]["presence"] > 0


def test_a_result_without_a_file_is_refused_before_any_process_starts(tmp_path):
    tables = {"bank": {"label": "left", "match": "bank.match"}, "shop": {}}
    config = parse_config({"name": "m", "data": {"dataset": {"kind": "tables"}, "tables": tables}})
    refuses("data.tables.shop.match", lambda: match_together(config, tmp_path / "run", Console()))
    images = parse_config({"name": "images"})
    refuses("data.tables", lambda: match_together(images, tmp_path / "run", Console()))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("shop", "told"),
    [
        ("shop.csv", ("data.tables.shop.match", "shop.csv")),
        ("bank.match", ("data.tables.shop.match", "'bank'", "'shop'")),
        ("new.match", ("data.tables",)),
        ("shop.csv/new.match", ("data.tables.shop.match", "shop.csv/new.match")),
        ("folder", ("data.tables.shop.match", "folder")),
    ],
)
def test_a_result_replaces_no_file_but_an_earlier_one_and_is_its_owners_own(tmp_path, shop, told):
    (tmp_path / "folder").mkdir()
    (tmp_path / "shop.csv").write_text("id\n1\n")
    write_match(tmp_path / "bank.match", Match("bank", "0" * 64, "", "inner", np.arange(2), None))
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    bank = "new.match" if shop == "new.match" else "bank.match"
    tables = {"bank": {"label": "left", "match": str(tmp_path / bank)}, "shop": {"match": str(tmp_path / shop)}}
    config = parse_config({"name": "m", "data": {"dataset": {"kind": "tables"}, "tables": tables}})
    refuses(told[0], lambda: match_together(config, tmp_path / "run", Console()), *told[1:])
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.release
def test_one_command_matches_all_owners_on_this_machine(fork_server, tmp_path):
    matching = Matching(fork_server, tmp_path / "m")
    try:
        assert match_together(matching.config, tmp_path / "m/run", Console()) == 0
        assert matching.found() == matching.expected()
    finally:
        matching.close()


@pytest.mark.release
def test_an_owner_of_labels_alone_matches_as_a_process_and_leads(tmp_path):
    """Rows of all owners lie in other orders; the one of labels alone runs its own process, as the others do."""
    paths = write_tables(tmp_path, range(ROWS), labelled=True)
    sections = with_clerk(sections_of(paths), write_labels(tmp_path, paths["bank"]), place=2)
    for owner, table in sections["data"]["tables"].items():
        table["match"] = str(tmp_path / f"{owner}.match")
    data = {key: sections["data"][key] for key in ("dataset", "tables")}
    config = decide_parties(parse_config({"name": "m", "threads": 1, "data": data, "network": TIMING}))
    assert match_together(config, tmp_path / "run", Console(quiet=True)) == 0
    known = {owner: read_match(tmp_path / f"{owner}.match", owner) for owner in config.owners}
    assert [*known] == ["bank", "shop", "clerk"]
    lines = {owner: (tmp_path / f"{owner}.csv").read_text().splitlines()[1:] for owner in known}
    keys = {owner: [lines[owner][row].split(",")[0] for row in match.rows] for owner, match in known.items()}
    assert sorted(keys["clerk"]) == sorted(map(str, range(ROWS)))
    assert keys["bank"] == keys["shop"] == keys["clerk"]
    assert known["clerk"].others.keys() == {"bank", "shop"}, "it knows who has a row"
    split = open_source(config).split()
    assert [part.party for part in split.parties] == ["bank", "shop"]


def test_a_match_does_without_pytorch():
    code = "import vfl.parties.matching.processes, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
