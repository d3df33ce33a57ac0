"""A party of several processes, here threads: in float64, where rounding hides nothing, it computes what one does."""

from contextlib import nullcontext
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from shorthand import links_of, release, train_rounds
from torch import Tensor

from vfl.core.build import build_feature_model
from vfl.core.party import FeatureParty
from vfl.core.server import HeadServer
from vfl.core.team import Team
from vfl.runs.runtime import Runtime

ROUNDS = 3
SIZE = 2


class Threads:
    """What a team needs of a process group, for the thread of one rank."""

    size = SIZE

    def __init__(self, rank: int, barrier: Barrier, values: list[Any]) -> None:
        self.rank, self.barrier, self.values = rank, barrier, values

    def sum(self, values: Tensor) -> Tensor:
        self.values[self.rank] = values
        self.barrier.wait()
        total = sum(self.values, start=torch.zeros_like(values))
        self.barrier.wait()
        return total


def party_of(server: HeadServer) -> FeatureParty:
    return links_of(server)[1].party  # type: ignore[attr-defined]  # they are local


def train(server: HeadServer) -> None:
    train_rounds(server, ROUNDS)


@pytest.mark.parametrize("staleness", [release(0), 2])
def test_several_processes_compute_what_one_does(build, monkeypatch, staleness: int):
    batch, forward = Runtime.batch, Runtime.forward
    monkeypatch.setattr("vfl.core.build.build_feature_model", lambda *args: build_feature_model(*args).double())
    monkeypatch.setattr("vfl.core.build.check_embedding", lambda model, inputs, size: torch.empty(1, size))
    monkeypatch.setattr(Tensor, "float", lambda tensor: tensor)
    monkeypatch.setattr(Runtime, "batch", lambda *args: batch(*args).double())
    monkeypatch.setattr(Runtime, "forward", lambda *args: forward(*args).to(torch.float32))
    monkeypatch.setattr("vfl.base.random._global_generator", nullcontext())  # of which each process has its own
    # Batches of 11 make unequal parts; learning rate and narrow layers let an error grow tenfold in an exchange.
    sections: dict[str, Any] = {
        "data": {"dataset": {"kind": "digits"}, "train_samples": 33, "test_samples": 9, "partition": {"rows": 1}},
        "training": {"batch_size": 11, "staleness": staleness, "labels": "server", "local_iterations": 2},
        "lightweighting": {"alpha": {1: 0.2, 2: 0.5}},
    }
    alone = build(**sections)
    train(alone)

    barrier, values = Barrier(SIZE), [None] * SIZE
    servers = [build(**sections) for _ in range(SIZE)]
    for rank, server in enumerate(servers):
        party_of(server).passes.team = Team(Threads(rank, barrier, values))  # type: ignore[arg-type]  # as far as it is used
    threads = [Thread(target=train, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    one = party_of(alone).state_dict()
    for server in servers:
        several = party_of(server).state_dict()
        for kept in ("model", "momentum"):
            assert several[kept].keys() == one[kept].keys()
            for name, tensor in one[kept].items():
                torch.testing.assert_close(several[kept][name], tensor, rtol=1e-6, atol=1e-10, msg=name)
