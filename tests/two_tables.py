"""Tables of two owners, and an experiment on them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from vfl.config import ExperimentConfig, parse_config

ROWS = 80


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


def sections_of(tables: dict[str, Path]) -> dict[str, Any]:
    """Settings of an experiment on these tables, the bank's with the label."""
    owners: dict[str, dict[str, Any]] = {owner: {"file": str(path), "key": "k"} for owner, path in tables.items()}
    owners["bank"] |= {"label": "late", "features": {"age": "number", "job": "category"}}
    return {
        "data": {"dataset": {"kind": "tables"}, "tables": owners, "train_samples": None, "test_samples": None},
        "models": {"feature": {"kind": "mlp", "width": 0.1, "embedding_size": 8}},
        "training": {"labels": "server", "optimizer": {"kind": "adam", "learning_rate": 0.01, "momentum": 0.0}},
    }


def weighted_tables(folder: Path, weights: Iterable[float]) -> dict[str, Any]:
    """Settings of an experiment on tables in which each of the bank's rows has its weight."""
    tables = write_tables(folder, range(ROWS), labelled=True)
    heading, *lines = tables["bank"].read_text().splitlines()
    rows = [f"{line},{weight}" for line, weight in zip(lines, weights, strict=True)]
    tables["bank"].write_text("\n".join([f"{heading},w", *rows]))
    sections = {"name": "x", "threads": 1, **sections_of(tables)}
    sections["data"]["tables"]["bank"]["weight"] = "w"
    sections["training"]["batch_size"] = 16
    return sections


def write_branches(folder: Path, rows: range, labelled: bool) -> dict[str, Path]:
    """Write both owners' tables where the shop has a row for each of the bank's branches, known to the bank alone."""
    paths = write_tables(folder, rows, labelled)
    heading, *lines = paths["bank"].read_text().splitlines()
    bank = [f"{line},{place % 7}" for place, line in enumerate(lines)]
    paths["bank"].write_text("\n".join([f"{heading},branch", *bank]))
    shop = [f"{each},{each / 3:.3f},{each % 2}" for each in range(6)]
    paths["shop"].write_text("\n".join(["branch,spent,visits", *shop]))
    return paths


def sections_of_branches(tables: dict[str, Path]) -> dict[str, Any]:
    """Settings of an experiment on these tables; the shop lacks one of the branches."""
    sections = sections_of(tables)
    sections["data"]["tables"]["bank"]["keys"] = {"shop": "branch"}
    sections["data"]["tables"]["shop"]["key"] = "branch"
    sections["data"]["join"] = "left"
    return sections


def write_labels(folder: Path, bank: Path, *further: str) -> Path:
    """Move the bank's labels into a table of their own, with ``further`` columns."""
    heading, *lines = [line.rsplit(",", 1) for line in bank.read_text().splitlines()]
    bank.write_text("\n".join(line[0] for line in [heading, *lines]))
    rows = [",".join([line.split(",")[0], late, *further]) for line, late in lines]
    path = folder / "clerk.csv"
    path.write_text("\n".join([",".join(["k", "late", *further]), *reversed(rows)]))
    return path


def with_clerk(sections: dict[str, Any], clerk: Path, place: int = 0, **own: object) -> dict[str, Any]:
    """Give the labels to a clerk, who owns nothing else and is named first or later."""
    tables = sections["data"]["tables"]
    tables["bank"].pop("label")
    names = list(tables)
    names.insert(place, "clerk")
    tables["clerk"] = {"file": str(clerk), "key": "k", "label": "late"} | own
    return sections | {"data": sections["data"] | {"tables": {name: tables[name] for name in names}}}


def bank_config(file: Path, label: str = "late", data: Any = None, models: Any = None, **own: Any) -> ExperimentConfig:
    """An experiment of one short round on the bank's table alone, with further settings of ``data`` and ``models``."""
    tables = {"bank": {"file": str(file), "key": "k", "label": label, **own}}
    values: dict[str, Any] = {"name": "x", "data": {"dataset": {"kind": "tables"}, "tables": tables, **(data or {})}}
    values["models"] = {"feature": {"kind": "mlp", "width": 0.1, "embedding_size": 4}, **(models or {})}
    return parse_config(values | {"training": {"rounds": 1, "batch_size": 16, "labels": "server"}})


def lay_tables(folder: Path, rows: range, own: dict[str, Any]) -> dict[str, Any]:
    """Write rows of the two tables, with amounts or classes; return an experiment on them, ``own`` laid over it."""
    folder.mkdir(exist_ok=True)
    paths = write_tables(folder, rows, labelled=True)
    if own.get("task") == "regression":
        heading, *lines = paths["bank"].read_text().splitlines()
        amounts = [f"{line.rpartition(',')[0]},{100 + rows.start + 3 * place}" for place, line in enumerate(lines)]
        paths["bank"].write_text("\n".join([heading, *amounts]))
    sections = {"name": "small", "seed": 3, "threads": 1, **sections_of(paths)}
    sections["models"]["head"] = {"hidden": [16]}
    sections["training"] |= {"rounds": 2, "batch_size": 16}
    for name, section in own.items():
        sections[name] = sections.get(name, {}) | section if isinstance(section, dict) else section
    return sections
