"""Predictions of what a Python program has in memory: samples and errors in its own words."""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vfl.base.absence import WhenAbsent
from vfl.base.errors import ConfigError, PeerLost, nearest_name
from vfl.config.data import TABLE_KINDS
from vfl.data.tables.frames import write_frame
from vfl.predict.open_run import HERE, SamplesWanted, check_word
from vfl.predict.predict import Prediction, in_file_order, predict_run, table_named
from vfl.predict.reasons import Reasons, ReasonsWanted
from vfl.runs.stored_run import Run


def predict_in_python(run: Run, samples: object) -> NDArray[np.floating[Any]]:
    """Return the predictions [N, C] of samples as ``Run.predict`` takes them. Raises ConfigError, one line."""
    return _predicted(run, samples, "refuse").probabilities_NC.numpy()


def explain_in_python(run: Run, samples: object, of: str | None, steps: int, when_absent: WhenAbsent) -> Reasons:
    """Return the reasons of the scores of samples as ``Run.explain`` takes them. Raises ConfigError, one line."""
    check_word("when_absent", when_absent)
    try:
        reasons = _predicted(run, samples, when_absent, ReasonsWanted(of, steps)).reasons
    except ConfigError as error:
        raise ConfigError(str(error).replace("--reasons-of:", "of:").replace("--reasons-steps:", "steps:")) from None
    assert reasons is not None, "they were asked for"
    return reasons


def _predicted(run: Run, samples: object, when_absent: WhenAbsent, reasons: ReasonsWanted | None = None) -> Prediction:
    """Return the prediction of samples, in the order in which they are given."""
    if samples is None:
        return predict_run(run, HERE, SamplesWanted(when_absent=when_absent), reasons)
    with tempfile.TemporaryDirectory() as folder:
        given = _as_files(run, samples, Path(folder))
        try:
            wanted = SamplesWanted(given) if isinstance(given, Path) else SamplesWanted(tables=given)
            wanted = replace(wanted, when_absent=when_absent)
            return in_file_order(predict_run(run, HERE, wanted, reasons))
        except (ValueError, PeerLost) as error:
            raise ConfigError(_for_python(str(error), Path(folder))) from None


def _as_files(run: Run, samples: object, folder: Path) -> Path | Mapping[str, Path]:
    """Return samples as files; samples in memory are written into a folder."""
    if isinstance(samples, str | Path):
        if run.prediction.data.dataset.kind in TABLE_KINDS:
            raise ConfigError(f"samples: say whose table {samples} is: {{owner: {str(samples)!r}}}")
        return Path(samples)
    if not isinstance(samples, Mapping):
        np.savez(folder / "samples.npz", images=np.asarray(cast(Any, samples)))
        return folder / "samples.npz"
    owners, tables = run.prediction.owners, dict[str, Path]()
    for owner, table in cast(Mapping[str, object], samples).items():
        if owner not in owners:
            raise ConfigError(f"samples: no owner is called {owner!r}{nearest_name(owner, owners)}")
        if isinstance(table, str | Path):
            tables[owner] = table_named(run.prediction, owner, Path(table))
        else:
            tables[owner] = folder / owner
            write_frame(tables[owner], f"samples: {owner}", table)
    if not tables:
        raise ConfigError("samples: there is no table; give {owner: table}")
    return tables


def _for_python(line: str, folder: Path) -> str:
    """Return an error's line for Python, without the command's options and the names of temporary files."""
    for name in (f"--data: {folder / 'samples.npz'}:", f"--data: {folder / 'samples.npz'}", "--data:", "--table:"):
        line = line.replace(name, "samples:")
    line = re.sub(re.escape(str(folder)) + r"/([\w.-]+)", r"the table of \1", line)
    return re.sub(r"; --when-absent .*$", "; give its table", line)
