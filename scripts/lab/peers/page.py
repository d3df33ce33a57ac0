"""Write docs/results/peers/README.md from the rows beside it: python -m scripts.lab.peers.page [--check].

With --check nothing is written, and a page that differs from the rows is exit code 2.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from textwrap import fill

from scripts.lab.peers.anchors import FOLDER, anchors
from scripts.lab.peers.environment import rows_of
from vfl.base.estimates import student_half_width
from vfl.reports.tables import table
from vfl.runs.atomic import write_atomically

PAGE = FOLDER / "README.md"
HEADINGS = ("what", "theirs (published)", "theirs (here)", "ours", "ratio")
METHODS = ("ordinary", "one exchange", "untrained", "one pass", "then one pass")
STUDIED = ("table, seeds", *METHODS, "one exchange less ordinary", "fewer bytes", "verdict")
MARGIN = 1.0
"""Points by which one exchange may be worse and still as good, as declared."""

TEXT = """# Beside other projects

**Where ours loses, and why**

{lost}

**Where ours is ahead**

{won}

–: none could be read or run. Ratio: ours over their best.

{anchors}

## One exchange of embeddings that owners learn alone

The rival in bytes, declared in `scripts/lab/one_exchange.yaml` (commit 2ba7f87b): owners train an autoencoder on their
own rows and send embeddings once; the head trains on them. Accuracy in percent at megabytes both ways. As good: the
interval's lower end is above -1 point; worse: its upper end is below.

{study}

## Repeat it

Each package has an environment of its own: {works}. No peer's code is in this repository. Rows: this folder and
[development.jsonl](../tables/development.jsonl). Refused at installation, in their words:

{refused}

```
python -m scripts.lab.peers.NAME --help     # installs split_learning fedavg psi ef_vfl breast_cancer vertibench
python -m scripts.lab.peers.page
git worktree add ../studies 2ba7f87b        # has one_exchange and peers.realmlp
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
    all_anchors = anchors()
    study, verdicts = one_exchange()
    lost = [
        "**Bytes, if owners learn alone.** Ordinary training sends every row in every pass. One exchange (below) was "
        f"{verdicts}"
    ]
    text = TEXT
    filled = {
        "lost": bullets([each for anchor in all_anchors for each in anchor.lost] + lost),
        "won": bullets([each for anchor in all_anchors for each in anchor.won]),
        "anchors": "\n\n".join(
            "\n".join(
                [
                    f"## {anchor.title}",
                    "",
                    fill(anchor.how, 118, break_on_hyphens=False),
                    "",
                    *(table(HEADINGS, anchor.rows) if anchor.rows else ["Not measured yet."]),
                ]
            )
            for anchor in all_anchors
        ),
        "study": "\n".join(table(STUDIED, study)),
        "works": ", ".join(f"{row['peer']} {row['version']}" for row in installs() if row["works"] == "yes"),
        "refused": bullets(refusals()) or "- nothing.",
    }
    for name, told in filled.items():
        text = text.replace("{" + name + "}", told)
    return text


def bullets(sentences: Sequence[str]) -> str:
    """Return sentences as a list."""
    return "\n".join(fill(f"- {each}.", 118, subsequent_indent="  ", break_on_hyphens=False) for each in sentences)


def installs() -> list[dict[str, str]]:
    """Return which peers installed."""
    return rows_of(FOLDER / "installs.csv")


def refusals() -> list[str]:
    """Return what packages refused, in their own words."""
    told = [f"{row['peer']} ({row['packages']}): `{row['refusal']}`" for row in installs() if row["works"] == "no"]
    words: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows_of(FOLDER / "realmlp.csv"):
        words[row["refusal"]].append(row["table"])
    told += [f"pytabkit on {', '.join(names)}: `{refusal}`" for refusal, names in words.items() if refusal]
    return told + [
        f"spu, {row['side']}, {int(row['keys']):,} keys: `{row['refusal']}`"
        for row in rows_of(FOLDER / "psi.csv")
        if row["refusal"]
    ]


def one_exchange() -> tuple[list[Sequence[str]], str]:
    """Return a row of numbers for each table, and the study's sentence by the rule that was declared."""
    found: defaultdict[str, dict[tuple[str, str], tuple[float, int]]] = defaultdict(dict)
    for row in rows_of(FOLDER / "one_exchange.csv"):
        found[row["table"]][row["method"], row["seed"]] = (100 * float(row["accuracy"]), int(row["bytes"]))
    rows: list[Sequence[str]] = []
    told: defaultdict[str, list[str]] = defaultdict(list)
    for name, runs in found.items():
        seeds = sorted({seed for _, seed in runs if all((each, seed) in runs for each in METHODS)})
        if len(seeds) < 2:
            continue
        score = {each: mean(runs[each, seed][0] for seed in seeds) for each in METHODS}
        sent = {each: mean(runs[each, seed][1] for seed in seeds) for each in METHODS}
        gaps = [runs["one exchange", seed][0] - runs["ordinary", seed][0] for seed in seeds]
        gap, half = mean(gaps), student_half_width(gaps)
        low, high = gap - half, gap + half
        verdict = "as good" if low > -MARGIN else "worse" if high < -MARGIN else "undecided"
        fewer, difference = sent["ordinary"] / sent["one exchange"], f"{gap:+.1f} ± {half:.1f}"
        shown = [f"{score[each]:.1f} at {sent[each] / 1e6:.2f}" for each in METHODS]
        name = name.replace("cifar10", "CIFAR-10 quadrants")
        rows.append((f"{name}, {len(seeds)}", *shown, difference, f"{fewer:.0f} times", verdict))
        told[verdict].append(f"{name} ({fewer:.0f} times fewer)")
    return rows, "; ".join(f"{verdict} on {' and '.join(names)}" for verdict, names in told.items())


if __name__ == "__main__":
    sys.exit(main())
