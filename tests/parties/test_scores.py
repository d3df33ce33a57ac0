"""Parts of the service of scores that need no process: the queue, the answer, and drift counted in batches."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vfl.core.tasks import Classification, Regression
from vfl.data.drift import Histograms, Window
from vfl.data.samples import Samples
from vfl.parties.serving import request_queue
from vfl.parties.serving.file_rows import ServedDrift
from vfl.parties.serving.request_queue import QueueFull, RequestQueue, Score, Scored
from vfl.parties.serving.score_answers import PredictResponse, answer_of


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch):
    """A queue whose clock stands still, and the waits of who takes from it, during which ``arriving`` are put in."""
    for name, value in (("GATHER_S", 0.007), ("MOST_ASKED", 4), ("MOST_WAITING", 6)):
        monkeypatch.setattr(request_queue, name, value)
    queue, waited, arriving = RequestQueue(lambda: 100.0), [], []

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        if arriving:
            queue.put(arriving.pop(0))
        else:
            queue.stopping = True

    monkeypatch.setattr(queue, "_wait", wait)
    return queue, waited, arriving


async def a_client_alone(queue: RequestQueue) -> None:
    for key in ("a", "b", "c"):
        queue.put([(key,)])
        batch = await queue.take()
        assert [request.keys for request in batch] == [((key,),)]
        queue.note_answered(batch)


def test_a_client_alone_waits_for_nobody(waits):
    queue, waited, _ = waits
    asyncio.run(a_client_alone(queue))
    assert waited == []


async def after_several_clients(queue: RequestQueue, arriving: list[Any], before: str) -> int:
    queue.put([("a",)])
    if before == "together":
        queue.put([("b",)])
    batch = await queue.take()
    if before == "meanwhile":
        queue.put([("b",)])
    queue.note_answered(batch)
    queue.put([("c",)])
    held = queue.waiting
    arriving += [[("d",)] for _ in range(4 - held)]
    assert sum(len(request.keys) for request in await queue.take()) == 4
    return held


@pytest.mark.parametrize("before", ["together", "meanwhile"])
def test_requests_after_several_clients_are_gathered(waits, before):
    queue, waited, arriving = waits
    held = asyncio.run(after_several_clients(queue, arriving, before))
    assert waited == [pytest.approx(0.007)] * (4 - held)


async def too_many(queue: RequestQueue) -> None:
    queue.put([("a",)] * 6)
    with pytest.raises(QueueFull, match="6 keys wait"):
        queue.put([("b",)])


def test_a_full_queue_refuses(waits):
    queue, _, _ = waits
    asyncio.run(too_many(queue))
    assert queue.waiting == 6


@pytest.mark.parametrize("task", [Classification(2, names=("no", "yes")), Regression(0, 1)], ids=["classes", "values"])
def test_the_answer_is_that_of_the_described_model(task):
    classes = task.names
    values: tuple[Any, ...] = (1 - 1e-9, 1e-9) if classes else (1e300,)
    scores = (
        Score(("k",), values, {"bank": "row", "shop": "cached"}),
        Score(('\u00e9 "', "2"), None, {"bank": "none", "shop": "none"}),
        Score(("k",), tuple(float("nan") for _ in values), {"bank": "row", "shop": "away"}),
    )
    text = answer_of(Scored("digest", scores), task, "refuse")
    found = json.loads(text)
    for score in found["scores"]:  # what is no number is null, which the description leaves out
        assert score["value"] is None or not classes
    whole = answer_of(Scored("digest", scores[:2]), task, "refuse")
    described = json.loads(PredictResponse.model_validate_json(whole).model_dump_json(exclude_unset=True))
    assert json.dumps(described) == json.dumps(json.loads(whole))  # the same fields in the same order
    assert found["unknown"] == [['\u00e9 "', "2"]]
    assert found["scores"][0]["prediction"] == ("no" if classes else None)


@pytest.mark.parametrize(("threshold", "predicted"), [(0.3, ["yes", "yes", "no"]), (0.5, ["yes", "no", "no"])])
def test_an_answer_decides_by_the_threshold_of_the_run(threshold: float, predicted: list[str]):
    scores = tuple(Score((str(each),), (1 - each, each), {"bank": "row"}) for each in (0.5, 0.3, 0.2))
    answer = answer_of(Scored("digest", scores), Classification(2, threshold=threshold, names=("no", "yes")), "refuse")
    assert [each["prediction"] for each in json.loads(answer)["scores"]] == predicted


def test_drift_of_many_requests_is_counted_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draw = np.random.default_rng(0)
    features, codes = torch.from_numpy(draw.normal(size=(50, 2))), torch.zeros(50, 1, dtype=torch.int64)
    samples = Samples(torch.arange(50), features, more=(codes,))
    histograms = Histograms(samples.features.numpy(), samples.more[0].numpy())
    added: list[int] = []
    add = Window.add

    def counted(window: Window, numbers: Any, categories: Any) -> None:
        added.append(len(numbers))
        add(window, numbers, categories)

    monkeypatch.setattr(Window, "add", counted)
    reports = []
    for name, requests in (("single", [[row] for row in range(40)]), ("one", [list(range(40))])):
        drift = ServedDrift(["a", "b", "c"], tmp_path / name, lambda line: None)
        for rows in requests:
            drift.note(histograms, samples, rows)
        drift.report()
        reports.append((tmp_path / name).read_text())
    assert added == [40, 40]
    assert reports[0] == reports[1]
