"""The processes of one run under torchrun, and the collective operations between them.

Every worker holds the whole experiment and computes the same, except that each trains other clients. Only the first one
(rank 0) writes.
"""

import os
import signal
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vfl.base.errors import PeerLost
from vfl.config import ConfigError, Experiment
from vfl.console import under_torchrun

PATIENCE = timedelta(days=365)
"""Timeout of the first worker's messages, which may be far apart; its death is noticed at once."""


class SingleProcess:
    """The only process of a run, as a group of one."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self._on_stop: Callable[[str], None] = lambda name: None

    def from_first(self, text: str) -> str:
        """Return the text that the first worker passes."""
        return text

    def say(self, *parts: bytes | memoryview) -> None:
        """Send bytes to the other workers."""

    def on_stop(self, stop: Callable[[str], None]) -> None:
        """Call ``stop``, with a signal's name, when all workers are to end after the present round."""
        self._on_stop = stop

    def ask_to_stop(self, signal_name: str) -> None:
        """Ask all workers to end after the present round."""
        self._on_stop(signal_name)

    def must_agree_in(self, digest: str) -> None:
        """Set the digest that all workers must have; a difference is found at the next exchange."""

    def wait_for_all(self) -> None:
        """Wait until all workers have called this."""

    def leave(self) -> None:
        """Remove this process from the group."""


class Workers(SingleProcess):
    """A process group that torchrun has set up in the environment, on gloo ("cpu") or nccl ("cuda").

    A worker that others wait for longer than ``timeout_s`` counts as lost.
    """

    def __init__(self, device: str, timeout_s: float) -> None:
        super().__init__()
        self.device = device
        backend = "nccl" if device == "cuda" else "gloo"
        self._together(lambda: dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s)))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # A group of its own: the others' timeout must not end a wait for the first worker's next words.
        spoken = dist.new_group(backend="gloo", timeout=PATIENCE)
        assert isinstance(spoken, dist.ProcessGroup), "all workers are members"
        self._spoken = spoken
        self._asked = 0
        self._digest = ""

    def from_first(self, text: str) -> str:
        """Return the text that the first worker passes. Raises PeerLost."""
        if self.rank > 0:
            return self.hear().decode()
        self.say(text.encode())
        return text

    def say(self, *parts: bytes | memoryview) -> None:
        """Send bytes to the other workers, which ``hear`` them. Raises PeerLost."""
        data = b"".join(parts)
        # The length first, as a receiver must have the room. One byte more, because no buffer may be empty.
        for tensor in (torch.tensor([len(data)]), torch.frombuffer(bytearray(data + b"\0"), dtype=torch.uint8)):
            self._broadcast(tensor)

    def hear(self) -> bytes:
        """Return the bytes that the first worker sends next, waiting as long as necessary. Raises PeerLost."""
        length = int(self._broadcast(torch.zeros(1, dtype=torch.int64)))
        return self._broadcast(torch.zeros(length + 1, dtype=torch.uint8)).numpy().tobytes()[:-1]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of all workers' values, the same bits at each. Raises PeerLost."""
        total = values.clone()
        self._together(lambda: dist.all_reduce(total))
        return total

    def ask_to_stop(self, signal_name: str) -> None:
        """Ask all workers to end after the round; the next ``add_up`` tells them."""
        self._asked = signal.Signals[signal_name].value
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # torchrun and a cluster's manager may both pass it on

    def must_agree_in(self, digest: str) -> None:
        """Set the digest that all workers must have; a difference is found by the next ``add_up``."""
        self._digest = digest

    def add_up(self, values: Tensor, state: Sequence[int]) -> Tensor:
        """Return the sum of all workers' ``values`` (float32 [M]); at every place all but one must be zero.

        The bits are added as integers, so that the sum has that one's bits, including -0.0. ``state`` is further state
        that the workers must agree in. Raises PeerLost, and ValueError if they do not agree.
        """
        # Two places for each worker, all others' zero: the sum tells every worker what each of them has noted.
        notes = values.new_zeros(2 * self.size).view(torch.int32)
        notes[2 * self.rank] = self._asked
        notes[2 * self.rank + 1] = zlib.crc32(f"{self._digest}{state}".encode()) >> 1  # 31 bits: never negative
        bits = torch.cat([values.view(torch.int32), notes])
        self._together(lambda: dist.all_reduce(bits))
        told = [int(note) for note in bits[len(values) :].cpu()]
        asked, states = max(told[0::2]), set(told[1::2])
        if len(states) > 1:
            raise ValueError("torchrun: the workers disagree; give all the same files, run folder and software")
        if asked:  # all learn of it in the same sum, and so stop after the same round
            self._on_stop(signal.Signals(asked).name)
        return bits[: len(values)].view(values.dtype)

    def wait_for_all(self) -> None:
        """Wait until all workers have called this. Raises PeerLost."""
        self._together(dist.barrier)

    def leave(self) -> None:
        """Remove this process from the group."""
        dist.destroy_process_group()

    def _broadcast(self, tensor: Tensor) -> Tensor:
        self._together(lambda: dist.broadcast(tensor, src=0, group=self._spoken))
        return tensor

    def _together(self, exchange: Callable[[], object]) -> None:
        try:
            exchange()
        except RuntimeError as error:
            raise PeerLost(
                "torchrun: another worker is gone or hangs; its own message says why; go on with --resume"
            ) from error


def join_workers(config: Experiment, check: Callable[[Any, int], float]) -> SingleProcess:
    """Join the other workers if torchrun started this process; otherwise return a group of one.

    ``check`` returns the seconds that a worker waits for the others. It raises ConfigError, before any waiting, for an
    experiment that this number of workers cannot share.
    """
    if not under_torchrun():
        return SingleProcess()
    wait_s = check(config, int(os.environ["WORLD_SIZE"]))
    _take_share_of_machine(config)
    return Workers(torch.device(config.device).type, wait_s)


def _take_share_of_machine(config: Experiment) -> None:
    """Choose this worker's GPU, and use one thread unless the user has set a number."""
    if config.device.startswith("cuda"):
        if config.device != "cuda":
            raise ConfigError(f"device: {config.device} is one GPU for all workers; use device=cuda")
        place, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if place >= there:
            raise ConfigError(f"device: this machine has {there} GPUs, too few for its workers; start as many")
        torch.cuda.set_device(place)
    if "OMP_NUM_THREADS" not in os.environ:
        # torchrun sets this to 1 for two workers but not for one, which would then compute other bits.
        torch.set_num_threads(1)
