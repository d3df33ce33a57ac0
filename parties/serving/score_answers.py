"""The content of a request for scores and of its answer, as JSON."""

import json
import math
from collections.abc import Sequence
from typing import Annotated

import torch
from fastapi import HTTPException
from pydantic import BaseModel, BeforeValidator, Field, StrictInt, StrictStr

from vfl.base.errors import Argument, ConfigError, Words, plain
from vfl.core.tasks import Task
from vfl.data.tables.columns import key_cell
from vfl.messages.keys import key_bytes
from vfl.parties.serving.request_queue import MOST_ASKED, Key, ReasonsAsked, Scored
from vfl.predict.reasons import class_of

REQUEST: Words = {Argument.REASONS_OF: "reasons_of"}
"""What a request calls arguments."""
MOST_EXPLAINED = 64
"""Most keys of a request with reasons: an answer has a number for every column of each."""
MOST_NAMED = 1000
"""Most columns to name."""

Cell = StrictStr | StrictInt
"""A cell of a key."""
Cells = Cell | Annotated[list[Cell], Field(fail_fast=True)]
"""A key as it is sent: one of several columns is a list of its cells."""


def _wanted(reasons: object) -> object:
    if isinstance(reasons, bool) or (isinstance(reasons, int) and 1 <= reasons <= MOST_NAMED):
        return reasons
    raise ValueError(f"send true, or the number of columns to name, 1 to {MOST_NAMED}")


class PredictRequest(BaseModel):
    """Keys to score. They are checked up to the first that is wrong."""

    keys: Annotated[list[Cells], Field(min_length=1, max_length=MOST_ASKED, fail_fast=True)]
    reasons: Annotated[bool | int, BeforeValidator(_wanted)] = False
    """true: what each owner moved, and what each of its columns moved as far as it agrees; a number: in place of the
    columns' amounts the names of so many that lowered the score most."""
    reasons_of: Annotated[StrictStr, Field(max_length=1000)] | None = None
    """Class whose log odds are explained; null: the positive one of two, of more the predicted one."""


class KeyReasons(BaseModel):
    """Reasons of one score."""

    of: str | None
    """Class whose log odds are explained; null for regression."""
    score: float | None
    """Log odds of that class, or the value. Without any owner it is ``without_owners``; ``owners`` sum to the rest."""
    without_owners: float | None
    owners: dict[str, float | None]
    """What each owner moved."""
    disclosed: dict[str, str]
    """By owner: amounts, ranks, itself (it keeps its columns' reasons), nothing (it does not agree), declined (its
    limit is reached), away (or slow), none (it has no row)."""
    columns: dict[str, dict[str, float | None]] | None = None
    """By owner that discloses amounts, what each of its columns moved."""
    ranks: dict[str, dict[str, float | None]] | None = None
    """By owner that discloses places: -1 lowered the score most, 1 raised it most."""
    reference: dict[str, float | None] | None = None
    """By owner, the score with its reference row; its columns sum to the score minus this one."""
    error: dict[str, float | None] | None = None
    """By owner, the completeness error before it was spread over the columns."""
    lowered: list[str] | None = None
    """Names of the columns that lowered the score most, worst first, if a number of them was asked for."""


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
    reasons: KeyReasons | None = None
    """Reasons of the score, if they were asked for and there is one."""


class PredictResponse(BaseModel):
    """Scores in the order of the keys."""

    model: str
    """Digest of the version that scored all of them."""
    when_absent: str
    """Replacement of an owner without a row: serving.when_absent."""
    scores: list[KeyScore]
    unknown: list[str | list[str]]
    """Keys that no owner knows; they have no score."""


def reasons_of(asked: PredictRequest, task: Task) -> ReasonsAsked | None:
    """Return the reasons that a request asks for, if any. Raises HTTPException."""
    if asked.reasons is False:
        if asked.reasons_of is not None:
            raise HTTPException(400, "reasons_of: goes with reasons; send reasons: true as well")
        return None
    if len(asked.keys) > MOST_EXPLAINED:
        raise HTTPException(413, f"{len(asked.keys)} keys; at most {MOST_EXPLAINED} with reasons in a request")
    try:
        of = None if asked.reasons_of is None else class_of(task, asked.reasons_of)
    except ConfigError as error:
        raise HTTPException(400, plain(error.in_words(REQUEST), 300)) from None
    return ReasonsAsked(of, 0 if asked.reasons is True else int(asked.reasons))


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
    for each, reasons in zip(scored.scores, scored.reasons or (None,) * len(scored.scores), strict=True):
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
        scores.append(told if scored.reasons is None else told | {"reasons": reasons})
    unknown = [shown(each.key) for each in scored.scores if each.unknown]
    answer = {"model": scored.version, "when_absent": when_absent, "scores": scores, "unknown": unknown}
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def shown(key: Key) -> str | list[str]:
    """Return a key as answers have it."""
    return key[0] if len(key) == 1 else list(key)
