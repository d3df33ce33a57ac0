"""The typed vertical experiment. Every section is frozen and refuses unknown keys."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import BeforeValidator, model_validator

from vfl.base.errors import nearest_name
from vfl.config.components import COMPRESSORS
from vfl.config.data import TABLE_KINDS
from vfl.config.devices import ALL, SimulationConfig
from vfl.config.lightweighting import LightweightingConfig
from vfl.config.network import NetworkConfig
from vfl.config.optimizer import LOSSES, Course, LossConfig
from vfl.config.prediction import PredictionConfig
from vfl.config.schedules import falls, largest, named_parties, schedule_of
from vfl.config.serving import ServingConfig
from vfl.config.settings import (
    OWN,
    REPLAYED,
    SHARED,
    AboveZero,
    Count,
    Fraction,
    NotNegative,
    Positive,
    UsedWith,
    strict_int,
)
from vfl.config.shared import Experiment, SharedTraining
from vfl.config.wire import GradientConfig, is_coarse

ClassWeights = Literal["balanced"] | dict[str, AboveZero]


class TrainingConfig(SharedTraining):
    """The LVFL algorithm (Algorithm 1)."""

    steps_per_round: Annotated[Positive | None, SHARED] = None
    """Exchanges per round; null is one pass, full batches only."""
    local_iterations: Annotated[Positive, SHARED] = 1
    """E: SGD steps per exchange."""
    labels: Annotated[Literal["shared", "server"], SHARED] = "shared"
    """shared: every party holds the labels; server: parties receive gradients."""
    head_sync: Annotated[Literal["replay", "broadcast"], REPLAYED, UsedWith("labels", "shared")] = "replay"
    """labels=shared only: the head travels once per round, or at every exchange."""
    staleness: Annotated[Literal[0, 1, 2], BeforeValidator(strict_int), SHARED] = 0
    """Exchanges by which parties run ahead; an embedding lacks as many updates."""
    party_dropout: Annotated[Fraction, REPLAYED] = 0.0
    """Probability that a sample is trained with a learned placeholder for a party."""
    auxiliary: Annotated[NotNegative, SHARED] = 0.0
    """Weight of the loss of each party's own classifier; 0 has none."""
    local_rounds: Annotated[Count, SHARED] = 0
    """labels=shared only: first rounds that each party trains by itself."""
    loss: Annotated[LossConfig | None, REPLAYED] = None
    """cross_entropy, focal or {kind: focal, gamma: 2}; for amounts squared, absolute, huber or {kind: huber, delta: 1}
    in standard deviations of the training labels, {kind: pinball, quantile: 0.9}. null: the first. See docs/data.md."""
    class_weights: Annotated[ClassWeights | None, REPLAYED] = None
    """Weight of a class in the loss, by name (else 1); balanced: N / (classes x its samples)."""
    label_smoothing: Annotated[Fraction, REPLAYED] = 0.0
    """Share of each label that is spread over all classes."""
    start_from: Annotated[Path | None, OWN] = None
    """Finished run whose models and preparation begin this training."""

    def check_local_rounds(self) -> None:
        """Raise ValueError unless parties can train alone."""
        if self.local_rounds and self.labels == "server":
            raise ValueError(
                "training.local_rounds: parties cannot train alone without labels, which training.labels=server keeps "
                "from them; set it to shared, or local_rounds to 0"
            )
        if self.local_rounds > self.rounds:
            raise ValueError(
                f"training.local_rounds: {self.local_rounds} are more than training.rounds = {self.rounds}; lower it"
            )


RESERVED = ("all", "head", "loop", "manifest", "server")
"""Names that no party may have: checkpoints, exports and budgets use them beside the parties' names."""


def _check_names(parties: Sequence[str]) -> None:
    """Raise ValueError for a name that no party may have; files and certificates carry these names as well."""
    for party in parties:
        if not re.fullmatch(r"\w[\w.-]{0,63}", party, re.ASCII) or party in RESERVED:
            raise ValueError(
                f"data: {party!r} cannot name a party: use letters, digits and _.-, and not {', '.join(RESERVED)}"
            )


def _at(values: object, *keys: str) -> dict[str, object]:
    """Return the mapping under nested keys; empty if there is none."""
    own = cast(dict[str, object], values) if isinstance(values, dict) else {}
    return _at(own.get(keys[0]), *keys[1:]) if keys else own


def _with_default(values: object, default: str, key: str, *below: str) -> object:
    """Return nested settings with a default for a missing value; anything but a mapping stays, to be refused later."""
    if not isinstance(values, dict):
        return values
    own = cast(dict[str, object], values)
    return own | {key: _with_default(own.get(key, {}), default, *below) if below else own.get(key, default)}


OF_CLASSES = ("training.class_weights", "training.label_smoothing", "evaluation.threshold", "evaluation.decision")
"""Settings that task: regression ignores."""


class ExperimentConfig(PredictionConfig, Experiment):  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    """A vertical experiment."""

    training: TrainingConfig = TrainingConfig()  # pyright: ignore[reportIncompatibleVariableOverride]
    lightweighting: LightweightingConfig = LightweightingConfig()
    simulation: Annotated[SimulationConfig, OWN] = SimulationConfig()
    network: Annotated[NetworkConfig, OWN] = NetworkConfig()
    """Used by processes of their own only."""
    serving: Annotated[ServingConfig, OWN] = ServingConfig()

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_tables(cls, values: object) -> object:
        """Let tables default to labels at the server and a perceptron at each party."""
        if _at(values, "data", "dataset").get("kind") not in TABLE_KINDS:
            return values
        values = _with_default(values, "server", "training", "labels")
        values = _with_default(values, "mlp", "models", "feature", "kind")
        for party in _at(values, "models", "parties"):
            values = _with_default(values, "mlp", "models", "parties", party, "kind")
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        loss = self.training.loss
        if loss is not None and loss.kind not in LOSSES[self.task]:
            raise ValueError(f"training.loss: {loss.kind} is none of task {self.task}: {', '.join(LOSSES[self.task])}")
        self.training.check_local_rounds()
        if self.training.start_from is not None and self.models.begins_with_weights:
            raise ValueError("models.feature.weights: training.start_from brings the weights; leave one of them out")
        parties = self.parties
        _check_names(parties)
        named = {
            **{
                f"lightweighting.{name}": named_parties(getattr(self.lightweighting, name)) or {}
                for name in ("alpha", "beta", "alpha_max", "beta_max", "resolution")
            },
            "models.parties": self.models.parties,
            "simulation.parties": self.simulation.parties.keys() - {ALL},
        }
        for field, names in named.items():
            for name in names:
                if name not in parties:
                    only = f"; {name} has only labels and no model" if name in self.data.tables else ""
                    raise ValueError(f"{field}: no party is called {name!r}{only or nearest_name(name, parties)}")
        self.lightweighting.check_bounds(parties)
        self._check_augmentation()
        self._check_resolution(parties)
        if self.network.on_party_loss == "drop" and self.lightweighting.error_feedback:
            raise ValueError(
                "network.on_party_loss: drop needs lightweighting.error_feedback=false: the others' estimates of a "
                "party that returns would differ from its own; use wait"
            )
        samples = self.data.train_samples  # None: how many there are is known only once the data are read
        if samples is not None and self.training.batch_size > samples:
            raise ValueError(
                f"training.batch_size: {self.training.batch_size} is larger than data.train_samples = {samples}; "
                "lower it or take more samples"
            )
        if self.training.batch_size == 1 and self.normalises_by_batch:
            raise ValueError("training.batch_size: BatchNorm needs at least 2; or set models.feature.batch_norm=false")
        return self

    def _check_resolution(self, parties: Sequence[str]) -> None:
        ratios = self.lightweighting
        if not any(map(ratios.sizes_of, parties)):
            return
        if self.data.dataset.kind in TABLE_KINDS:
            raise ValueError("lightweighting.resolution: only images have one, the data are tables; leave it out")
        ratios.check_resolution(parties, self.training.rounds)
        if self.training.patience is not None:
            raise ValueError(
                "training.patience: could end the training before lightweighting.resolution is 1; leave one of them out"
            )

    def _check_augmentation(self) -> None:
        if not largest(self.data.augmentation.shift):
            return
        if self.data.dataset.kind in TABLE_KINDS:
            raise ValueError("data.augmentation.shift: only images can be shifted, the data are tables; leave it out")
        fed_back = {"lightweighting": self.lightweighting, "wire.gradients": self.wire.gradients}
        for field, section in fed_back.items():
            if section.error_feedback:
                raise ValueError(
                    f"data.augmentation.shift: {field}.error_feedback keeps numbers by row, of another view of the "
                    "image; leave one of them out"
                )

    @property
    def normalises_by_batch(self) -> bool:
        """A party's model has BatchNorm."""
        return any(self.models.parties.get(party, self.models.feature).batch_norm for party in self.parties)

    def settings_fixed_on_resume(self) -> Self:
        """Return the same, also without the network and serving."""
        fixed = super().settings_fixed_on_resume()
        tables = {owner: table.model_copy(update={"serve": None}) for owner, table in self.data.tables.items()}
        free = {
            "network": NetworkConfig(),
            "serving": ServingConfig(),
            "data": self.data.model_copy(update={"tables": tables}),
            "evaluation": fixed.evaluation.model_copy(update={"subsets": False}),
        }
        return fixed.model_copy(update=free)

    def with_whole_paths(self) -> Self:
        """Return the same, also with absolute paths of models' files and of the run that it starts from."""
        training = self.training
        if (named := training.start_from) is not None:
            below = Path("runs") / named
            whole = (below if below.exists() and not named.exists() else named).absolute()
            training = training.model_copy(update={"start_from": whole})
        changed = {"training": training, "models": self.models.with_whole_paths()}
        return super().with_whole_paths().model_copy(update=changed)

    def note_own(self) -> None:
        """Note the code of its models."""
        self.models.note_own()

    def ignored(self) -> Mapping[str, str]:
        """Return the settings of classes if there are none."""
        return dict.fromkeys(OF_CLASSES if self.task == "regression" else (), "task is regression")

    def warnings(self) -> list[str]:
        """Return one line for every setting that is ignored or only partly followed."""
        lines = super().warnings()
        alphas = {party: falls(schedule_of(self.lightweighting.alpha, party)) for party in self.parties}
        for fall in sorted({fall for fall in alphas.values() if fall is not None}):
            who = ", ".join(party for party in alphas if alphas[party] == fall)
            lines.append(
                f"lightweighting.alpha: falls from {fall[1]:g} to {fall[2]:g} at {{{fall[0]}: ...}} ({who}); "
                "nothing is un-pruned, the larger ratio stays"
            )
        lines += self._late("lightweighting.alpha", [schedule_of(self.lightweighting.alpha, each) for each in alphas])
        lines += self._late("lightweighting.beta", [schedule_of(self.lightweighting.beta, each) for each in alphas])
        sizes = [self.lightweighting.resolution_of(each) for each in alphas]
        lines += self._late("lightweighting.resolution", sizes)
        lines += self._late("data.augmentation.shift", [self.data.augmentation.shift])
        lines += self._ended_rates() + self._about_wire()
        if self.evaluation.sparsified and self.lightweighting.error_feedback:
            lines.append("evaluation.sparsified: without error_feedback, as test samples have no estimates")
        if "embeddings" in self.privacy.noisy and self.normalises_by_batch:
            lines.append(
                "privacy.embeddings: by BatchNorm a row moves its whole batch: epsilon is that of a strength divided "
                "by the root of training.batch_size; set models.feature.batch_norm=false"
            )
        if self.privacy.noisy and self.training.start_from is not None:
            lines.append("training.start_from: epsilon counts only this training; rows that both saw spend the sum")
        return lines

    def _about_wire(self) -> list[str]:
        lines: list[str] = []
        wire, fed_back = self.wire, self.lightweighting.error_feedback
        sections = [(wire, fed_back), (wire.gradients, wire.gradients.error_feedback)]
        if wire.rounding != "nearest" and any(is_coarse(each) for each, fed in sections if fed):
            lines.append(
                f"wire.rounding: {wire.rounding} to steps of 2 or to 2 bits errs by more than the value; "
                "error feedback needs nearest"
            )
        if wire.compressor.kind not in COMPRESSORS.built_in:
            lines += [
                f"wire.{field}: compressor {wire.compressor.kind} is another package's and may ignore it"
                for field in ("bits", "step")
                if getattr(wire, field) is not None
            ]
        if self.training.labels == "shared" and wire.gradients != GradientConfig():
            lines.append("wire.gradients: ignored with training.labels=shared, no gradient travels")
        if self.training.labels == "shared" and self.privacy.gradients is not None:
            lines.append("privacy.gradients: ignored with training.labels=shared, no gradient travels")
        return lines

    def _ended_rates(self) -> list[str]:
        """Return a line if rounds come after the course of a named rate, as those that a resume adds."""
        course, rounds = self.training.optimizer.schedule, self.training.rounds
        if not isinstance(course, Course) or (course.rounds or rounds) >= rounds:
            return []
        return [
            f"training.optimizer.schedule: the rate of {course.kind} is 0 after {course.rounds} rounds, "
            f"training.rounds is {rounds}; to train on, begin a training with the run: training.start_from"
        ]
