"""Simulated devices: speed, availability, dropout, and the work and seconds of each in a round.

A device takes ``speed`` SGD steps per simulated second: from that and from the requested work (``horizontal.work``)
follow its steps and the length of a round. The clock is virtual, so that synchronous, time-driven and asynchronous runs
can be compared in simulated seconds.

Shapes: N clients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vfl.base.costs import exact
from vfl.base.random import generator
from vfl.config import ConfigError
from vfl.horizontal.config import HorizontalConfig, SpeedConfig
from vfl.horizontal.local import client_name, steps_per_epoch

MOST_STEPS = 10**12
ROUNDS_TRIED = 10
"""Within this many rounds some client must do enough steps; otherwise the run is refused."""
CASE_3 = ((2.0, 0.4), (3.0, 0.6), (4.0, 0.8), (5.0, 1.0))
"""Mean and standard deviation of the steps per interval of each quarter of the devices (T-SFL, Case 3)."""


@dataclass(frozen=True)
class Work:
    """One client's work in one round."""

    client: int
    samples: int
    """n_i"""
    steps: int
    """tau_i"""
    epochs: float
    """Passes over its samples that the steps amount to: E_i."""
    asked_epochs: float
    """E, the passes of a complete client."""
    seconds: float
    """Simulated seconds of its computation and its transfers."""

    @property
    def complete(self) -> bool:
        """Return whether the client does all the work that was requested."""
        return self.epochs >= self.asked_epochs


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """Possible work of every client in one round."""

    available_N: Tensor
    """bool"""
    drops_out_N: Tensor
    """bool: the client trains, but its result never arrives."""
    steps_N: Tensor
    """int64"""
    epochs_N: Tensor
    """float64"""
    asked_epochs_N: Tensor
    """float64"""
    seconds_N: Tensor
    """float64"""
    samples_N: Sequence[int]

    def candidates(self, min_steps: int) -> Tensor:
        """Return the available clients that would do at least ``min_steps`` steps, ascending int64."""
        return (self.available_N & (self.steps_N >= min_steps)).nonzero().flatten()

    def work(self, client: int) -> Work:
        """Return one client's work."""
        return Work(
            client,
            self.samples_N[client],
            int(self.steps_N[client]),
            float(self.epochs_N[client]),
            float(self.asked_epochs_N[client]),
            float(self.seconds_N[client]),
        )


@dataclass(eq=False)
class Devices:
    """All clients' devices.

    Raises ConfigError for a client without samples, and if no client does enough steps to be chosen.
    """

    config: HorizontalConfig
    samples_N: Sequence[int]
    """Sample counts n_i."""
    batch_size: int
    """Rows per step."""
    seed: int
    """Seed of the experiment."""
    transfer_bytes: tuple[int, int]
    """Bytes down and up per client and round, for the transfer times."""
    full_batch: bool = field(default=False, kw_only=True)
    """A client's work is one gradient over all its samples, which takes the time of one pass."""
    extra_passes: int = field(default=0, kw_only=True)
    """Passes over all samples in addition to the steps."""

    def __post_init__(self) -> None:
        for client, samples in enumerate(self.samples_N):
            if samples == 0:
                raise ConfigError(
                    f"horizontal.partition: {client_name(client)} has no samples; lower horizontal.clients "
                    "or raise horizontal.partition.min_samples"
                )
        pass_N = torch.tensor([steps_per_epoch(count, self.batch_size) for count in self.samples_N])
        self.steps_per_epoch_N = torch.ones_like(pass_N) if self.full_batch else pass_N
        # A full-batch gradient is one step but takes a pass: the other steps of the pass are overhead.
        self.overhead_N = pass_N - 1 if self.full_batch else pass_N * self.extra_passes
        """Work beside the steps, in steps that take equally long, int64 [N]."""
        self._check_that_somebody_works()

    def plan(self, round_index: int, link_round: int | None = None) -> RoundPlan:
        """Return every client's possible work in a round; every draw is by (seed, purpose, round) and client.

        ``link_round``: round whose links are used, if draws are counted otherwise.
        """
        speeds_N = self.speeds(round_index)
        asked_N = self._asked_steps()
        steps_N = self._steps(round_index, speeds_N, asked_N)
        if self._fixed_time:  # the interval ends at the same time for all, however much each has done in it
            compute_N = torch.full_like(speeds_N, self.config.work.interval_s)
        else:
            compute_N = (steps_N + self.overhead_N).double() / speeds_N
        return RoundPlan(
            self._happens("availability", round_index, self.config.devices.availability),
            # The reverse of staying, so that a dropout of 0 is the probability 1 that needs no draw.
            ~self._happens("dropout", round_index, 1 - self.config.devices.dropout),
            steps_N,
            steps_N.double() / self.steps_per_epoch_N,
            asked_N.double() / self.steps_per_epoch_N,
            compute_N + self._transfer_s(round_index if link_round is None else link_round),
            self.samples_N,
        )

    @property
    def empty_round_s(self) -> float:
        """Simulated seconds of a round in which nobody works: those of the interval, if there is one."""
        return self.config.work.interval_s if self._fixed_time else 0.0

    def speeds(self, round_index: int) -> Tensor:
        """Return the steps per second of all clients in a round, float64 [N]."""
        speed = self.config.devices.speed
        redrawn = speed.redrawn or speed.kind == "case3"
        draw = generator(self.seed, "device_speed", round_index if redrawn else 0)
        return _draw_speeds(speed, len(self.samples_N), draw)

    def _transfer_s(self, round_index: int) -> float:
        """Return the simulated seconds of a client's transfers."""
        link, (down, up) = self.config.devices, self.transfer_bytes
        return link.latency_s + link.downlink_s(round_index, down) + link.uplink_s(round_index, up)

    @property
    def _fixed_time(self) -> bool:
        return self.config.work.kind == "interval" and not self.full_batch

    def _check_that_somebody_works(self) -> None:
        least_steps = self.config.selection.min_steps
        # Looking ahead moves nothing: every draw of a plan is keyed by its round. Speeds may be drawn anew each round.
        most = max(int(self.plan(round_index).steps_N.max()) for round_index in range(ROUNDS_TRIED))
        if most < least_steps:
            field = "work.interval_s" if self._fixed_time and most == 0 else "selection.min_steps"
            raise ConfigError(
                f"horizontal.{field}: no client can be chosen, {least_steps} local steps are needed and the fastest "
                f"device does {most}; raise horizontal.devices.speed.mean, give more work or ask for fewer steps"
            )

    def _asked_steps(self) -> Tensor:
        """Return the steps of a complete client, int64 [N]."""
        if self.full_batch:
            return self.steps_per_epoch_N
        if self.config.local_steps is not None:
            return torch.full_like(self.steps_per_epoch_N, self.config.local_steps)
        return self.steps_per_epoch_N * self.config.local_epochs

    def _steps(self, round_index: int, speeds_N: Tensor, asked_N: Tensor) -> Tensor:
        work = self.config.work
        if self.full_batch:
            return asked_N
        if work.kind == "interval":  # as many as fit; a device that fits none is left out of the round
            # In exact fractions: 29 steps of 0.01 s fit 0.29 s, where floats find 28.99...
            fitting = [math.floor(exact(float(speed)) * exact(work.interval_s)) for speed in speeds_N]
            fitting = [min(each, MOST_STEPS) for each in fitting]  # so that an int64 holds them and their sums
            return (torch.tensor(fitting) - self.overhead_N).clamp(min=0)
        if work.kind == "partial":
            draw = generator(self.seed, "partial_work", round_index)
            partial_N = torch.rand(len(asked_N), generator=draw) < work.incomplete_share
            most = work.missing_epochs(self.config.local_epochs)
            missing_N = torch.randint(0, most + 1, (len(asked_N),), generator=draw)
            return asked_N - torch.where(partial_N, missing_N, 0) * self.steps_per_epoch_N
        return asked_N

    def _happens(self, purpose: str, round_index: int, probability: float) -> Tensor:
        if probability == 1:
            return torch.ones(len(self.samples_N), dtype=torch.bool)
        return torch.rand(len(self.samples_N), generator=generator(self.seed, purpose, round_index)) < probability


def _draw_speeds(speed: SpeedConfig, clients: int, draw: torch.Generator) -> Tensor:
    """Return steps per second, float64 [N]; the cases are T-SFL's, in steps per interval of one second."""
    quarter_N = torch.arange(clients) * 4 // clients  # 0 to 3, consecutive clients, as equal as can be
    if speed.kind == "fixed":
        return torch.full((clients,), speed.mean, dtype=torch.float64)
    if speed.kind == "groups":
        return torch.tensor(speed.groups, dtype=torch.float64)[torch.arange(clients) * len(speed.groups) // clients]
    if speed.kind == "case1":
        return torch.where(quarter_N < 2, 1.0, 4.0).double()
    if speed.kind == "case2":
        return (quarter_N + 1).double()
    if speed.kind == "case3":
        mean_N, std_N = torch.tensor(CASE_3, dtype=torch.float64)[quarter_N].unbind(dim=1)
        return _whole_steps(mean_N + std_N * torch.randn(clients, generator=draw, dtype=torch.float64))
    if speed.kind == "gaussian":
        return _whole_steps(speed.mean + speed.std * torch.randn(clients, generator=draw, dtype=torch.float64))
    uniform_N = torch.rand(clients, generator=draw, dtype=torch.float64)
    if speed.kind == "uniform":
        return speed.mean + speed.std * (2 * uniform_N - 1)
    # Exponential by inversion, -mean ln(1 - u), as in FLARE; whole steps by rounding up, and 1 also for u = 0.
    return (-speed.mean * torch.log1p(-uniform_N)).ceil().clamp(min=1)


def _whole_steps(speeds_N: Tensor) -> Tensor:
    return speeds_N.floor().clamp(min=1)
