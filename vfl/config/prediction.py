"""The settings with which a run's parties answer: an experiment's, without those of its training.

A run keeps them in ``prediction.json``, beside ``config.yaml``; predictions and exports read these and no others. What
they do not say is in the last checkpoint: weights and their pruned shapes, preparation, classes, the task. The file
holds only for the ``config.yaml`` whose digest it has: after any change to that one it counts as missing.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from vfl.config.components import SOURCES
from vfl.config.data import DataConfig
from vfl.config.models import ModelsConfig
from vfl.config.settings import (
    OWN,
    REPLAYED,
    SHARED,
    AboveZero,
    Probability,
)
from vfl.config.shared import Computation, SharedEvaluation
from vfl.config.wire import PrivacyConfig, WireConfig

PREDICTION = "prediction.json"
VERSION = 1
"""Of the file; one of another version is not read."""

MetricName = Literal[
    "auc",
    "average_precision",
    "ks",
    "log_loss",
    "calibration_error",
    "f1",
    "precision",
    "recall",
    "accuracy",
    "macro_f1",
    "rmse",
    "mae",
    "r2",
    "huber_loss",
    "pinball_loss",
]
Costs = Annotated[dict[Literal["fp", "fn"], AboveZero], Field(min_length=2)]


class EvaluationConfig(SharedEvaluation):
    """The test of the joint model."""

    subsets: Annotated[bool, OWN] = False
    """Evaluate sets of parties as if the others were absent."""
    sparsified: Annotated[bool, SHARED] = False
    """Evaluate embeddings with beta applied."""
    metric: Annotated[MetricName | None, OWN] = None
    """Compares models in patience, sweeps and reports; null: accuracy, for two-class tables auc, for regression rmse or
    the loss's."""
    tell_parties: Annotated[bool, OWN] = False
    """Send the parties the metric."""
    threshold: Annotated[Probability, OWN] = 0.5
    """Two classes only: probability that predicts the positive class."""
    decision: Annotated[Costs | None, OWN] = None
    """Two classes only: costs, {fp: 1, fn: 20}, for a threshold in the summary."""


class PredictionConfig(Computation):
    """The part of an experiment that a run's parties and head need to answer."""

    mode: Annotated[Literal["vertical"], OWN] = "vertical"  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    """horizontal: its keys stand at the end."""
    task: Annotated[Literal["classification", "regression"], REPLAYED] = "classification"
    """regression: a number per sample, tables only."""
    channels_last: Annotated[bool, OWN] = False
    """NHWC memory format, usually faster with bfloat16."""
    data: DataConfig = DataConfig()
    models: ModelsConfig = ModelsConfig()
    wire: WireConfig = WireConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, in the order in which the head concatenates their embeddings: the data source's owners.

        Raises ValueError for a source that cannot be used, or does not split over owners.
        """
        if self.data.dataset.kind in SOURCES.built_in:
            return self.data.parties
        return tuple(SOURCES.make(self.data.dataset.kind, self.data, self.seed).parties)

    @property
    def owners(self) -> tuple[str, ...]:
        """The parties' names and, among them, that of a label owner who has no features and so is no party."""
        return tuple(self.data.tables) if self.data.dataset.kind == "tables" else self.parties


def prediction_text(config: PredictionConfig, written: str) -> str | None:
    """Return the content of ``prediction.json`` beside a ``config.yaml`` that is ``written`` so.

    None for settings that JSON would change, as options with numbers as keys.
    """
    fields = set(PredictionConfig.model_fields)
    settings = config.model_dump(mode="json", include=fields, fallback=str)
    if PredictionConfig.model_validate(settings).model_dump() != config.model_dump(include=fields):
        return None
    digest = hashlib.sha256(written.encode()).hexdigest()
    return json.dumps({"version": VERSION, "config": digest, "settings": settings}, indent=1) + "\n"


def read_prediction(run_dir: Path) -> PredictionConfig | None:
    """Return the settings in a run's ``prediction.json``; None for a missing, damaged or outdated file."""
    try:
        kept: Any = json.loads((run_dir / PREDICTION).read_bytes())
        written = hashlib.sha256((run_dir / "config.yaml").read_bytes()).hexdigest()
        if (kept["version"], kept["config"]) == (VERSION, written):
            return PredictionConfig.model_validate(kept["settings"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    return None
