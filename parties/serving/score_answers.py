"""The content of a request for scores and of its answer, as JSON."""

import json
import math
from collections.abc import Sequence
from typing import Annotated

import torch
from fastapi import HTTPException
from pydantic import BaseModel, Field, StrictInt, StrictStr

from vfl.core.tasks import Task
from vfl.data.tables.columns import key_cell
from vfl.messages.keys import MOST_KEYS, key_bytes
from vfl.parties.serving.request_queue import Key, Scored

Cell = StrictStr | StrictInt
"""A cell of a key."""
Cells = Cell | Annotated[list[Cell], Field(fail_fast=True)]
"""A key as it is sent: one of several columns is a list of its cells."""


class PredictRequest(BaseModel):
    """Keys to score. They are checked up to the first that is wrong, and no further than any service takes."""

    keys: Annotated[list[Cells], Field(min_length=1, max_length=MOST_KEYS, fail_fast=True)]


class KeyScore(BaseModel):
    """Score of one key, and its parties' outcomes."""

    key: str | list[str]
    prediction: str | None = None
    """The predicted class; none for regression."""
    probabilities: dict[str, float] | None = None
    """Probabilities by class."""
    value: float | None = None
    """Predicted value; regression only."""
    parties: dict[str, str]
    """Outcome by owner: row, cached (a row that it had a moment ago), none, away, declined (its owner does not
    agree)."""


class PredictResponse(BaseModel):
    """Scores in the order of the keys."""

    model: str
    """Digest of the version that scored all of them."""
    when_absent: str
    """Replacement of an owner without a row: serving.when_absent."""
    scores: list[KeyScore]
    unknown: list[str | list[str]]
    """Keys that no owner knows; they have no score."""


def keys_of(asked: Sequence[Cells], columns: Sequence[str], most: int) -> list[Key]:
    """Return the keys of a request for at most so many. Raises HTTPException."""
    if len(asked) > most:
        raise HTTPException(413, f"{len(asked)} keys; at most serving.batch = {most} in a request")
    return [key_of(cells, f"keys[{place}]", columns) for place, cells in enumerate(asked)]


def key_of(cells: Cells, where: str, columns: Sequence[str]) -> Key:
    """Return the key of its cells, as tables have it. ``where`` is its place in the request. Raises HTTPException."""
    cells = cells if isinstance(cells, list) else [cells]
    if len(cells) != len(columns):
        raise HTTPException(400, f"{where}: a key has {len(columns)} cells: {', '.join(columns)}")
    key = tuple(key_cell(str(cell)) for cell in cells)
    try:
        key_bytes(key, None)
    except ValueError as error:
        raise HTTPException(400, f"{where}: {error}") from None
    return key


def answer_of(scored: Scored, task: Task, when_absent: str) -> bytes:
    """Return the JSON of a PredictResponse, written without a model object for every row.

    A class is predicted as everywhere: of two the second one from ``evaluation.threshold`` on.
    """
    classes, given = task.names, [each.values for each in scored.scores if each.values is not None]
    of_all = classes and given  # all at once: a call for every row would take longer than its JSON
    predicted = iter(task.predicted(torch.tensor(given, dtype=torch.float64)).tolist() if of_all else ())
    scores: list[dict[str, object]] = []
    for each in scored.scores:
        probabilities = value = prediction = None
        values = None if each.values is None else [value if math.isfinite(value) else None for value in each.values]
        if values is not None and classes:
            probabilities = dict(zip(classes, values, strict=True))
            prediction = classes[int(next(predicted))]
        elif values is not None:
            (value,) = values
        told: dict[str, object] = {
            "key": shown(each.key),
            "prediction": prediction,
            "probabilities": probabilities,
            "value": value,
            "parties": dict(each.parties),
        }
        scores.append(told)
    unknown = [shown(each.key) for each in scored.scores if each.unknown]
    answer = {"model": scored.version, "when_absent": when_absent, "scores": scores, "unknown": unknown}
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def shown(key: Key) -> str | list[str]:
    """Return a key as answers have it."""
    return key[0] if len(key) == 1 else list(key)
