"""Predictions of a fitted estimator's run for owners' tables in memory, and its words for errors.

Shapes: N rows of the first owner, C classes.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vfl.api.frames import OwnerTable, places
from vfl.base.errors import Argument, ConfigError, Words, nearest_name, use_words
from vfl.data.tables.cells import FrameTable

if TYPE_CHECKING:  # they import PyTorch
    from vfl.base.errors import WhenAbsent
    from vfl.core.local import LocalFederation
    from vfl.predict.predict import Prediction
    from vfl.predict.reasons import ReasonsWanted
    from vfl.runs.stored_run import Run

ESTIMATOR: Words = {
    Argument.REASONS: "explain",
    Argument.REASONS_OF: "of",
    Argument.REASONS_STEPS: "steps",
    Argument.WHEN_ABSENT: "missing_parties",
}
"""What the estimators call arguments."""


def check_owners(
    run: "Run", known: Collection[str], owners: Mapping[str, OwnerTable], missing: "WhenAbsent"
) -> list[str]:
    """Return the parties without a table.

    Raises ConfigError for an unknown owner, no row, and for a missing party that nothing replaces.
    """
    for name in owners:
        if name not in known:
            raise ConfigError(f"X: no owner is called {name!r}{nearest_name(name, [*known])}")
    absent = [name for name in run.summary["parties"] if name not in owners]
    if absent and missing == "refuse":
        raise ConfigError(f"X: {', '.join(absent)} absent; give its table, or missing_parties='mean'")
    if len(_first(known, owners).keys) == 0:
        raise ConfigError("X: holds no row")
    return absent


def predict_owners(
    trained: "LocalFederation",
    known: Collection[str],
    owners: Mapping[str, OwnerTable],
    absent: Collection[str],
    missing: "WhenAbsent",
    reasons: "ReasonsWanted | None" = None,
) -> "tuple[Prediction, NDArray[np.int64]]":
    """Return the prediction of owners' rows, and the place [N] in it of each row of the first owner."""
    from vfl.predict.open_run import SamplesWanted, take_rows
    from vfl.predict.predict import predict

    tables = {name: FrameTable(f"X: {name}", owner.table) for name, owner in owners.items()}
    wanted = SamplesWanted(tables=tables, absent=absent, when_absent=missing)
    with use_words(ESTIMATOR):
        prediction = predict(take_rows(trained, wanted), missing, reasons)
    return prediction, places(_first(known, owners).keys, [key[0] for key in prediction.keys[1:]])


def _first(known: Collection[str], owners: Mapping[str, OwnerTable]) -> OwnerTable:
    return next(owner for name in known if (owner := owners.get(name)) is not None)
