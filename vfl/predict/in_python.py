"""Predictions of what a Python program has in memory: samples and errors in its own words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vfl.base.errors import Argument, ConfigError, WhenAbsent, Words, nearest_name, use_words
from vfl.config.data import TABLE_KINDS
from vfl.data.tables.cells import FrameTable, TablePlace
from vfl.data.tables.frames import frame_table
from vfl.predict.open_run import HERE, SamplesWanted, check_word
from vfl.predict.predict import Prediction, predict_run, reorder, table_named
from vfl.predict.reasons import Reasons, ReasonsWanted
from vfl.runs.stored_run import Run

PREDICT: Words = {Argument.DATA: "samples", Argument.TABLE: "samples"}
EXPLAIN: Words = PREDICT | {
    Argument.REASONS_OF: "of",
    Argument.REASONS_STEPS: "steps",
    Argument.WHEN_ABSENT: "when_absent",
}
"""What the methods of ``Run`` call their arguments."""


def predict_in_python(run: Run, samples: object) -> NDArray[np.floating[Any]]:
    """Return the predictions [N, C] of samples as ``Run.predict`` takes them. Raises ConfigError, one line."""
    with use_words(PREDICT):
        return _predicted(run, samples, "refuse").probabilities_NC.numpy()


def explain_in_python(run: Run, samples: object, of: str | None, steps: int, when_absent: WhenAbsent) -> Reasons:
    """Return the reasons of the scores of samples as ``Run.explain`` takes them. Raises ConfigError, one line."""
    with use_words(EXPLAIN):
        check_word(when_absent)
        reasons = _predicted(run, samples, when_absent, ReasonsWanted(of, steps)).reasons
    assert reasons is not None, "they were asked for"
    return reasons


def _predicted(run: Run, samples: object, when_absent: WhenAbsent, reasons: ReasonsWanted | None = None) -> Prediction:
    """Return the prediction of samples, in the order in which they are given."""
    if samples is None:
        return predict_run(run, HERE, SamplesWanted(when_absent=when_absent), reasons)
    if not isinstance(samples, Mapping):
        if run.prediction.data.dataset.kind in TABLE_KINDS and isinstance(samples, str | Path):
            raise ConfigError(f"samples: say whose table {samples} is: {{owner: {str(samples)!r}}}")
        data = Path(samples) if isinstance(samples, str | Path) else np.asarray(cast(Any, samples))
        return predict_run(run, HERE, SamplesWanted(data, when_absent=when_absent), reasons)
    wanted = SamplesWanted(tables=_tables(run, cast(Mapping[str, object], samples)), when_absent=when_absent)
    prediction = predict_run(run, HERE, wanted, reasons)
    return prediction if prediction.file_order is None else reorder(prediction, prediction.file_order)


def _tables(run: Run, samples: Mapping[str, object]) -> Mapping[str, TablePlace]:
    """Return the tables by owner: files as they are named, and frames in memory."""
    owners, tables = run.prediction.owners, dict[str, TablePlace]()
    for owner, table in samples.items():
        if owner not in owners:
            raise ConfigError(f"samples: no owner is called {owner!r}{nearest_name(owner, owners)}")
        if isinstance(table, str | Path):
            tables[owner] = table_named(run.prediction, owner, Path(table))
        else:
            name = f"samples: {owner}"
            tables[owner] = FrameTable(name, frame_table(name, table))
    if not tables:
        raise ConfigError("samples: there is no table; give {owner: table}")
    return tables
