"""Predict without parties: python -m scripts.lab.owners.absent ROWS [key=value ...].

absent.yaml beside this file declares the protocol. A row has the accuracy with all parties, and, for each answer that
the method can give (mean, placeholder, own), the mean accuracy without one party and with one party only.
"""

import sys
import tempfile
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import vfl
from scripts.lab.frontier.rows import main
from vfl.base.absence import WhenAbsent
from vfl.predict.predict import predict_in_process


def accuracy_without(run: vfl.Run, absent: Collection[str], answer: WhenAbsent) -> float:
    """Return the accuracy on the test images without some parties."""
    predicted = predict_in_process(run, None, absent, answer)
    assert predicted.labels_N is not None
    return float((predicted.probabilities_NC.argmax(1) == predicted.labels_N).double().mean())


def train(base: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train a method; return what its row keeps."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = vfl.train(base, settings, run_dir=Path(folder) / "run")
        names = list(run.summary["parties"])
        row: dict[str, Any] = {"test_accuracy": run.summary["test_accuracy"]}
        answers: dict[WhenAbsent, bool] = {
            "mean": True,
            "placeholder": "training.party_dropout" in settings,
            "own": "training.auxiliary" in settings,
        }
        for answer, possible in answers.items():
            tests = {"without one": [[name] for name in names]}
            tests["one only"] = [[other for other in names if other != name] for name in names]
            for test, absences in tests.items():
                values = [accuracy_without(run, absent, answer) for absent in absences] if possible else []
                row[f"{answer}, {test}"] = round(fmean(values), 5) if values else ""
        return row


if __name__ == "__main__":
    main(Path(__file__).with_suffix(".yaml"), Path(sys.argv[1]), sys.argv[2:], train)
