"""Many arms of a table's training at once: python -m scripts.lab.tables.stacked ROWS.csv KEEL PYDATASET [--arms ...].

To choose among arms with little processor time. The same tables, splits and rivals as `small.py`, the choosing half
only, and the formulas of our training on two owners' columns; but the models of all arms and members are slices of one
tensor, trained on the same batches by batched products. Differences from the product: rows are standardised here, and
arms share batches. What is chosen is measured again with the product.

Shapes: M models (members of all arms), B batch, N rows, F inputs of an owner, D an embedding's width, C outputs.
"""
# pyright: basic, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false

import argparse
import math
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import train_test_split
from torch import Tensor

from scripts.lab.peers.environment import add_row, rows_of
from scripts.lab.tables.small import SPLITS, Table, dealt, former, read_table, rounded, tables_of

FEWEST, CATEGORY_SIZE, BINS, ROUNDS = 5, 8, 16, 10


class Arm(NamedTuple):
    """What an arm changes; the defaults are today's."""

    steps: float = 1.0
    members: int = 1
    linear: float = 0.0
    auxiliary: float = 0.0
    decay: float = 1.0
    """Times today's."""
    dropout: float = 0.2
    rate: float = 1.0
    numbers: str = "today"
    """today, standardised, quantiles, or both: members read either form, as the product's do."""
    together: bool = False
    """Each model reads both forms."""


def arm_of(text: str) -> Arm:
    """Return the arm of `steps=0.3+members=4`."""
    kinds = {name: type(value) for name, value in Arm()._asdict().items()}
    pairs = [word.split("=") for word in text.split("+") if word != "today"]
    return Arm(**{name: kinds[name](value) for name, value in pairs})


class Owner(NamedTuple):
    """An owner's prepared rows: numbers standardised and as quantiles, codes of categories, and the counts of codes."""

    standardised: Tensor
    quantiles: Tensor
    codes: Tensor
    sizes: list[int]


def prepared(train: pd.DataFrame, given: pd.DataFrame) -> tuple[Owner, Owner]:
    """Return training and test rows, prepared as the training rows say."""
    standard, bins, codes, sizes = ([], []), ([], []), ([], []), []
    for name in train.columns:
        both = [frame[name] for frame in (train, given)]
        if both[0].dtype == "category":
            counts = both[0].astype(str).value_counts()
            known = {value: place for place, value in enumerate(counts.index[counts >= FEWEST], 1)}
            sizes.append(1 + len(known))
            for side, values in zip(codes, both, strict=True):
                side.append(torch.tensor([known.get(value, 0) for value in values.astype(str)]))
            continue
        values = [torch.tensor(column.to_numpy(), dtype=torch.float64) for column in both]
        mean, spread = np.nanmean(values[0]), float(np.nanstd(values[0])) or 1.0
        filled = [torch.where(column.isnan(), mean, column) for column in values]
        edges = torch.tensor(np.unique(np.quantile(filled[0], np.linspace(0, 1, BINS + 1))))
        for place, column in enumerate(filled):
            standard[place].append(((column - mean) / spread)[:, None])
            if len(edges) > 1:
                bins[place].append(((column[:, None] - edges[:-1]) / edges.diff()).clamp(0, 1))
            if values[0].isnan().any():
                gaps = values[place].isnan().double()[:, None]
                standard[place].append((gaps - values[0].isnan().double().mean()) / values[0].isnan().double().std())
    rows = [len(train), len(given)]
    join = lambda parts, count: torch.cat(parts, 1).float() if parts else torch.zeros(count, 0)  # noqa: E731
    stack = lambda parts, count: torch.stack(parts, 1) if parts else torch.zeros(count, 0, dtype=torch.int64)  # noqa: E731
    first, second = (
        Owner(join(standard[each], rows[each]), join(bins[each], rows[each]), stack(codes[each], rows[each]), sizes)
        for each in (0, 1)
    )
    return first, second


class Stack:
    """The models of all arms and members, slices of one tensor each."""

    def __init__(self, owners: list[Owner], arms: list[Arm], outputs: int, quantiles: bool, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        slices = [(arm, place) for arm in arms for place in range(arm.members)]
        self.linear = torch.tensor([arm.linear for arm, _ in slices])[:, None, None]
        self.auxiliary = torch.tensor([arm.auxiliary for arm, _ in slices])
        self.dropout = torch.tensor([arm.dropout for arm, _ in slices])[:, None, None]
        self.decay = torch.tensor([arm.decay for arm, _ in slices])
        self.rate = torch.tensor([arm.rate for arm, _ in slices])
        count, size = len(slices), 8
        self.weights: list[Tensor] = []
        self.masks, self.models = [], []
        self.starts = [torch.tensor([0, *each.sizes]).cumsum(0) for each in owners]
        for owner, starts in zip(owners, self.starts, strict=True):
            widths = owner.standardised.shape[1], owner.quantiles.shape[1], CATEGORY_SIZE * len(owner.sizes)
            mask = torch.ones(count, 1, sum(widths))
            for place, (arm, member) in enumerate(slices):
                form = ("quantiles" if quantiles else "standardised") if arm.numbers == "today" else arm.numbers
                if form == "both":
                    form = ("standardised", "quantiles")[member % 2]
                if not arm.together:
                    start = widths[0] if form == "standardised" else 0
                    mask[place, :, start : start + widths[1 if form == "standardised" else 0]] = 0
            fan = mask.sum(2)
            self.masks.append(mask)
            wide = self._uniform(count, sum(widths), 64, fan=fan)
            own = [wide, self._full(count, 1, 64, 1), self._full(count, 1, 64, 0)]
            own += [self._uniform(count, 64, 32), self._full(count, 1, 32, 1), self._full(count, 1, 32, 0)]
            own += [self._uniform(count, 32, size), self._uniform(count, 1, size, fan=torch.tensor(32.0))]
            own += [self._full(count, sum(widths), size, 0), self._normal(count, int(starts[-1]), CATEGORY_SIZE)]
            own += [self._uniform(count, size, outputs), self._full(count, 1, outputs, 0)]  # auxiliary
            self.models.append(own)
        both = size * len(owners)
        self.head = [self._uniform(count, both, 16), self._uniform(count, 1, 16, fan=torch.tensor(float(both)))]
        self.head += [self._uniform(count, 16, outputs), self._uniform(count, 1, outputs, fan=torch.tensor(16.0))]
        self.head += [self._uniform(count, both, outputs)]
        self.moments = [(torch.zeros_like(each), torch.zeros_like(each)) for each in self.weights]

    def _kept(self, values: Tensor) -> Tensor:
        self.weights.append(values.requires_grad_())
        return self.weights[-1]

    def _uniform(self, *shape: int, fan: Tensor | None = None) -> Tensor:
        bound = (torch.tensor(float(shape[1])) if fan is None else fan.clamp(min=1)).rsqrt()
        bound = bound if bound.dim() == 0 else bound[:, :, None]
        return self._kept((torch.rand(shape, generator=self.draw) * 2 - 1) * bound)

    def _full(self, count: int, rows: int, columns: int, value: float) -> Tensor:
        return self._kept(torch.full((count, rows, columns), float(value)))

    def _normal(self, *shape: int) -> Tensor:
        return self._kept(torch.randn(shape, generator=self.draw))

    def outputs(self, owners: list[Owner], rows_B: Tensor, training: bool, fixed: list[Any] | None) -> Any:
        """Return outputs [M, B, C], the owners' own ones, and the statistics that the normalisations used."""
        embeddings, used, own = [], [], []
        for place, (owner, starts, mask, weights) in enumerate(
            zip(owners, self.starts, self.masks, self.models, strict=True)
        ):
            wide, g1, b1, middle, g2, b2, last, bias, straight, table, classifier, own_bias = weights
            numbers = torch.cat([owner.standardised[rows_B], owner.quantiles[rows_B]], 1)
            inputs = numbers.expand(len(mask), *numbers.shape)
            if owner.sizes:
                inputs = torch.cat([inputs, table[:, owner.codes[rows_B] + starts[:-1]].flatten(2)], 2)
            inputs = inputs * mask
            hidden = inputs
            for layer, (matrix, gain, shift) in enumerate(((wide, g1, b1), (middle, g2, b2))):
                hidden = hidden @ matrix
                if fixed is None:
                    mean, variance = hidden.mean(1, keepdim=True), hidden.var(1, keepdim=True, correction=0)
                    used.append((mean.detach(), variance.detach()))
                else:
                    mean, variance = fixed[2 * place + layer]
                hidden = ((hidden - mean) * (variance + 1e-5).rsqrt() * gain + shift).relu()
                if training:
                    keep = torch.rand(hidden.shape, generator=self.draw) >= self.dropout
                    hidden = hidden * keep / (1 - self.dropout)
            embedding = hidden @ last + bias + self.linear * (inputs @ straight)
            embeddings.append(embedding)
            own.append(embedding @ classifier + own_bias)
        joined = torch.cat(embeddings, 2)
        first, bias, second, last_bias, straight = self.head
        answer = (joined @ first + bias).relu() @ second + last_bias + self.linear * (joined @ straight)
        return answer, own, used

    def step(self, number: int, rate: float, decay: float) -> None:
        """Take a step of AdamW."""
        for weight, (mean, square) in zip(self.weights, self.moments, strict=True):
            gradient = weight.grad
            if gradient is None:
                continue
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            shape = (-1, 1, 1)
            rates = rate * self.rate.view(shape)
            with torch.no_grad():
                weight.mul_(1 - rates * decay * self.decay.view(shape))
                root = (square / (1 - 0.999**number)).sqrt_().add_(1e-8)
                weight.sub_(rates * (mean / (1 - 0.9**number)) / root)
            weight.grad = None


def trained(table: Table, split: int, arms: list[Arm]) -> list[tuple[np.ndarray, Any, Any]]:
    """Return, of arms with equally many steps, predictions of the test rows, and the labels of both sides."""
    stratify = None if table.amounts else table.labels
    train, test = train_test_split(range(len(table.labels)), test_size=0.2, random_state=split, stratify=stratify)
    sides = [prepared(each.iloc[train], each.iloc[test]) for each in dealt(table.columns).values()]
    if all(arm.numbers == "today" for arm in arms) and not (table.amounts and len(train) >= 1000):
        sides = [tuple(each._replace(quantiles=each.quantiles[:, :0]) for each in side) for side in sides]
    owners, given = [each[0] for each in sides], [each[1] for each in sides]
    known = table.labels[train]
    classes = None if table.amounts else np.unique(known)
    mean, spread = (known.mean(), known.std()) if classes is None else (0.0, 1.0)
    labels = (
        torch.tensor((known - mean) / spread).float()
        if classes is None
        else torch.tensor(np.searchsorted(classes, known))
    )
    outputs = 1 if classes is None else len(classes)
    settings = former(len(known), 0 if classes is None else outputs)
    batch, steps = settings["training.batch_size"], math.ceil(settings["training.steps_per_round"] * arms[0].steps)
    stack = Stack(owners, arms, outputs, classes is None and len(known) >= 1000, split)
    order = torch.zeros(0, dtype=torch.int64)

    def loss_of(answer: Tensor, wanted: Tensor) -> Tensor:
        if classes is None:
            return ((answer[:, :, 0] - wanted) ** 2).mean(1)
        return F.cross_entropy(answer.transpose(1, 2), wanted.expand(len(answer), -1), reduction="none").mean(1)

    for step in range(ROUNDS * steps):
        if len(order) < batch:
            order = torch.randperm(len(known), generator=stack.draw)
        rows_B, order = order[:batch], order[batch:]
        answer, own, _ = stack.outputs(owners, rows_B, True, None)
        loss = loss_of(answer, labels[rows_B])
        if bool(stack.auxiliary.any()):
            loss = loss + stack.auxiliary * sum(loss_of(each, labels[rows_B]) for each in own)
        loss.sum().backward()
        rate = 0.002 * (1 + math.cos(math.pi * (step // steps + 0.5) / ROUNDS)) / 2
        stack.step(step + 1, rate, 0.3)
    with torch.inference_mode():
        drawn = torch.randperm(len(known))[:2048]
        fixed = stack.outputs(owners, drawn, False, None)[2]
        answer = stack.outputs(given, torch.arange(len(test)), False, fixed)[0]
    told = answer[:, :, 0] * spread + mean if classes is None else answer.softmax(2)
    found, start = [], 0
    for arm in arms:
        found.append(told[start : start + arm.members].double().mean(0).numpy())
        start += arm.members
    return [(each, table.labels[test], classes) for each in found]


def scores(known: np.ndarray, wanted: np.ndarray, classes: Any) -> dict[str, Any]:
    """Return metric, score and log loss, as `small.measured`."""
    if classes is None:
        return {"metric": "rmse", "score": rounded(root_mean_squared_error(wanted, known)), "log_loss": ""}
    two = len(classes) == 2
    score = roc_auc_score(wanted, known[:, 1]) if two else accuracy_score(wanted, classes[known.argmax(1)])
    known = known / known.sum(1, keepdims=True)
    return {"metric": "auc" if two else "accuracy", "score": rounded(score)} | {
        "log_loss": rounded(log_loss(wanted, known, labels=classes))
    }


def main() -> None:
    """Add the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("keel", type=Path)
    parser.add_argument("pydataset", type=Path)
    parser.add_argument("--arms", nargs="*", default=["today"])
    parser.add_argument("--tables", nargs="*", default=tables_of("choosing"))
    parser.add_argument("--splits", type=int, nargs="*", default=SPLITS["choosing"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for split in given.splits:
        for name in given.tables:
            known = {(row["table"], row["arm"], row["split"]) for row in rows_of(given.rows)}
            wanted = [arm for arm in given.arms if (name, arm, str(split)) not in known]
            if not wanted:
                continue
            table = read_table(name, given.keel, given.pydataset)
            for share in sorted({arm_of(each).steps for each in wanted}):
                group = [each for each in wanted if arm_of(each).steps == share]
                started = time.process_time()
                found = trained(table, split, [arm_of(each) for each in group])
                seconds = round(time.process_time() - started, 2)
                for arm, each in zip(group, found, strict=True):
                    add_row(
                        given.rows, {"table": name, "arm": arm, "split": split, "group_s": seconds, **scores(*each)}
                    )


if __name__ == "__main__":
    main()
