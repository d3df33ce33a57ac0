"""What every experiment has, whatever its mode: the training loop, runs, sweeps and reports read no more of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import Field, ValidationInfo, field_validator

from vfl.config.data import SharedData
from vfl.config.optimizer import OptimizerConfig
from vfl.config.schedules import Schedule
from vfl.config.settings import OWN, REPLAYED, SHARED, AtLeastTwo, Positive, Section, ignored_settings
from vfl.config.tables import SQLITE


class SharedTraining(Section):
    """How long an experiment trains, and in which steps."""

    rounds: Annotated[Positive, OWN] = 10
    """Rounds to train."""
    batch_size: Annotated[Positive, SHARED] = 256
    """Samples of an exchange, or of a client's step."""
    optimizer: Annotated[OptimizerConfig, REPLAYED] = OptimizerConfig()
    patience: Annotated[Positive | None, OWN] = None
    """Stop after this many evaluations without a better evaluation.metric."""

    @field_validator("optimizer")
    @classmethod
    def _with_rounds(cls, value: OptimizerConfig, info: ValidationInfo) -> OptimizerConfig:
        # As a value of its own: sides that replay the head must agree on it, and a resume must not change it.
        return value.with_rounds(info.data.get("rounds", 1))


class SharedEvaluation(Section):
    """The test of the trained model."""

    every: Annotated[Positive, OWN] = 1
    """Rounds between evaluations; the last is always evaluated."""
    batch_size: Annotated[Positive, OWN] = 512
    """Samples per forward pass of an evaluation."""


class CheckpointConfig(Section):
    """Saved state."""

    every: Positive = 5
    """Rounds between checkpoints; the last round and an interrupted one are always saved."""
    keep: AtLeastTwo = 2
    """Checkpoints kept."""


class Computation(Section):
    """An experiment's name, its draws and what computes them."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"), OWN]
    """Names the run folder."""
    seed: Annotated[int, Field(strict=True, ge=0), SHARED] = 0
    """Seed of all random draws."""
    mode: Annotated[str, OWN]
    """The type of the experiment: one of ``vfl.config.components.MODES``."""
    threads: Annotated[Annotated[Positive, Field(le=1024)] | None, OWN] = None
    """CPU threads; they influence the bits. null: 1 for small models, else PyTorch's choice. Commands set
    GOMP_SPINCOUNT=2000, unless you set it or OMP_WAIT_POLICY."""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]{1,2})?)$"), OWN] = "cpu"
    """cpu, or, untested, cuda or one GPU as cuda:0."""
    precision: Annotated[Literal["float32", "bfloat16"], REPLAYED] = "float32"
    """bfloat16: autocast."""


class Experiment(Computation):
    """An experiment of any mode."""

    data: SharedData = SharedData()
    models: Section
    training: SharedTraining = SharedTraining()
    evaluation: SharedEvaluation = SharedEvaluation()
    checkpoint: Annotated[CheckpointConfig, OWN] = CheckpointConfig()

    def settings_fixed_on_resume(self) -> Self:
        """Return the experiment without settings that may change on resume: these have their defaults.

        They are how long to train, how often to evaluate and to save, and what a subclass adds.
        """
        return self.model_copy(
            update={
                "training": self.training.model_copy(update={"rounds": 1, "patience": None}),
                "evaluation": self.evaluation.model_copy(update={"every": 1}),
                "checkpoint": CheckpointConfig(),
            }
        )

    def with_whole_paths(self) -> Self:
        """Return the experiment with absolute paths of its files, so that it is the same from every folder."""
        data = type(self.data).model_validate(_absolute(self.data.model_dump()))
        return self.model_copy(update={"data": data})

    def note_own(self) -> None:
        """Note code that a user's own experiment names: from now on it is known as the user's (``own_models.py``)."""

    def warnings(self) -> list[str]:
        """Return one line for every setting that is ignored or only partly followed."""
        lines = ignored_settings(self)
        if self.device != "cpu":
            lines.append("device: cuda is untested, no run of it has been compared with one of device=cpu")
        return lines + self._late("training.optimizer.learning_rate", [self.training.optimizer.learning_rate])

    def _late(self, field: str, schedules: Sequence[Schedule]) -> list[str]:
        """Return a line if values of a schedule come too late to be used."""
        rounds = self.training.rounds
        starts = {start for each in schedules if isinstance(each, dict) for start in each}
        unused = sorted(start for start in starts if start >= rounds)
        if not unused:
            return []
        return [f"{field}: {{{unused[0]}: ...}} and later are unused: the last of {rounds} rounds is {rounds - 1}"]


def _absolute(value: object) -> object:
    if isinstance(value, str) and value.startswith(SQLITE):
        return f"{SQLITE}{Path(value.removeprefix(SQLITE)).absolute()}"
    if isinstance(value, dict):
        return {key: _absolute(item) for key, item in cast(Mapping[object, object], value).items()}
    return value.absolute() if isinstance(value, Path) else value
