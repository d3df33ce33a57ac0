"""References for the flights, written without this package: python scripts/lab/tables/by_hand.py DIR [SEED ...].

DIR holds the tables of prepare_flights.py. Prints the test AUC of one joint model with the settings of
configs/flights.yaml, trained by a bare PyTorch loop on the joined table, and of gradient boosting on the same columns
(categories by target-free codes), for the airline alone, the weather alone, both, and all three.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.csv as arrow_csv
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from torch import nn

CATEGORIES = {
    "airline": ("carrier", "origin", "dest", "month", "weekday", "hour"),
    "weather": ("origin",),
    "register": ("manufacturer", "model", "engine"),
}
NO_FEATURES = ("flight", "time_hour", "tailnum", "late")
RATES = (0.002, 0.002, 0.0007, 0.0002)
"""Learning rate of each pass over the training flights."""


class Part(nn.Module):
    """An owner's part of the joint model: 64 and 32 hidden units, 8 outputs."""

    def __init__(self, numbers: int, sizes: list[int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in sizes)
        widths = [(numbers + 8 * len(sizes), 64), (64, 32)]
        hidden = [(nn.Linear(*width, bias=False), nn.BatchNorm1d(width[1]), nn.ReLU()) for width in widths]
        self.layers = nn.Sequential(*(each for layer in hidden for each in layer), nn.Linear(32, 8))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [B, 8] of rows [B, numbers + categories]."""
        codes = rows[:, self.numbers :].long()
        embedded = [table(codes[:, place]) for place, table in enumerate(self.tables)]
        return self.layers(torch.cat([rows[:, : self.numbers], *embedded], dim=1))


def read(path: Path, owner: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return an owner's numbers [N, F] (NaN where missing), codes of categories [N, K], and all columns."""
    table = arrow_csv.read_csv(path)
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    used = [name for name in columns if name not in NO_FEATURES]
    numbers = [columns[name].astype(float) for name in used if name not in CATEGORIES[owner]]
    codes = [np.unique(columns[name].astype(str), return_inverse=True)[1] for name in CATEGORIES[owner]]
    return np.stack(numbers, 1), np.stack(codes, 1), columns


def prepared(numbers: np.ndarray, codes: np.ndarray, train: np.ndarray) -> tuple[torch.Tensor, int, list[int]]:
    """Return prepared rows, the count of their numbers, and the sizes of the categories."""
    mean, std = np.nanmean(numbers[train], 0), np.nanstd(numbers[train], 0)
    gaps = np.isnan(numbers)
    rows = np.concatenate([np.nan_to_num((numbers - mean) / std), gaps[:, gaps[train].any(0)], codes], 1)
    return torch.tensor(rows, dtype=torch.float32), rows.shape[1] - codes.shape[1], (codes.max(0) + 1).tolist()


class Joint(nn.Module):
    """All owners' parts and the head over their outputs."""

    def __init__(self, parts: list[tuple[torch.Tensor, int, list[int]]]) -> None:
        super().__init__()
        self.models = nn.ModuleList(Part(numbers, sizes) for _, numbers, sizes in parts)
        self.head = nn.Sequential(nn.Linear(8 * len(parts), 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, rows: list[torch.Tensor]) -> torch.Tensor:
        """Return scores [B, 2]."""
        return self.head(torch.cat([model(own) for model, own in zip(self.models, rows, strict=True)], 1))


def joint_auc(parts: list, late: torch.Tensor, train: torch.Tensor, test: torch.Tensor, seed: int) -> float:
    """Return the test AUC of a joint model after a pass over the training flights for each of RATES."""
    torch.manual_seed(seed)
    joint = Joint(parts)
    optimizer = torch.optim.AdamW(joint.parameters(), weight_decay=0.3)
    for rate in RATES:
        optimizer.param_groups[0]["lr"] = rate
        order = train[torch.randperm(len(train))]
        for batch in order[: len(order) // 1024 * 1024].split(1024):
            loss = nn.functional.cross_entropy(joint([rows[batch] for rows, _, _ in parts]), late[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        scores = joint.eval()([rows[test] for rows, _, _ in parts])
    return roc_auc_score(late[test], scores[:, 1] - scores[:, 0])


def main(folder: Path, seeds: list[int]) -> None:
    """Print all references."""
    raw = {owner: read(folder / "matched" / f"{owner}.csv", owner) for owner in CATEGORIES}
    flights = raw["airline"][2]["flight"]
    tested = set(arrow_csv.read_csv(folder / "test_flights.csv").column("flight").to_pylist())
    is_test = np.array([flight in tested for flight in flights])
    late = torch.tensor([label in ("yes", True) for label in raw["airline"][2]["late"]]).long()
    train, test = (torch.tensor(np.flatnonzero(rows)) for rows in (~is_test, is_test))
    parts = {owner: prepared(numbers, codes, ~is_test) for owner, (numbers, codes, _) in raw.items()}
    for owners in (["airline"], ["weather"], ["airline", "weather"], list(raw)):
        aucs = [joint_auc([parts[owner] for owner in owners], late, train, test, seed) for seed in seeds]
        rows = np.concatenate([np.concatenate(raw[owner][:2], 1) for owner in owners], 1)
        boosted = HistGradientBoostingClassifier(max_iter=200, random_state=0).fit(rows[train], late[train])
        trees = roc_auc_score(late[test], boosted.predict_proba(rows[test])[:, 1])
        joint = ", ".join(f"{auc:.4f}" for auc in aucs)
        sys.stdout.write(f"{' + '.join(owners)}: joint model {joint}; gradient boosting {trees:.4f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or [0])
