"""Write the verdict of the committed rows on every claim: docs/results/README.md, and the tables of the pages.

    python -m scripts.lab.evidence [--check]

claims/*.yaml name the claims, the rows that measure them, the endpoint and the margin. A paper's claim stands in the
index or on its page, never on both; a control beside the claim that it controls. On the pages the tables stand between
``<!-- claims: NAME -->`` or ``<!-- accuracies: FILE -->`` and ``<!-- end -->``; commands.txt has the command of every
setting. With --check nothing is written, and files that would change are named. Exit codes: 0 done, 2 bad input or,
with --check, files that differ.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from scripts.lab.measures import MACS, SENT, Effect, Measure, measured, relative_cost, sides, summary_of_methods, table
from vfl.base.errors import ConfigError
from vfl.config.files import read_yaml
from vfl.config.settings import Section
from vfl.console import BAD_INPUT, DONE, OneLineParser, ShowConsole, command
from vfl.runs.atomic import write_atomically

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
BLOCK = re.compile(r"(<!-- (claims|accuracies): ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
PAPER = ("claim", "paper", "ours", "difference", "control", "verdict", "data, seeds")
OURS = ("claim", "verdict", "effect", "seeds", "page")
COSTS = ("bytes", "multiply-accumulates")
"""First over second."""
MEASURED = ("machine", "date")
"""Columns of a benchmark, as its rows name them."""
PAPERS = ("lvfl", "lvfl_prunings", "fedlga", "dms", "fedmom", "flare")
SOURCES = (*PAPERS, "readme", "owners", "pretrained", "frontier", "wire", "leakage", "benchmark")
"""Files of claims, in the order of the page."""
FEWEST = 3
"""Fewest seeds or pairs for a verdict."""
OWN = "README"
"""Source of this project's own claims."""
INTRODUCTION = """# What is known

- **Give each party a classifier of its own first**: three points for nothing. With it half of the compute, or 16 times
  fewer bytes, lose nothing against training with one loss. So do owners with labels who never meet.
- Without, 4 bits, coded, cost about 0.2 points; half the compute one or more.
- Pruning as in LVFL costs accuracy at once; most, not all, comes back within two rounds.
- Does pruning harm more than sparsification, as LVFL says? Undecided here; at its size we have one seed.
- FedLGA, DMS and FLARE mostly do not beat FedAvg with steps as long; FedMom does on Shakespeare.
- T-SFL saves the waiting that it promises. Longer steps explain much of the papers' accuracy: controls do as well.
- Embeddings and gradients reveal much about labels and features; `lvfl audit` shows how much.
- LVFL and FedMom print no numbers in their figures, so only the direction can be compared.
- Our data are smaller, or JPEG copies, and seeds are few: read a row's setting before its number.
- Corollary 1 was not tried as a prediction. Nothing was run on CUDA.
- Rows of claims follow from committed files. A test fails if README or guide quotes an interval of no claim.

## How to read a row

**Difference** (or effect), in points of accuracy unless a unit is given: first minus second of two runs of one seed.
Intervals are Student's, 95 % over seeds (benchmarks: median of paired ratios). **Ours**, **paper**: first/second; –:
the paper prints no number. **3×4**: three seeds, four settings pooled. **Control**: that difference against a
control, most often FedAvg with steps as long.

- **holds**: the interval excludes 0 on the claimed side, against the control too. For no loss, its lower end is within
  the margin.
- **fails**: it excludes 0 on the other side, or no effect exceeds the margin. For no loss, all of it is below.
- **undecided**: neither, fewer than three seeds, or the control does as well or was not run.
- **measured**: a number that claims nothing. **not tried**: no rows.

Horizontal accuracies are means of the last tenth of the evaluations. Targets are nine tenths of the median best
accuracy, to a percent.

`scripts/lab/claims/` has each claim's endpoint, direction and margin. Declared before their runs: `lvfl-prunings`, the
frontiers (not the margin of "not higher"), `stragglers`, leakage, `members` (not its margins, nor boosting). Also
`fedmom-robust`, `fedmom-direction` and T-SFL from `dms-selection` on. The others were declared afterwards.
Intervals are single ones; where a row names tries, Bonferroni widens it. This page judges by {count}, all pages by
{all}; about {false} would exclude 0 by chance if all effects were 0.
"""
OWN_TITLE = """## This project's own measurements

Further claims: [owners](owners/README.md), [tables](tables/README.md), [frontier](frontier/README.md),
[compression](compression/README.md), [staleness](staleness/README.md), [leakage](leakage/README.md),
[absence](absence/README.md), [controller](controller/README.md), [matching](matching/README.md),
[benchmarks](benchmark/README.md), [serving](serving/README.md), [reliability](reliability/README.md),
[what can be pruned](pruning/README.md).
"""
SETTINGS = """## Settings of the papers' rows

Sizes and commands: [commands.txt](commands.txt). Run each at the root of a checkout of the commit that it names:
`git worktree add ../study 2ba7f87b`.
"""


class Setting(Section):
    """Origin of some rows."""

    data: str = ""
    """The data set, of a paper's setting."""
    scale: str
    differs: str
    page: str
    command: str
    commit: str = ""
    """The last commit with the command's scripts; empty: they are still here."""


class Claim(Section):
    """A claim, and the rule of its verdict."""

    source: str = ""
    """Source, set from the name of its file."""
    figure: str = ""
    claim: str
    paper: str = ""
    """Number that the paper prints; empty if it prints none."""
    setting: str | None = None
    measure: Measure | None = None
    claimed: str = "higher"
    """higher, lower, none (no loss: within the margin) or nothing (a number)."""
    margin: float | None = None
    control: str | None = None
    """The claim that compares with a control."""
    uncontrolled: str = ""
    """Other differences between the two, if no control was run."""
    pending: bool = False
    """The claim was declared, but not trained yet."""
    unit: str = "points"
    digits: int = 1
    index: bool = True
    table: str = ""
    """Name of the page's table that it stands in."""
    readme: bool = False


class Evidence(Section):
    """The claims of a source, or of all."""

    source: str = ""
    settings: dict[str, Setting] = Field(default={})
    claims: dict[str, Claim] = Field(default={})


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--check", action="store_true", help="write nothing, name what would change")


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Write the index and the tables."""
    files = written(read_evidence())
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if not arguments.check:
            write_atomically(path, files[path])
        console.print(f"{'differs from the rows' if arguments.check else 'written'}: {path.relative_to(ROOT)}")
    return BAD_INPUT if arguments.check and stale else DONE


def read_evidence() -> Evidence:
    """Read all files of claims."""
    everything = Evidence()
    for name in SOURCES:
        found = Evidence.model_validate(read_yaml(Path(__file__).with_name("claims") / f"{name}.yaml"))
        everything.settings.update(found.settings)
        everything.claims.update(
            {each: claim.model_copy(update={"source": found.source}) for each, claim in found.claims.items()}
        )
    return everything


def written(evidence: Evidence) -> dict[Path, str]:
    """Return the index, and every page with its tables, as they follow from the rows."""
    effects = effects_of(evidence)
    verdicts = {name: verdict(evidence, effects, name) for name in evidence.claims}
    commands = [
        f"# {name}: {each.scale}\n# differs: {each.differs}\n{_commit(each)}{each.command.strip()}\n"
        for name, each in evidence.settings.items()
    ]
    files = {
        RESULTS / "README.md": index(evidence, effects, verdicts),
        RESULTS / "commands.txt": "\n".join(commands),
    }
    for path in sorted(RESULTS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path not in files and BLOCK.search(text):
            files[path] = BLOCK.sub(lambda found: _block(found, evidence, effects, verdicts), text)
    return files


def _commit(setting: Setting) -> str:
    return f"# at commit {setting.commit}\n" if setting.commit else ""


def effects_of(evidence: Evidence) -> dict[str, Effect]:
    """Return the effect of every claim that has rows."""
    return {
        name: measured(claim.measure, RESULTS)
        for name, claim in evidence.claims.items()
        if claim.measure and not claim.pending
    }


def verdict(evidence: Evidence, effects: Mapping[str, Effect], name: str) -> str:
    """Return the verdict on a claim."""
    claim = evidence.claims[name]
    if name not in effects:
        return "not tried"
    if claim.claimed == "nothing":
        return "measured"
    effect = effects[name]
    if effect.low is None or effect.high is None or effect.count < FEWEST:
        return "undecided"
    center = effect.reference
    low, high, margin = effect.low - center, effect.high - center, claim.margin
    if claim.claimed == "none":
        if margin is None:
            raise ConfigError(f"{name}: a claim of no loss needs a margin")
        return "holds" if low >= -margin else "fails" if high < -margin else "undecided"
    if claim.claimed == "lower":
        low, high = -high, -low
    if low > 0:
        controlled = not claim.control or verdict(evidence, effects, claim.control) == "holds"
        return "holds" if controlled and not claim.uncontrolled else "undecided"
    return "fails" if high < 0 or (margin is not None and high <= margin) else "undecided"


def index(evidence: Evidence, effects: Mapping[str, Effect], verdicts: Mapping[str, str]) -> str:
    """Return the page of the papers' claims, and of the most important of our own."""
    shown = {name: claim for name, claim in evidence.claims.items() if claim.index}
    judged = [name for name, effect in effects.items() if effect.low is not None and verdicts[name] != "measured"]
    count, false = len(shown.keys() & set(judged)), round(len(judged) / 20)
    lines = [INTRODUCTION.format(count=count, all=len(judged), false=false)]
    for source in dict.fromkeys(claim.source for claim in shown.values()):
        names = [name for name, each in shown.items() if each.source == source]
        if source == OWN:
            rows = [[*_own(evidence, effects, verdicts, name), _page(evidence, name)] for name in names]
            lines += [OWN_TITLE, *table(OURS, rows), ""]
        else:
            rows = [_papers(evidence, effects, verdicts, name) for name in names]
            lines += [f"## {source}", "", *table(PAPER, rows), ""]
    lines += [SETTINGS]
    for name, setting in evidence.settings.items():
        if setting.data:
            lines += [f"### {name}", "", f"Differs: {setting.differs}. [Page]({setting.page}).", ""]
    return "\n".join(lines).rstrip() + "\n"


def _claimed(claim: Claim) -> str:
    text = f"{claim.claim} ({claim.figure})" if claim.figure else claim.claim
    text += "; declared, not yet trained" if claim.pending else ""
    tries = claim.measure.tries if claim.measure else 1
    return text + (f"; {tries} tries" if tries > 1 else "")


def _papers(evidence: Evidence, effects: Mapping[str, Effect], verdicts: Mapping[str, str], name: str) -> list[str]:
    """Return the row of a paper's claim: its number, ours, their difference, that to the control."""
    claim, effect = evidence.claims[name], effects.get(name)
    row = [_claimed(claim), claim.paper or "–", "", "", "", verdicts[name], ""]
    if claim.measure and claim.setting and effect:
        row[2] = "/".join(f"{each:.{claim.digits}f}" for each in sides(claim.measure, RESULTS))
        row[3] = effect.text(claim.digits, _unit(claim))
        control = effects.get(claim.control or "")
        row[4] = (
            control.text(claim.digits, "") if control else f"none: {claim.uncontrolled}" if claim.uncontrolled else ""
        )
        data = evidence.settings[claim.setting].data
        row[6] = f"[{data}](#{claim.setting}), {effect.counted}"
    return row


def _own(evidence: Evidence, effects: Mapping[str, Effect], verdicts: Mapping[str, str], name: str) -> list[str]:
    """Return the first four cells of a claim's row."""
    claim, effect = evidence.claims[name], effects.get(name)
    text = _claimed(claim) + (f"; {claim.uncontrolled}, without a control" if claim.uncontrolled else "")
    control = effects.get(claim.control or "")
    text += f"; against the control {control.text(claim.digits, '')}" if control else ""
    shown = (effect.text(claim.digits, _unit(claim)), effect.counted) if effect else ("", "")
    return [text, verdicts[name], *shown]


def _unit(claim: Claim) -> str:
    return "" if claim.unit == "points" else claim.unit


def _page(evidence: Evidence, name: str) -> str:
    page = evidence.settings[evidence.claims[name].setting or ""].page
    return f"[{page.split('/')[-2]}]({page})"


def _block(found: re.Match[str], evidence: Evidence, effects: Mapping[str, Effect], verdicts: Mapping[str, str]) -> str:
    if found[2] == "accuracies":
        file, *studies = found[3].split()
        lines = summary_of_methods(RESULTS / file, studies)
    else:
        controls = {each.control for each in evidence.claims.values()}
        named = [
            name
            for name, claim in evidence.claims.items()
            if claim.table == found[3] and name not in controls and (claim.source == OWN or not claim.index)
        ]
        if not named:
            raise ConfigError(f"claims: none has the table {found[3]!r}")
        rows = [_own(evidence, effects, verdicts, name) for name in named]
        lines = table(OURS[:4], rows)
        for head, cells in ((COSTS, _costs), (MEASURED, _where)):
            further = [cells(evidence.claims[name].measure) for name in named]
            if 2 * sum(map(any, further)) > len(further):
                lines = table(OURS[:4] + head, [row + more for row, more in zip(rows, further, strict=True)])
    return found[1] + "\n" + "\n".join(lines) + "\n\n" + found[4]


def _costs(measure: Measure | None) -> list[str]:
    """Return the bytes of the first of two methods over those of the second, and so its multiply-accumulates."""
    sent = measure and relative_cost(measure, RESULTS, SENT)
    macs = measure and relative_cost(measure, RESULTS, MACS)
    return [_factor(sent) if sent else "", "" if not macs else f"{100 * macs:.0f}%" if macs < 2 else _factor(macs)]


def _where(measure: Measure | None) -> list[str]:
    """Return the machine and the day of a benchmark's rows."""
    if measure is None or not measure.rows.endswith(".json"):
        return ["", ""]
    run: Any = json.loads((RESULTS / measure.rows).read_text(encoding="utf-8"))
    machine = run.get("machine")
    if not machine:
        return ["", ""]
    name = "Xeon" if "Xeon" in machine["cpu"] else "EPYC"
    return [f"{name}-512" if machine["avx512_bf16"] else name, run["date"][:10]]


def _factor(ratio: float) -> str:
    return f"÷{1 / ratio:.1f}" if ratio < 1 else f"×{ratio:.1f}"


def effects_in_readme(evidence: Evidence, effects: Mapping[str, Effect]) -> dict[str, str]:
    """Return the number that README quotes, by claim."""
    return {name: effects[name].quoted(claim.digits) for name, claim in evidence.claims.items() if claim.readme}


if __name__ == "__main__":
    sys.exit(main())
