"""Predictions with all parties in this process, as tests ask for them."""

from collections.abc import Collection, Mapping
from pathlib import Path

from vfl.base.errors import WhenAbsent
from vfl.core.local import LocalFederation
from vfl.predict.open_run import HERE, SamplesWanted, Subset, take_rows
from vfl.predict.predict import Prediction, predict, predict_run
from vfl.predict.reasons import ReasonsWanted
from vfl.runs.stored_run import Run


def predict_in_process(
    run: Run,
    data: Path | None,
    absent: Collection[str],
    when_absent: WhenAbsent,
    tables: Mapping[str, Path] | None = None,
    split: Subset | None = None,
    reasons: ReasonsWanted | None = None,
) -> Prediction:
    """Predict with a run."""
    return predict_run(run, HERE, SamplesWanted(data, tables or {}, split, absent, when_absent), reasons)


def predict_new_rows(
    trained: LocalFederation, tables: Mapping[str, Path], absent: Collection[str], when_absent: WhenAbsent
) -> Prediction:
    """Predict new rows with a run that is open."""
    wanted = SamplesWanted(tables=tables, absent=absent, when_absent=when_absent)
    return predict(take_rows(trained, wanted), when_absent)
