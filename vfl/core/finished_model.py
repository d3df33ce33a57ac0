"""The finished model of a party, and the cost of evaluating it; no bit of training changes.

Evaluation, prediction and export use the *finished* model: the current weights, normalising with statistics estimated
on a fixed sample of the party's own training rows. The training's running statistics stay unchanged.

Running statistics lag behind the weights, and a pruning makes them wrong at once. The sample costs one forward pass of
256 rows an evaluation: 0.6 % of a round's multiply-accumulates at the paper's size, 7 % of the quickstart's.
Statistics never travel; they are stored beside the training's in each party's checkpoint.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from vfl.base.errors import ConfigError, one_line
from vfl.base.macs import count_macs
from vfl.base.modules import copy_model, weights_digest
from vfl.compression.party_pruner import PartyPruner
from vfl.compression.refit import Refit
from vfl.config.prediction import PredictionConfig
from vfl.core.batch_statistics import Statistics, batch_norms, embed_still, estimate_statistics, sample_rows
from vfl.core.row_by_row import RowByRow, each_alone
from vfl.data.samples import Samples
from vfl.messages.control import EvaluatedModel
from vfl.runs.checkpoint import State
from vfl.runs.runtime import Runtime

STATISTICS_SAMPLES = 256
"""Rows for batch statistics: in the quickstart, 128 to 1024 give the same accuracy within 3 points from round 1 on."""
REFIT_SAMPLES = 1024
"""Most rows to which a pruned model is refitted."""


@contextmanager
def naming_model(whose: str) -> Generator[None]:
    """Turn the error of loading a run's weights into ConfigError, if the model is another than the run's."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"training.start_from: {whose}'s model is another one in that run ({one_line(error)})"
        ) from None


@dataclass(frozen=True, eq=False)
class ModelForm:
    """A model in its form for evaluation."""

    model: nn.Module
    statistics: Statistics


@dataclass(eq=False)
class EvaluatedModels:
    """Models of one party for evaluation, each made at its first use and kept until ``forget``."""

    model: nn.Module
    """The party's model in training."""
    train: Samples
    """The party's prepared training samples."""
    config: PredictionConfig
    runtime: Runtime
    pruner: PartyPruner | None = field(default=None, init=False)
    """The pruner of the model; None of a party that does not train, which is asked for no pruned model."""
    macs: int = field(default=0, init=False)
    """Multiply-accumulates of evaluation since round 0, including the estimates of statistics that it used."""
    _unused_macs: int = field(default=0, init=False)
    """Those of the finished model's statistics while no evaluation has used them: a checkpoint saves them too, and how
    often one is due, or when a run is interrupted, says nothing of evaluation."""
    _finished: ModelForm | None = field(default=None, init=False)
    _pruned: ModelForm | None = field(default=None, init=False)
    _separate: RowByRow | None = field(default=None, init=False)
    _for_paths: nn.Module | None = field(default=None, init=False)
    _sample_macs: dict[tuple[nn.Module, tuple[torch.Size, ...]], int] = field(
        default_factory=dict[tuple[nn.Module, tuple[torch.Size, ...]], int], init=False
    )
    """Multiply-accumulates of a sample by model and the sample's shapes: counting takes longer than a row's pass."""

    @cached_property
    def statistics_rows(self) -> Tensor:
        """Training rows whose statistics the finished model has."""
        held_N = self.train.held_rows()
        return held_N[sample_rows(self.config.seed, len(held_N), STATISTICS_SAMPLES)]

    def embed(self, which: EvaluatedModel, inputs: Sequence[Tensor], alpha: float, *, alone: bool = False) -> Tensor:
        """Return the embeddings [B, D] of inputs, [B, ...] each, by one of the models; ``alpha`` of the pruned one.

        ``alone``: with each row computed alone.
        """
        match which:
            case "finished":
                evaluated = self.finished
                self.macs, self._unused_macs = self.macs + self._unused_macs, 0
            case "pruned":
                evaluated = self._pruned = self._pruned or self._finish(self._prune_copy(alpha))
        self._count(evaluated.model, inputs)

        def compute(rows: Sequence[Tensor]) -> Tensor:
            return embed_still(evaluated.model, rows, self.runtime, evaluated.statistics)

        return each_alone(compute, inputs) if alone else compute(inputs)

    def embed_each(self, inputs: Sequence[Tensor], *, alone: bool = False) -> Tensor:
        """Return the finished model's embeddings [B, D] of inputs, [B, ...] each, with the bits of each row alone.

        ``alone`` computes them one by one, where even a difference that no probe shows would reveal something.
        """
        # A copy: to put the statistics into the party's own model and take them out would cost more than a row does.
        self._separate = self._separate or RowByRow(self.finished_copy(), self.runtime.forward, self._probes)
        self._count(self.model, inputs)
        with torch.inference_mode():
            return each_alone(self._separate, inputs) if alone else self._separate(inputs)

    def _probes(self, rows: int) -> list[Tensor]:
        """Return some training rows as inputs, repeated where the party has fewer."""
        places = self.statistics_rows[torch.arange(rows) % len(self.statistics_rows)]
        return [self.runtime.batch(tensor, places) for tensor in self.train.inputs]

    def mean_embedding(self) -> Tensor:
        """Return the mean [1, D] of the finished model's embeddings of the training samples that the party has."""
        rows_N = self.train.held_rows()
        total_D = torch.zeros(1, dtype=torch.float64)
        for rows_B in torch.split(rows_N, self.config.evaluation.batch_size):
            inputs = tuple(self.runtime.batch(tensor, rows_B) for tensor in self.train.inputs)
            total_D = total_D + self.embed("finished", inputs, 0.0).double().sum(dim=0).cpu()
        return (total_D / len(rows_N)).float().unsqueeze(0)

    @property
    def finished(self) -> ModelForm:
        """The party's model with the statistics of its present weights."""
        if self._finished is None:
            before = self.macs
            self._finished = self._finish(self.model)
            self._unused_macs, self.macs = self.macs - before, before
        return self._finished

    def finished_copy(self) -> nn.Module:
        """Return the finished model as a separate model, in evaluation mode."""
        model = copy_model(self.model).eval()
        model.load_state_dict(self.finished.statistics, strict=False)  # only these: all else is copied
        return model

    @property
    def for_paths(self) -> nn.Module:
        """The finished model as a separate model, kept until the party's model changes."""
        self._for_paths = self._for_paths or self.finished_copy()
        return self._for_paths

    def digest(self) -> str:
        """Return the digest of the finished model."""
        return weights_digest(self.model.state_dict() | self.finished.statistics)

    def forget(self) -> None:
        """Drop all models, as the party's model has changed."""
        self._finished = self._pruned = self._separate = self._for_paths = None
        self._unused_macs = 0
        self._sample_macs.clear()

    def state_dict(self) -> State:
        """Return the finished model's statistics, and the cost of evaluation."""
        return {"statistics": self.finished.statistics, "macs": self.macs, "unused_macs": self._unused_macs}

    def load_state_dict(self, state: State) -> None:
        """Restore the statistics of the weights that the model has just loaded."""
        self.forget()
        # Not estimated anew: the pass would be counted once more, and a resumed run's costs would differ.
        self._finished, self.macs = ModelForm(self.model, state["statistics"]), int(state["macs"])
        self._unused_macs = int(state["unused_macs"])

    def _finish(self, model: nn.Module) -> ModelForm:
        if not batch_norms(model):
            return ModelForm(model, {})
        inputs = [self.runtime.batch(tensor, self.statistics_rows) for tensor in self.train.inputs]
        self._count(model, inputs)
        return ModelForm(model, estimate_statistics(model, inputs, self.runtime))

    def refit(self, model: nn.Module) -> Refit | None:
        """Return what refits a model to a sample of the training rows at its pruning; None if nothing does."""
        if self.pruner is None or not self.pruner.refits:
            return None
        held_N = self.train.held_rows()
        rows_B = held_N[sample_rows(self.config.seed, len(held_N), REFIT_SAMPLES)]
        inputs = [self.runtime.batch(tensor, rows_B) for tensor in self.train.inputs]
        # In a batch's own statistics, as in training: the running ones lag behind.
        return Refit(lambda: estimate_statistics(model, inputs, self.runtime), len(rows_B) * count_macs(model, *inputs))

    def _prune_copy(self, alpha: float) -> nn.Module:
        # Together, so that the copied pruner prunes the copied model and not the party's.
        model, pruner = copy_model((self.model, self.pruner))
        assert pruner is not None, "only a training tests a pruning"
        refit = self.refit(model)
        if pruner.prune_to(alpha, refit=refit) and refit is not None:
            self.macs += refit.macs
        return model

    def _count(self, model: nn.Module, inputs: Sequence[Tensor]) -> None:
        if self.pruner is None:  # nobody asks for the costs of one that does not train
            return
        sample = model, tuple(tensor.shape[1:] for tensor in inputs)
        if sample not in self._sample_macs:
            self._sample_macs[sample] = count_macs(model, *inputs)
        self.macs += len(inputs[0]) * self._sample_macs[sample]
