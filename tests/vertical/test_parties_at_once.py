"""Parties of one process that compute at the same time: the same bits, so many and no more, errors that arrive."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import refuses
from torch import nn

from vfl.base.modules import weights_digest
from vfl.base.random import generator, seeded
from vfl.compression.dependency import find_structure
from vfl.config import ExperimentConfig
from vfl.config.components import FEATURE_MODELS
from vfl.core.party import FeatureParty
from vfl.core.server import HeadServer
from vfl.messages.control import SampleRange
from vfl.messages.messages import Kind, Message
from vfl.models.features import ModelSpec


@pytest.fixture(autouse=True)
def drawing(monkeypatch: pytest.MonkeyPatch):
    def dropping(spec: ModelSpec) -> nn.Module:
        layers = nn.LazyLinear(64), nn.Dropout(0.5), nn.Linear(64, spec.embedding_size)
        return nn.Sequential(nn.Flatten(), *layers)

    monkeypatch.setitem(FEATURE_MODELS.added, "dropping", dropping)


def trained(server: HeadServer) -> tuple[object, ...]:
    """Train two rounds; return all there is to compare."""
    rounds = [server.train_round(each) | server.evaluate() for each in range(2)]
    timeless = [{tag: value for tag, value in metrics.items() if "time" not in tag} for metrics in rounds]
    described = server.describe()
    server.close()
    return timeless, described, weights_digest(server.trainer.head.state_dict())


@pytest.mark.parametrize(
    "training", [{"labels": "shared", "local_iterations": 2}, {"labels": "server", "staleness": 1}], ids=str
)
def test_parties_at_once_train_the_bits_of_one_after_another(build: Callable[..., HeadServer], training: Any):
    sections = {
        "training": training,
        "models": {"parties": {name: {"kind": "dropping"} for name in ("party_2", "party_3", "party_4")}},
        "lightweighting": {"alpha": {"party_1": {1: 0.4}}, "beta": 0.5},
    }
    expected = trained(build(**sections))
    assert trained(build(**sections, threads=4, parties_at_once=4)) == expected


def test_the_trace_of_a_pruning_leaves_the_draws_of_other_parties_alone():
    tracing, drawn, traced = threading.Event(), threading.Event(), threading.Event()

    class Slow(nn.Sequential):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            tracing.set()
            drawn.wait(timeout=0.5)  # until the other party has drawn, if nothing keeps it from that
            return super().forward(input)

    def prune() -> None:
        find_structure(Slow(nn.Linear(3, 4), nn.Linear(4, 2)), [torch.zeros(1, 3)])
        traced.set()

    pruning = threading.Thread(target=prune)
    pruning.start()
    assert tracing.wait(timeout=60)
    with seeded(1, "forward"):
        first = torch.rand(4)
        drawn.set()
        assert traced.wait(timeout=60)
        second = torch.rand(4)
    pruning.join()
    stream = generator(1, "forward")
    assert torch.equal(first, torch.rand(4, generator=stream))
    assert torch.equal(second, torch.rand(4, generator=stream))


def test_so_many_compute_at_once_and_no_more(build: Callable[..., HeadServer], monkeypatch: pytest.MonkeyPatch):
    meeting, computing, most = threading.Barrier(2), threading.Semaphore(2), []
    handle = FeatureParty.handle

    def meet(party: FeatureParty, request: Message) -> Message:
        most.append(computing.acquire(blocking=False))
        meeting.wait(timeout=60)  # broken unless another one computes
        assert torch.get_num_threads() == 3
        reply = handle(party, request)
        meeting.wait(timeout=60)
        computing.release()
        return reply

    server = build(threads=6, parties_at_once=2)
    monkeypatch.setattr(FeatureParty, "handle", meet)
    server.train_round(0)
    assert len(most) == 4 * (2 + server.exchanges.steps)
    assert all(most)
    threads = threading.active_count()
    server.close()
    assert threading.active_count() == threads - 4


def test_an_error_of_a_party_arrives(build: Callable[..., HeadServer]):
    server = build(threads=2, parties_at_once=2)
    asked = server.roster.parties[0].ask(Message(Kind.EVALUATE, parts=(SampleRange(start=0, stop=1000).part(),)))
    with pytest.raises(ValueError, match="party_1 has no test samples 0 to 1000"):
        asked.wait()
    server.close()


def test_the_setting_may_change_on_resume_where_the_bits_stay(configure: Callable[..., ExperimentConfig]):
    assert (
        configure(threads=4, parties_at_once=2).settings_fixed_on_resume()
        == configure(threads=2).settings_fixed_on_resume()
    )
    assert (
        configure(threads=5, parties_at_once=2).settings_fixed_on_resume()
        == configure(threads=2).settings_fixed_on_resume()
    )
    assert (
        configure(threads=4, parties_at_once=2).settings_fixed_on_resume()
        != configure(threads=4).settings_fixed_on_resume()
    )


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_threads_too_few_for_all_are_refused(configure: Callable[..., ExperimentConfig], threads: int | None):
    refuses("parties_at_once", lambda: configure(threads=threads, parties_at_once=3), "threads=3")
