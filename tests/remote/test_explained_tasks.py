"""Reasons of scores by key for every kind of task: those that one process with all tables gives, owners missing too."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predicted import predict_in_process
from two_tables import sections_of, write_tables

from vfl.base.absence import WhenAbsent
from vfl.parties.network.tls.certificates import SERVER
from vfl.predict.reasons import Reasons, ReasonsWanted
from vfl.runs.stored_run import Run

from .service import NEW, Service

AMOUNTS = ("network.consent.reasons=amounts",)
KEYS = [*NEW][:24]
TOLERANCE = 1e-6


def with_label(path: Path, label: Any) -> None:
    """Replace the last column of the bank's table by another label of its rows' numbers."""
    heading, *lines = path.read_text().splitlines()
    rows = [line.split(",") for line in lines]
    labels = [str(label(int(row[0]), float(row[1]))) for row in rows]
    rows = [[*row[:-1], own] for row, own in zip(rows, labels, strict=True)]
    path.write_text("\n".join([heading, *map(",".join, rows)]))


def write_amounts(folder: Path, rows: range, labelled: bool) -> dict[str, Path]:
    tables = write_tables(folder, rows, labelled)
    if labelled:
        with_label(tables["bank"], lambda k, age: round(100 * age + k, 2))
    return tables


def write_classes(folder: Path, rows: range, labelled: bool) -> dict[str, Path]:
    tables = write_tables(folder, rows, labelled)
    if labelled:
        with_label(tables["bank"], lambda k, age: f"c{int(np.digitize(age + k % 5 / 4, [-0.3, 0.5, 1.2]))}")
    return tables


def sections_of_amounts(tables: dict[str, Path]) -> dict[str, Any]:
    return sections_of(tables) | {"task": "regression"}


def sections_of_members(tables: dict[str, Path]) -> dict[str, Any]:
    sections = sections_of(tables)
    sections["models"] |= {"members": 2, "linear_path": True}
    return sections | {"lightweighting": {"alpha": 0, "beta": 0}}


def predicted(service: Service, when_absent: WhenAbsent, of: str | None, absent: tuple[str, ...]) -> Any:
    tables = {owner: path for owner, path in service.tables.items() if owner not in absent}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no placeholder was learned")
        found = predict_in_process(Run(service.whole), None, absent, when_absent, tables, reasons=ReasonsWanted(of))
    assert found.reasons is not None
    return {str(key[0]): place for place, key in enumerate(found.keys[1:])}, found.reasons


def explained(service: Service, **more: Any) -> list[dict[str, Any]]:
    reply = service.post("/v1/predict", {"keys": KEYS, "reasons": True, **more})
    assert reply.status == 200, reply
    return reply.body["scores"]


def check_equal(scores: list[dict[str, Any]], places: dict[str, int], expected: Reasons) -> None:
    for score in scores:
        row, told = places[score["key"]], score["reasons"]
        assert told["of"] == (expected.classes[int(expected.of_N[row])] if expected.classes else None)
        near = TOLERANCE * max(1.0, float(expected.score_N.abs().max()))
        assert told["score"] == pytest.approx(float(expected.score_N[row]), abs=near)
        assert told["without_owners"] == pytest.approx(float(expected.without_N[row]), abs=near)
        moved = dict(zip(expected.owners, expected.moved_NK[row].tolist(), strict=True))
        assert told["owners"] == pytest.approx(moved, abs=near)
        assert sum(told["owners"].values()) == pytest.approx(told["score"] - told["without_owners"], abs=10 * near)
        for owner, own in expected.columns.items():
            if told["disclosed"][owner] != "amounts":
                assert owner not in told["columns"]
                continue
            amounts = dict(zip(own.names, own.moved_NC[row].tolist(), strict=True))
            assert told["columns"][owner] == pytest.approx(amounts, abs=10 * near)


@pytest.mark.parametrize(
    ("write", "sections", "of"),
    [
        (write_amounts, sections_of_amounts, ()),
        (write_classes, sections_of, ("c0", "c3")),
        (write_tables, sections_of_members, ("0",)),
        (write_classes, sections_of_members, ("c2",)),
    ],
    ids=["regression", "many classes", "members", "many classes, members"],
)
def test_reasons_are_those_of_one_process_also_without_an_owner(write: Any, sections: Any, of: tuple[str, ...], train):
    federation, tables, whole = train(write, sections)
    service = Service(federation, tables, whole)
    try:
        service.start(SERVER, server=("serving.when_absent=zeros",))
        service.start("bank", "shop", party=AMOUNTS)
        service.until_ready("bank", "shop")
        for named in (None, *of):
            asked = {} if named is None else {"reasons_of": named}
            scores = explained(service, **asked)
            assert {*scores[0]["reasons"]["disclosed"].values()} == {"amounts"}
            check_equal(scores, *predicted(service, "zeros", named, ()))
        service.federation.signal("shop", 9)
        service.federation.wait("shop")
        service.until(lambda: explained(service)[0]["parties"]["shop"] == "away")
        for named in (None, *of):
            asked = {} if named is None else {"reasons_of": named}
            scores = explained(service, **asked)
            assert scores[0]["reasons"]["disclosed"] == {"bank": "amounts", "shop": "away"}
            assert all(abs(score["reasons"]["owners"]["shop"]) < TOLERANCE for score in scores)
            check_equal(scores, *predicted(service, "zeros", named, ("shop",)))
    finally:
        federation.close()
