"""Time rounds of FedAvg on MNIST in Flower's simulation and in ours, in turn on one machine.

    python -m scripts.lab.peers.flower MNIST OUT.csv [--pairs 5] [--rounds 20]

MNIST is the folder that has MNIST/raw. 100 clients of 600 images each, 10 a round, one pass in batches of 10 at rate
0.05, a logistic model; what is not said is the default of either. A row has a side's rounds a second, from the end of
round 1 to that of the last, so that neither counts its start, and its test accuracy. Run it where nothing else runs.
"""
# pyright: basic, reportMissingImports=false
# flwr is only in the peer's environment.

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scripts.lab.peers.environment import ROOT, add_row, enter, rows_of
from scripts.lab.peers.mnist import read_mnist

PACKAGES = ("flwr[simulation]==1.42.0", "torch==2.13.0")
CLIENTS, CHOSEN, BATCH, RATE = 100, 10, 10, 0.05


def main() -> None:
    """Time both sides, a pair after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path, help="folder of MNIST")
    parser.add_argument("out", type=Path, help="CSV file that gets a row a side and pair")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--side", choices=("theirs", "ours"), help="time one side once, and print it")
    given = parser.parse_args()
    if given.side == "theirs":
        enter("flwr", *PACKAGES)
    if given.side:
        print(json.dumps({"theirs": theirs, "ours": ours}[given.side](given.mnist.resolve(), given.rounds)))
        return
    for pair in range(len(rows_of(given.out)) // 2, given.pairs):
        for side in ("theirs", "ours") if pair % 2 else ("ours", "theirs"):
            command = [sys.executable, "-m", "scripts.lab.peers.flower", str(given.mnist.resolve()), str(given.out)]
            command += ["--rounds", str(given.rounds), "--side", side]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            add_row(given.out, {"pair": pair, "side": side, "rounds": given.rounds, **found})


def spent(times: list[float], accuracy: float) -> dict[str, float]:
    """Return rounds a second of the times at which rounds ended."""
    return {"rounds_per_s": round((len(times) - 1) / (times[-1] - times[0]), 3), "accuracy": round(accuracy, 4)}


def theirs(mnist: Path, rounds: int) -> dict[str, float]:
    """Train in Flower's simulation, by its own FedAvg."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    folder, accuracies = mnist / "MNIST" / "raw", [0.0]
    times: list[float] = []
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        images, labels = read_mnist(folder, "train")
        own = torch.arange(int(context.node_config["partition-id"]), len(labels), CLIENTS)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        for rows in own[torch.randperm(len(own))].split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
        told = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(own)})}
        return Message(content=RecordDict(told), reply_to=message)

    def tested(round_index: int, arrays: ArrayRecord) -> MetricRecord | None:
        if round_index:
            times.append(time.monotonic())
        if round_index == rounds:
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
            model.load_state_dict(arrays.to_torch_state_dict())
            images, labels = read_mnist(folder, "t10k")
            accuracies.append(float((model(images).argmax(1) == labels).float().mean()))
        return None

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=CHOSEN / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=tested)

    run_simulation(server, client, CLIENTS)
    return spent(times, accuracies[-1])


def ours(mnist: Path, rounds: int) -> dict[str, float]:
    """Train by the framework."""
    import vfl

    class Clock(vfl.Callback):
        """The times at which rounds end."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def on_round(self, loop: Any, round_index: int, metrics: Any) -> None:
            self.times.append(time.monotonic())

    settings: Any = {
        "mode": "horizontal",
        "data.dataset": {"kind": "mnist", "root": str(mnist)},
        "models.classifier.kind": "logistic",
        "training.rounds": rounds,
        "training.batch_size": BATCH,
        "training.optimizer": {"learning_rate": RATE, "momentum": 0.0, "weight_decay": 0.0},
        "horizontal.clients": CLIENTS,
        "horizontal.clients_per_round": CHOSEN,
        "horizontal.local_epochs": 1,
        "horizontal.partition": {"kind": "iid", "shards_per_client": None},
        "evaluation.every": rounds,
        "checkpoint.every": rounds,
    }
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        run = vfl.train("horizontal/fedavg", settings, run_dir=Path(folder) / "run", callbacks=[clock])
        return spent(clock.times, run.summary["test_accuracy"])


if __name__ == "__main__":
    main()
