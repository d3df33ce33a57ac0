"""Time rounds of FedAvg on MNIST in Flower's simulation, pfl-research or fedjax and in ours, in turn on one machine.

    python -m scripts.lab.peers.fedavg PEER MNIST OUT.csv [--model cnn] [--pairs 5] [--rounds 20]

MNIST is the folder that has MNIST/raw. 100 clients of 600 images each, 10 a round, one pass in batches of 10 at rate
0.05; logistic, or two 5x5 convolutions of 10 and 20 channels with pooling; what is not said is the default of either.
A row has a side's rounds a second, from the end of round 1 to that of the last, so that neither counts its start, and
its test accuracy. pfl-research leaves a client's images in their order. Run it where nothing else runs.
"""
# pyright: basic, reportMissingImports=false
# A peer is only in its own environment.

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

PACKAGES = {
    "flwr": ("flwr[simulation]==1.42.0", "torch==2.13.0"),
    "pfl": ("pfl==0.6.0", "torch==2.13.0"),
    "fedjax": (
        *("fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12", "optax==0.2.2", "chex==0.1.86"),
        *("numpy<2", "scipy<1.13", "torch==2.13.0"),
    ),
}
"""Packages by peer; fedjax 0.0.17 imports beside a newer JAX, and fails in its first round."""
CLASSIFIERS = {"logistic": "logistic", "cnn": "cnn_tsfl"}
"""Models, and their names in ours."""
CLIENTS, CHOSEN, BATCH, RATE = 100, 10, 10, 0.05


def main() -> None:
    """Time both sides, a pair after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=[*PACKAGES])
    parser.add_argument("mnist", type=Path, help="folder of MNIST")
    parser.add_argument("out", type=Path, help="CSV file that gets a row a side and pair")
    parser.add_argument("--model", choices=[*CLASSIFIERS], default="logistic")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--side", choices=("theirs", "ours"), help="time one side once, and print it")
    given = parser.parse_args()
    if given.side == "theirs":
        enter(given.peer, *PACKAGES[given.peer])
    if given.side:
        train = {"flwr": in_flower, "pfl": in_pfl, "fedjax": in_fedjax}[given.peer] if given.side == "theirs" else ours
        print(json.dumps(train(given.mnist.resolve(), given.rounds, given.model)))
        return
    for pair in range(len(rows_of(given.out)) // 2, given.pairs):
        for side in ("theirs", "ours") if pair % 2 else ("ours", "theirs"):
            command = [sys.executable, "-m", "scripts.lab.peers.fedavg", given.peer, str(given.mnist.resolve())]
            command += [str(given.out), "--model", given.model, "--rounds", str(given.rounds), "--side", side]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            add_row(given.out, {"pair": pair, "side": side, "rounds": given.rounds, **found})


def spent(times: list[float], accuracy: float) -> dict[str, float]:
    """Return rounds a second of the times at which rounds ended."""
    return {"rounds_per_s": round((len(times) - 1) / (times[-1] - times[0]), 3), "accuracy": round(accuracy, 4)}


def classifier(kind: str) -> nn.Module:
    """Return the model of images [B, 1, 28, 28] in PyTorch."""
    if kind == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    first = (nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(320, 10))


@torch.no_grad()
def tested_on(model: nn.Module, folder: Path) -> float:
    """Return the accuracy on the test images."""
    images, labels = read_mnist(folder, "t10k")
    return float((model(images).argmax(1) == labels).float().mean())


def in_flower(mnist: Path, rounds: int, kind: str) -> dict[str, float]:
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
        model = classifier(kind)
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
            model = classifier(kind)
            model.load_state_dict(arrays.to_torch_state_dict())
            accuracies.append(tested_on(model, folder))
        return None

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=CHOSEN / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        model = classifier(kind)
        strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=tested)

    run_simulation(server, client, CLIENTS)
    return spent(times, accuracies[-1])


def in_pfl(mnist: Path, rounds: int, kind: str) -> dict[str, float]:
    """Train in pfl-research's simulation, by its own FederatedAveraging."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset, get_user_sampler
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    folder, times = mnist / "MNIST" / "raw", list[float]()
    images, labels = read_mnist(folder, "train")
    clients = {each: PyTorchTensorDataset((images[each::CLIENTS], labels[each::CLIENTS])) for each in range(CLIENTS)}

    class Module(nn.Module):
        """The model, with what the package asks of it."""

        def __init__(self) -> None:
            super().__init__()
            self.model = classifier(kind)

        def loss(self, inputs: torch.Tensor, truth: torch.Tensor, **_: Any) -> torch.Tensor:
            return nn.functional.cross_entropy(self.model(inputs), truth)

        def metrics(self, *_: torch.Tensor) -> dict[str, Any]:
            return {}

    class Clock(TrainingProcessCallback):
        """The times at which rounds end."""

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            times.append(time.monotonic())
            return False, Metrics()

    module = Module()
    central = torch.optim.SGD(module.parameters(), 1.0)
    data = FederatedDataset(clients.__getitem__, get_user_sampler("minimize_reuse", range(CLIENTS)))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, rounds + 1, CHOSEN, None),
        SimulatedBackend(data, data, [WeightByDatapoints()]),
        PyTorchModel(module, torch.optim.SGD, central),
        NNTrainHyperParams(BATCH, 1, RATE),
        NNEvalHyperParams(None),
        callbacks=[Clock()],
    )
    return spent(times, tested_on(module.model, folder))


def in_fedjax(mnist: Path, rounds: int, kind: str) -> dict[str, float]:
    """Train in fedjax, by its own federated_averaging."""
    import fedjax
    import jax
    from jax.example_libraries import stax

    folder, times = mnist / "MNIST" / "raw", list[float]()
    images, labels = (each.numpy() for each in read_mnist(folder, "train"))
    images = images.transpose(0, 2, 3, 1)  # fedjax has channels last
    clients = {each: {"x": images[each::CLIENTS], "y": labels[each::CLIENTS]} for each in range(CLIENTS)}
    blocks = [stax.Conv(10, (5, 5)), stax.Relu, stax.MaxPool((2, 2), (2, 2))]
    blocks += [stax.Conv(20, (5, 5)), stax.Relu, stax.MaxPool((2, 2), (2, 2))]
    model = fedjax.create_model_from_stax(
        *stax.serial(*(blocks if kind == "cnn" else []), stax.Flatten, stax.Dense(10)),
        sample_shape=(-1, 28, 28, 1),
        train_loss=lambda batch, told: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], told),
        eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
    )
    sgd, batches = fedjax.optimizers.sgd, fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH)
    train = fedjax.algorithms.fed_avg.federated_averaging(fedjax.model_grad(model), sgd(RATE), sgd(1.0), batches)
    state = train.init(model.init(jax.random.PRNGKey(0)))
    data = fedjax.InMemoryFederatedData(clients)
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, CHOSEN, seed=0)
    for _ in range(rounds):
        state, _told = train.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        times.append(time.monotonic())
    images, labels = (each.numpy() for each in read_mnist(folder, "t10k"))
    test = fedjax.ClientDataset({"x": images.transpose(0, 2, 3, 1), "y": labels})
    found = fedjax.evaluate_model(model, state.params, test.padded_batch(batch_size=1000))
    return spent(times, float(found["accuracy"]))


def ours(mnist: Path, rounds: int, kind: str) -> dict[str, float]:
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
        "models.classifier.kind": CLASSIFIERS[kind],
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
