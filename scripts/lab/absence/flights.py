"""Left against inner join on the same test flights: python -m scripts.lab.absence.flights DATA OUT.

DATA/flights is what scripts/lab/tables/prepare_flights.py wrote. Trains flights.yaml with both joins and three seeds
below OUT (what is finished is kept); predicts all test flights with each model, a placeholder (zeros after an inner
join, which learns none) where an owner has no row; and writes the AUC of all test flights, of those that all owners
have a row for, and of the others.
"""

import csv
import os
import sys
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from vfl.base.metrics import two_class_metrics
from vfl.config import load_config
from vfl.predict.predict import predict_in_process
from vfl.runs.run import run_experiment
from vfl.runs.stored_run import Run

CONFIG = Path(__file__).with_name("flights.yaml").resolve()
SEEDS = (0, 1, 2)


def write_test_flights(data: Path) -> dict[str, int]:
    """Write the airline's test flights as a table of new rows, and return their labels by key."""
    tests = {row["flight"] for row in csv.DictReader((data / "flights/test_flights.csv").open())}
    with (data / "flights/airline.csv").open() as file, (data / "flights/airline_test.csv").open("w") as out:
        rows = csv.DictReader(file)
        writer = csv.DictWriter(out, rows.fieldnames or ())
        writer.writeheader()
        chosen = [row for row in rows if row["flight"] in tests]
        writer.writerows(chosen)
    return {row["flight"]: int(row["late"] == "yes") for row in chosen}


def areas(run: Path, data: Path, labels: dict[str, int]) -> dict[str, float]:
    """Return the AUC of a model's predictions of all test flights, and of two parts of them."""
    flights = data / "flights"
    tables = {name: flights / f"{name}.csv" for name in ("weather", "register")}
    predicted = predict_in_process(
        Run(run), None, (), "placeholder", {"airline": flights / "airline_test.csv"} | tables
    )
    truth_N = torch.tensor([labels[key[0]] for key in predicted.keys[1:]])
    complete_N = torch.stack(list(predicted.present.values())).all(dim=0)
    scores_N = predicted.probabilities_NC[:, predicted.classes.index("yes")]

    def area(rows_N: Tensor) -> float:
        return two_class_metrics(scores_N[rows_N], truth_N[rows_N], 0.5)["auc"]

    parts = {"all": torch.ones_like(complete_N), "complete": complete_N, "a row is missing": ~complete_N}
    return {name: area(rows_N) for name, rows_N in parts.items()}


def main(data: Path, out: Path) -> None:
    """Train and print."""
    labels = write_test_flights(data)
    os.chdir(data.parent)
    for join in ("inner", "left"):
        for seed in SEEDS:
            run = out / f"{join}-seed{seed}"
            if not (run / "summary.json").exists():
                settings = [f"seed={seed}", f"data.join={join}"]
                run_experiment(load_config(CONFIG, settings), run, resume=True, console=Console(quiet=True))
            found = areas(run, data, labels)
            sys.stdout.write(f"{run.name} " + ", ".join(f"{part} {area:.4f}" for part, area in found.items()) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
