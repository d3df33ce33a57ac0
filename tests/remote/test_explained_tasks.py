"""Reasons of scores by key for every kind of task: those that one process with all tables gives, owners missing too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shorthand import release
from two_tables import sections_of, write_tables

from vfl.parties.network.tls.certificates import SERVER

from .service import NEW, Service, check_reasons

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


@pytest.mark.parametrize(
    ("write", "sections", "of"),
    [
        release(write_amounts, sections_of_amounts, ()),
        release(write_classes, sections_of, ("c0", "c3")),
        release(write_tables, sections_of_members, ("0",)),
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
            asked: dict[str, Any] = {} if named is None else {"reasons_of": named}
            scores = service.explained(KEYS, **asked)
            assert {*scores[0]["reasons"]["disclosed"].values()} == {"amounts"}
            check_reasons(scores, *service.predicted_reasons("zeros", named))
        service.federation.signal("shop", 9)
        service.federation.wait("shop")
        service.until(lambda: service.explained(KEYS)[0]["parties"]["shop"] == "away")
        for named in (None, *of):
            asked: dict[str, Any] = {} if named is None else {"reasons_of": named}
            scores = service.explained(KEYS, **asked)
            assert scores[0]["reasons"]["disclosed"] == {"bank": "amounts", "shop": "away"}
            assert all(abs(score["reasons"]["owners"]["shop"]) < TOLERANCE for score in scores)
            check_reasons(scores, *service.predicted_reasons("zeros", named, ("shop",)))
    finally:
        federation.close()
