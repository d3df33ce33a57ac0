import threading
from itertools import product

import pytest
import torch
from torch import nn

from vfl.base.random import generator, seeded, stream_seed
from vfl.compression.dependency import find_structure


def test_stream_seed_is_pinned():
    # Changing the encoding would change every experiment made so far.
    assert stream_seed(0, "train_subset") == 3565482497082885268
    assert stream_seed(7, "batches", round_index=3, owner="left") == 1958349949889056027


def test_every_part_of_the_key_counts_and_none_runs_into_its_neighbour():
    keys = list(product((0, 1, 11, -1), ("a", "a1", 'a", 1', ""), (0, 1, 11), ("", "a", "1", "ä")))
    seeds = {stream_seed(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_generators_of_one_stream_draw_the_same_and_of_two_streams_do_not():
    def draw(owner: str) -> torch.Tensor:
        return torch.rand(8, generator=generator(1, "noise", 2, owner))

    assert torch.equal(draw("left"), draw("left"))
    assert not torch.equal(draw("left"), draw("right"))


def test_seeded_initialises_alike_and_leaves_the_global_stream_where_it_was():
    def weights(owner: str) -> torch.Tensor:
        with seeded(3, "model", owner=owner):
            return nn.Linear(4, 4).weight.detach()

    before = torch.get_rng_state()
    first = weights("left")
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    assert torch.equal(weights("left"), first)
    assert not torch.equal(weights("right"), first)


def test_seeded_restores_the_global_stream_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="dropout"), seeded(3, "model"):
        nn.Dropout(p=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeded_draws_what_the_generator_of_the_stream_draws():
    with seeded(3, "model"):
        drawn = torch.rand(6)
    assert torch.equal(drawn, torch.rand(6, generator=generator(3, "model")))


def test_the_trace_of_a_pruning_leaves_the_draws_of_other_threads_alone():
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
