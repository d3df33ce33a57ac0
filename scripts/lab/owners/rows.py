"""Train a protocol's methods, a seed at a time: python -m scripts.lab.owners.rows NAME ROWS [key=value ...].

NAME.yaml beside this file declares the protocol. ROWS, a CSV file, gets a line per run; runs that it has are not
repeated. Of a run with auxiliary classifiers a line has three answers: the head's, the mean of the classifiers' (own),
and the mean of all of these (both), means of log-probabilities.
"""

import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import vfl
from scripts.lab.frontier.rows import main
from vfl.predict.trained_run import open_federation

COSTS = ("train_macs", "unpruned_train_macs", "uplink_bytes", "downlink_bytes", "wall_time_s")
KEPT = ("test_accuracy", "test_loss", *COSTS)


def train(base: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train a method; return its accuracy, costs, and the answers of heads and classifiers."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = vfl.train(base, settings, run_dir=Path(folder) / "run")
        return {**{key: run.summary[key] for key in KEPT}, **answers(run)}


def answers(run: vfl.Run) -> dict[str, float | str]:
    """Return accuracy and log loss of each way to answer, on the test samples; empty cells without classifiers."""
    found: dict[str, float | str] = {f"{way}_{what}": "" for way in ("own", "both") for what in ("accuracy", "loss")}
    if not run.vertical.training.auxiliary:
        return found
    joint = open_federation(run, with_data=True).joint
    logs: dict[str, list[torch.Tensor]] = {"own": [], "both": []}
    for start, stop in joint.batches():
        embeddings = joint.embeddings(start, stop)
        own = [answer_BC.log_softmax(1) for answer_BC, _ in joint.own_answers(embeddings)]
        logs["own"].append(torch.stack(own).mean(0))
        logs["both"].append(torch.stack([joint.outputs(embeddings).log_softmax(1), *own]).mean(0))
    labels_M = joint.samples.values
    for way, batches in logs.items():
        mean_MC = torch.cat(batches)
        found[f"{way}_accuracy"] = round(float((mean_MC.argmax(1) == labels_M).double().mean()), 6)
        found[f"{way}_loss"] = round(float(F.cross_entropy(mean_MC, labels_M)), 6)
    return found


if __name__ == "__main__":
    main(Path(__file__).with_name(f"{sys.argv[1]}.yaml"), Path(sys.argv[2]), sys.argv[3:], train)
