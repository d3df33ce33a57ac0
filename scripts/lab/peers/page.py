"""Write docs/results/peers/README.md from the rows beside it: python -m scripts.lab.peers.page [--check].

With --check nothing is written, and a page that differs from the rows is exit code 2.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import Any

from scripts.lab.peers.environment import ROOT, rows_of
from scripts.lab.studies.differences import over_seeds
from vfl.reports.markdown import table
from vfl.runs.atomic import write_atomically

RESULTS = ROOT / "docs" / "results"
FOLDER = RESULTS / "peers"
PAGE = FOLDER / "README.md"
HEADINGS = ("what", "theirs (published)", "theirs (here)", "ours", "ratio")
NONE = "–"
MARGIN = 1.0
"""Points by which one exchange may be worse and still as good, as declared."""


TEXT = """# Beside other projects

**Where ours loses.** APC-VFL needs one exchange on breast cancer where ours takes {exchanges} to an AUC of .9955: its
owners learn alone, ours are trained together, a batch at a time. On the development tables {lost_tables}; one split,
no interval, and the others have all columns in one place. In EF-VFL's setting {behind}.

**One exchange of embeddings that owners learn alone**, tried in our laboratory, accuracy less that of ordinary
training (as good: the lower end is above -1 point; worse: the upper end is below it):

{one_exchange}

{table}

Published numbers stand where a text that we could read prints them; – means no number. Accuracies and AUC are means
over seeds. A ratio is ours over the best of theirs; where it says so, theirs or the other's bytes over ours in 4
bits; of one exchange it is over ordinary training. Written by `python -m scripts.lab.peers.page` from the rows in
this folder and [development.jsonl](../tables/development.jsonl); 27 November 2026, one thread. No peer's code is in
this repository.

- **Tables**: `VerticalClassifier` and `VerticalRegressor` at their defaults with the columns at two owners;
  RealMLP-TD, scikit-learn's boosting and a linear model at theirs on the joined table. The same 80 % of the rows
  train. AUC of two classes, accuracy of more, RMSE of amounts, of which less is better. Tables of `table_defaults`
  that are missing here were not run.
- **APC-VFL** (arXiv:2410.17648): 398 rows train, 171 test, means at the owner of the labels, errors and worst values
  at the other, seeds 0 to 4. Its abstract speaks of accuracy and F1; we found no package of it. Batches of 32; 12
  exchanges are one pass.
- **EF-VFL** (arXiv:2406.14420): its MNIST setting by its public code (commit 02fb393), and by ours with an own head
  that takes the mean. Bytes go up only, indices of top-k counted with 20 bits each, which its own count leaves out.
  Its published accuracies could not be had here. Labels are shared in theirs and stay at the server in ours. Methods
  and seeds of the setting that are missing were not run.
- **One exchange**: `scripts/lab/one_exchange.yaml` declares seeds, endpoint and controls. Untrained is the control that
  never learned; then one pass trains on from one exchange. Accuracy after the last step; bytes both ways, without
  tests. The tables are small and easy to encode; CIFAR-10 quadrants, where an autoencoder may do worse, were declared
  and not run.
- **Times** wait for a machine on which nothing else runs. NVFlare's package has the workflow of split learning
  (`splitnn_workflow`) but no learner for it, so its example was not called.
- **VertiBench** installs; its letter data are no part of the package, and it was not run. **SecretFlow's PSI**
  (package spu), **pfl-research** and **fedjax** install and were not run.

Installed and imported, each in an environment of its own (Python 3.11): {works}. What a package refused, in its own
words:

{refused}

```
python -m scripts.lab.peers.installs docs/results/peers/installs.csv
python -m scripts.lab.peers.realmlp PYDATASET docs/results/peers/realmlp.csv
python -m scripts.lab.peers.breast_cancer docs/results/peers/breast_cancer.csv
python -m scripts.lab.peers.ef_vfl theirs MNIST docs/results/peers/ef_vfl.csv --code EF-VFL
python -m scripts.lab.peers.ef_vfl ours MNIST docs/results/peers/ef_vfl.csv
python -m scripts.lab.one_exchange docs/results/peers/one_exchange.csv --pydataset PYDATASET --images CIFAR10
python -m scripts.lab.peers.flower MNIST docs/results/peers/flower.csv
python -m scripts.lab.peers.page
```
"""


def main() -> int:
    """Write the page, or look whether it is what the rows say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    if check:
        return 0 if PAGE.read_text(encoding="utf-8") == written() else 2
    write_atomically(PAGE, written())
    return 0


def written() -> str:
    """Return the page."""
    tables, lost = of_tables()
    compressed, behind = of_ef_vfl()
    cancer, exchanges = of_breast_cancer()
    one = of_one_exchange()
    rows = [*cancer, *compressed, *one[0], *tables, *TIMES]
    text = TEXT
    refused = [f"- {row['peer']} ({row['packages']}): `{row['refusal']}`" for row in installs() if row["works"] == "no"]
    refused += [
        f"- pytabkit on {row['table']}: `{row['refusal']}`" for row in rows_of(FOLDER / "realmlp.csv") if row["refusal"]
    ]
    works = ", ".join(f"{row['peer']} {row['version']}" for row in installs() if row["works"] == "yes")
    filled = {
        "exchanges": exchanges,
        "lost_tables": lost,
        "behind": behind,
        "one_exchange": "\n".join(f"- {each}" for each in one[1]),
        "table": "\n".join(table(HEADINGS, rows)),
        "works": works,
        "refused": "\n".join(refused) or "- none",
    }
    for name, told in filled.items():
        text = text.replace("{" + name + "}", told)
    return text


TIMES = (
    ("FedAvg on MNIST, logistic, rounds a second (Flower)", NONE, "`flower`", "`flower`", "not yet timed"),
    ("split learning, seconds an exchange (NVFlare)", NONE, NONE, NONE, "not yet timed"),
)
"""Rows whose numbers wait for a quiet machine."""


def installs() -> list[dict[str, str]]:
    """Return which peers installed."""
    return rows_of(FOLDER / "installs.csv")


def of_tables() -> tuple[list[Sequence[str]], str]:
    """Return a row for each development table that RealMLP took, and the sentence on those where ours is not best."""
    with (RESULTS / "tables" / "development.jsonl").open(encoding="utf-8") as file:
        others = {(row["table"], row["model"]): row for row in map(json.loads, file) if row["split"] == 0}
    rows: list[Sequence[str]] = []
    lost: list[str] = []
    scored = [row for row in rows_of(FOLDER / "realmlp.csv") if not row["refusal"]]
    for row in scored:
        name, metric = row["table"], next(each for each in ("auc", "accuracy", "rmse") if row[each])
        peers = {"RealMLP-TD": float(row[metric])}
        peers |= {model: others[name, model][metric] for model in ("boosting", "linear")}
        own = others[name, "defaults"][metric]
        best = (min if metric == "rmse" else max)(peers.values())
        shown = "AUC" if metric == "auc" else "RMSE" if metric == "rmse" else metric
        told = ", ".join(f"{model} {number(value)}" for model, value in peers.items())
        rows.append((f"{name}, {shown}", NONE, told, number(own), f"{own / best:.3f}"))
        if (own > best) if metric == "rmse" else (own < best):
            winner = next(model for model, value in peers.items() if value == best)
            lost.append(f"{name} ({winner} {number(best)}, ours {number(own)})")
    said = f"ours is behind the best of the three on {len(lost)} of {len(scored)} tables: {', '.join(lost)}"
    return rows, said if lost else f"ours is behind on none of {len(scored)} tables"


def number(value: float) -> str:
    """Return a score: amounts whole, others with three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def of_breast_cancer() -> tuple[list[Sequence[str]], str]:
    """Return the row of APC-VFL's setting, and the exchanges that ours takes."""
    by_exchange: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows_of(FOLDER / "breast_cancer.csv"):
        by_exchange[int(row["exchanges"])].append(float(row["auc"]))
    reached = next(count for count in sorted(by_exchange) if mean(by_exchange[count]) >= 0.9955)
    pass_auc, goal = mean(by_exchange[12]), mean(by_exchange[reached])
    own = f"AUC {pass_auc:.4f} after 12, {goal:.4f} after {reached}"
    return [("breast cancer, exchanges (APC-VFL)", "1", NONE, own, f"{reached}")], str(reached)


def of_ef_vfl() -> tuple[list[Sequence[str]], str]:
    """Return a row for each of EF-VFL's methods that was run, and the sentence on those ahead of ours."""
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows_of(FOLDER / "ef_vfl.csv"):
        found[row["method"]].append((100 * float(row["accuracy"]), float(row["bytes"]) / 1e6))
    means = {name: (mean(a for a, _ in each), mean(b for _, b in each), len(each)) for name, each in found.items()}
    own = {name: each for name, each in means.items() if name.startswith("ours")}
    if not own:
        return [], "it was not run"
    chosen = own["ours, 4 bits coded, error feedback"]
    rows: list[Sequence[str]] = []
    ahead: list[str] = []
    shown = f"{chosen[0]:.1f} % at {chosen[1]:,.0f} MB"
    for name, (accuracy, megabytes, seeds) in means.items():
        what = f"MNIST quadrants, accuracy and uplink, {name}, {seeds} seed{'s' * (seeds > 1)}"
        ratio = f"{megabytes / chosen[1]:.2f} of our bytes"
        if name in own:
            rows.append((what, NONE, NONE, f"{accuracy:.1f} % at {megabytes:,.0f} MB", ratio))
            continue
        rows.append((what, NONE, f"{accuracy:.1f} % at {megabytes:,.0f} MB", shown, ratio))
        if megabytes <= chosen[1] and accuracy >= chosen[0]:
            ahead.append(name)
    if ahead:
        return rows, f"{', '.join(ahead)} is as accurate as ours in 4 bits at fewer bytes"
    run = ", ".join(name for name in means if name not in own)
    said = f"of theirs {run} alone was run; ours in 4 bits sends fewer bytes up at the same accuracy"
    return rows, said if run else "theirs was not run"


def of_one_exchange() -> tuple[list[Sequence[str]], list[str]]:
    """Return a row a table, and its sentence by the rule that was declared."""
    found: defaultdict[str, dict[tuple[str, str], Any]] = defaultdict(dict)
    for row in rows_of(FOLDER / "one_exchange.csv"):
        found[row["table"]][row["method"], row["seed"]] = (100 * float(row["accuracy"]), int(row["bytes"]))
    rows: list[Sequence[str]] = []
    said: list[str] = []
    for name, runs in found.items():
        seeds = sorted({seed for _, seed in runs if all((each, seed) in runs for each in METHODS)})
        if len(seeds) < 3:
            continue
        score = {each: mean(runs[each, seed][0] for seed in seeds) for each in METHODS}
        sent = {each: mean(runs[each, seed][1] for seed in seeds) for each in METHODS}
        gap = over_seeds([runs["one exchange", seed][0] - runs["ordinary", seed][0] for seed in seeds])
        once = over_seeds([runs["one exchange", seed][0] - runs["one pass", seed][0] for seed in seeds])
        assert gap is not None
        assert once is not None
        low, high = gap.mean - gap.half_width, gap.mean + gap.half_width
        verdict = "as good" if low > -MARGIN else "worse" if high < -MARGIN else "undecided"
        fewer, more = (sent[each] / sent["one exchange"] for each in ("ordinary", "one pass"))
        said.append(
            f"{name}, {len(seeds)} seeds: **{gap.mean:+.1f} ± {gap.half_width:.1f} points at {fewer:.0f} times fewer "
            f"bytes ({verdict})**; {once.mean:+.1f} ± {once.half_width:.1f} against one ordinary pass, which sends "
            f"{more:.1f} times as much; encoders that never learned reach {score['untrained']:.1f} %, trained ones "
            f"{score['one exchange']:.1f} %."
        )
        shown = [f"{score[each]:.1f} % at {sent[each] / 1e6:.2f} MB" for each in METHODS]
        rows += [
            (f"{name}, accuracy, {each} (as APC-VFL, ours)", NONE, NONE, told, f"{score[each] / score['ordinary']:.3f}")
            for each, told in zip(METHODS, shown, strict=True)
        ]
    return rows, said


METHODS = ("one exchange", "untrained", "one pass", "ordinary", "then one pass")

if __name__ == "__main__":
    sys.exit(main())
