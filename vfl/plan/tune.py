"""Find the precision, memory layout and rounding of widths that train an experiment fastest on this machine."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple, TypeVar

import torch
from rich.table import Table
from torch import Tensor, nn

from vfl.base.macs import count_macs
from vfl.base.modules import copy_model
from vfl.compression.pruning import StructuredPruner
from vfl.config import ExperimentConfig, OptimizerConfig
from vfl.config.schedules import largest, schedule_of, value_at
from vfl.console import numbers_table
from vfl.core.build import feature_config
from vfl.core.local import build_in_process
from vfl.core.party import FeatureParty
from vfl.runs.optim import build_optimizer
from vfl.runs.runtime import Runtime, start_runtime

K = TypeVar("K")

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
ROUND_TO = 16
"""Multiple of widths tried beside the configured ones."""
SECONDS = 5.0
"""Seconds of measuring, twice; everything is measured at least once."""
NOISE = 1.03
"""Smallest ratio of times for which another form is recommended."""


class Form(NamedTuple):
    """A way to compute the same experiment."""

    precision: str
    channels_last: bool
    round_to: int | None

    @property
    def settings(self) -> str:
        """Settings of the form, as a user writes them."""
        layout, rounding = str(self.channels_last).lower(), self.round_to or "null"
        return f"precision={self.precision} channels_last={layout} lightweighting.pruning.round_to={rounding}"


class Seconds(NamedTuple):
    """Seconds of a step of a party's model."""

    unpruned: float
    pruned: float
    """Seconds at the largest alpha of its schedule."""

    def mean(self, share: float) -> float:
        """Return the mean over a run in which the model is pruned for ``share`` of the rounds."""
        return (1 - share) * self.unpruned + share * self.pruned


class PartyStep:
    """A party's part of an exchange without its messages: embed a batch, backpropagate a gradient, SGD."""

    def __init__(self, model: nn.Module, inputs: Sequence[Tensor], gradient_BD: Tensor, runtime: Runtime) -> None:
        self.model = runtime.place(model)
        self.inputs = inputs
        self.rows_B = torch.arange(len(gradient_BD))
        self.gradient_BD = gradient_BD
        self.runtime = runtime
        self.optimizer = build_optimizer(self.model, OptimizerConfig(learning_rate=0.001))
        self.example = tuple(runtime.batch(tensor, self.rows_B[:1]) for tensor in inputs)

    def __call__(self) -> None:
        """Take one step."""
        batch = [self.runtime.batch(tensor, self.rows_B) for tensor in self.inputs]
        embedding_BD = self.runtime.forward(self.model, *batch)
        self.optimizer.zero_grad()
        embedding_BD.backward(self.gradient_BD)  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
        self.optimizer.step()

    def prune(self, alpha: float, round_to: int | None) -> float:
        """Prune as a party does in the first exchange of a round; return the seconds of the event."""
        pruner = StructuredPruner(self.model, self.example, round_to=round_to)
        started_s = time.perf_counter()
        if pruner.prune_to(alpha, self.optimizer):
            self.runtime.place(self.model)
        count_macs(self.model, *self.example)
        return time.perf_counter() - started_s


def advise(config: ExperimentConfig) -> tuple[Table, str]:
    """Measure the party with most computation; return the seconds of all forms, and advice."""
    runtime, threads = start_runtime(config), torch.get_num_threads()
    parties = build_in_process(config, runtime).parties
    torch.set_num_threads(threads)  # a light step takes one; whether several are faster is asked here
    party = max(parties, key=lambda party: party.unpruned_macs)
    schedule, rounds = schedule_of(config.lightweighting.alpha, party.name), config.training.rounds
    share = sum(value_at(schedule, each) > 0 for each in range(rounds)) / rounds
    seconds_by_form = measure(party, largest(schedule))
    present = Form(config.precision, config.channels_last, config.lightweighting.pruning.round_to)
    best = min(seconds_by_form, key=lambda form: seconds_by_form[form].mean(share))
    gain = seconds_by_form[present].mean(share) / seconds_by_form[best].mean(share)
    line = f", {gain:.2f} times as fast as configured: {best.settings}" if gain >= NOISE else ": as configured"
    return _time_table(party.name, seconds_by_form), f"fastest here{line}"


def measure(party: FeatureParty, alpha: float) -> dict[Form, Seconds]:
    """Return the fastest step of every form, without pruning and at alpha (0: both the same)."""
    configured = party.config.lightweighting.pruning.round_to
    roundings = dict.fromkeys((configured, ROUND_TO) if alpha else (configured,))
    forms = [Form(*each) for each in product(PRECISIONS, (False, True), roundings)]
    steps: dict[tuple[object, ...], Callable[[], None]] = {form[:2]: _make_step(party, form) for form in forms}
    for form in forms if alpha else ():
        steps[form] = pruned = _make_step(party, form)
        pruned.prune(alpha, form.round_to)
    fastest_s = _race_forms(steps)
    return {form: Seconds(fastest_s[form[:2]], fastest_s.get(form, fastest_s[form[:2]])) for form in forms}


def _make_step(party: FeatureParty, form: Form) -> PartyStep:
    runtime = replace(party.runtime, autocast_dtype=PRECISIONS[form.precision], channels_last=form.channels_last)
    rows_B = torch.arange(min(party.config.training.batch_size, len(party.train)))
    inputs = tuple(tensor[rows_B] for tensor in party.train.inputs)
    width = feature_config(party.config, party.name).embedding_size
    gradient_BD = torch.full((len(rows_B), width), 1 / len(rows_B))
    return PartyStep(copy_model(party.model), inputs, gradient_BD, runtime)


def _race_forms(steps: Mapping[K, Callable[[], None]]) -> dict[K, float]:
    """Return the least seconds of each, measured in turn after a warm-up, until time is over."""
    for step in steps.values():
        step()
    fastest_s = dict.fromkeys(steps, float("inf"))
    started_s = time.perf_counter()
    while float("inf") in fastest_s.values() or time.perf_counter() - started_s < SECONDS:
        for name, step in steps.items():
            before_s = time.perf_counter()
            step()
            fastest_s[name] = min(fastest_s[name], time.perf_counter() - before_s)
    return fastest_s


def _time_table(party: str, seconds_by_form: Mapping[Form, Seconds]) -> Table:
    headings = ("precision", "channels_last", "round_to", "unpruned", "pruned")
    table = numbers_table(f"{party}: seconds of a step", headings)
    for form, seconds in seconds_by_form.items():
        cells = (form.precision, str(form.channels_last).lower(), str(form.round_to or "null"))
        table.add_row(*cells, f"{seconds.unpruned:.3g}", f"{seconds.pruned:.3g}")
    return table
