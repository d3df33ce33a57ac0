"""The index of claims: verdicts on made-up effects, measures on made-up rows, and that no page contradicts it."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scripts.lab.evidence import (
    RESULTS,
    ROOT,
    Claim,
    Evidence,
    effects_in_readme,
    effects_of,
    read_evidence,
    verdict,
    written,
)
from scripts.lab.measures import Effect, Measure, measured, median_interval
from vfl.base.errors import ConfigError

EVIDENCE = read_evidence()
EFFECTS = effects_of(EVIDENCE)
WRITTEN = written(EVIDENCE)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)? ± \d+(?:\.\d+)?")
PAGES = (ROOT / "README.md", ROOT / "docs" / "guide.md")
README = " ".join(" ".join(page.read_text(encoding="utf-8") for page in PAGES).split())
"""With the guide, to which it hands on what it has no room for."""


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(RESULTS)))
def test_the_index_and_the_tables_of_the_pages_are_what_the_rows_say(path: Path):
    assert path.read_text(encoding="utf-8") == WRITTEN[path]


def test_every_interval_in_readme_is_that_of_a_claim():
    known = {effect.quoted(EVIDENCE.claims[name].digits) for name, effect in EFFECTS.items()}
    known |= {each.lstrip("+-") for each in known}  # where words say the sign, as in "3.4 ± 2.6 s faster"
    quoted = set(NUMBER.findall(README.replace("−", "-")))
    assert quoted - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_of_a_table_of_measurements_is_in_the_index_or_on_the_page_that_its_section_names(page: Path):
    index = (RESULTS / "README.md").read_text(encoding="utf-8")
    for section in re.split(r"\n## ", page.read_text(encoding="utf-8")):
        for before, table in re.findall(r"(.*?)\| measured \|((?:\n\|[^\n]*)*)", section, re.DOTALL):
            for line in table.splitlines():
                linked = re.findall(r"\]\(([^)#]*results/\S+?README\.md)\)", before + line)
                known = index + "".join((page.parent / path).read_text(encoding="utf-8") for path in linked)
                for number in re.findall(r"\d+\.\d+", line.rpartition(" | ")[2]):
                    assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", known), line


@pytest.mark.parametrize(("name", "number"), effects_in_readme(EVIDENCE, EFFECTS).items())
def test_readme_quotes_the_number_of_its_claim(name: str, number: str):
    assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d]|\.\d)", README.replace("−", "-")), name


def file_at(commit: str, path: str) -> str:
    """Return a file of a past commit. Skips the test where the checkout has not the history."""
    known = subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True)
    if known.returncode:
        pytest.skip("a checkout without its history")
    shown = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, f"{commit} has no {path}"
    return shown.stdout


@pytest.mark.parametrize("name", EVIDENCE.settings)
def test_the_scripts_of_a_command_are_here_or_at_the_commit_that_it_names(name: str):
    setting = EVIDENCE.settings[name]
    modules = re.findall(r"python -m (scripts(?:\.\w+)+)", setting.command)
    paths = {f"{each.replace('.', '/')}.py" for each in modules}
    for path in paths | set(re.findall(r"scripts/lab/[\w/]+\.(?:yaml|py)", setting.command)):
        assert file_at(setting.commit, path) if setting.commit else (ROOT / path).exists(), path


def test_claims_of_declared_studies_are_those_that_were_declared():
    studies = yaml.safe_load(file_at("2ba7f87b", "scripts/lab/prunings.yaml"))
    declared = {
        (each["first"], each["second"], tuple(endpoint["rounds"]), each["claimed"], study["margin"])
        for study in studies.values()
        for each in study["comparisons"]
        for endpoint in study["endpoints"].values()
    }
    judged = {
        (_method(measure.first), _method(measure.second), measure.rounds, claim.claimed, claim.margin)
        for claim in EVIDENCE.claims.values()
        if (measure := claim.measure) is not None and measure.rows == "lvfl/prunings.csv" and measure.second is not None
        if claim.claimed == "lower"
    }
    assert judged <= declared
    assert len(judged) >= 12


def _method(name: object) -> str:
    return str(name).rpartition("/")[2]


def test_a_claim_is_pending_only_while_its_rows_are_missing():
    for claim in EVIDENCE.claims.values():
        if claim.pending and claim.measure is not None:
            with pytest.raises(ConfigError):
                measured(claim.measure, RESULTS)


def test_every_table_and_setting_has_its_claims_and_its_page():
    assert {claim.setting for claim in EVIDENCE.claims.values() if claim.setting} <= EVIDENCE.settings.keys()
    assert [each.page for each in EVIDENCE.settings.values() if not (RESULTS / each.page).exists()] == []
    assert [name for name, claim in EVIDENCE.claims.items() if claim.measure and not claim.setting] == []


WORD = re.compile(r"[^\s|]*\w[^\s|]*")
"""A number, or a link, is one as well."""


def test_the_results_have_at_most_twelve_thousand_words():
    """The page of other projects is none of our results, and has twelve hundred of its own."""
    words = {page: len(WORD.findall(page.read_text(encoding="utf-8"))) for page in RESULTS.rglob("*.md")}
    peers = words.pop(RESULTS / "peers" / "README.md")
    assert sum(words.values()) <= 12_000, words
    assert peers <= 1_200


def test_the_documents_have_at_most_twenty_eight_thousand_words():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "internals").glob("*.md")]
    words = {page: len(WORD.findall(page.read_text(encoding="utf-8"))) for page in pages if page.stem != "CHANGELOG"}
    assert sum(words.values()) <= 28_000, words


def test_no_row_of_a_table_needs_the_row_above():
    rows = [
        line for text in WRITTEN.values() for line in text.splitlines() if re.match(r"\|\s*(the same|that)\b", line)
    ]
    assert rows == []


def test_a_paper_s_claim_has_its_number_ours_and_the_control_in_one_row():
    index = (RESULTS / "README.md").read_text(encoding="utf-8")
    row = next(line for line in index.splitlines() if "DMS is above FedAvg, Case 1 (" in line)
    assert [cell.strip() for cell in row.split("|")[2:7]] == [
        "97.89/96.41",
        "89.2/87.4",
        "+1.8±0.6",
        "-0.3±0.4",
        "undecided",
    ]


def test_every_claim_stands_somewhere():
    text = "".join(WRITTEN.values())
    controls = {claim.control for claim in EVIDENCE.claims.values()}
    assert [name for name, claim in EVIDENCE.claims.items() if name not in controls and claim.claim not in text] == []


def test_results_are_small_and_have_no_code():
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    assert [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".py", ".sh")] == []


def judged(effect: Effect | None, control: Effect | None = None, **claim: object) -> str:
    """Return the verdict on one claim, against a control where one is given."""
    claims = {"it": Claim.model_validate({"claim": "it", **({"control": "other"} if control else {}), **claim})}
    effects = {"it": effect} if effect else {}
    if control:
        claims["other"] = Claim.model_validate({"claim": "other", **claim})
        effects["other"] = control
    return verdict(Evidence(claims=claims), effects, "it")


def interval(low: float, high: float, count: int = 5) -> Effect:
    return Effect((low + high) / 2, low, high, count, str(count))


def test_an_effect_is_found_only_where_its_interval_excludes_0():
    assert judged(interval(0.1, 2)) == "holds"
    assert judged(interval(-0.1, 2)) == "undecided"
    assert judged(interval(-2, -0.1)) == "fails"
    assert judged(interval(-2, -0.1), claimed="lower") == "holds"
    assert judged(None) == "not tried"
    assert judged(None, pending=True) == "not tried"


def test_an_effect_smaller_than_the_margin_is_none():
    assert judged(interval(-0.3, 0.4), margin=0.5) == "fails"
    assert judged(interval(-0.3, 0.6), margin=0.5) == "undecided"
    assert judged(interval(-0.6, 0.3), margin=0.5, claimed="lower") == "undecided"


def test_no_loss_is_shown_by_an_interval_above_the_margin():
    assert judged(interval(-0.4, 0.4), margin=0.5, claimed="none") == "holds"
    assert judged(interval(-0.6, 0.4), margin=0.5, claimed="none") == "undecided"
    assert judged(interval(-2, -0.6), margin=0.5, claimed="none") == "fails"
    with pytest.raises(ConfigError, match="margin"):
        judged(interval(-2, -0.6), claimed="none")


def test_several_tries_of_one_goal_widen_the_interval(tmp_path: Path):
    rows = ["method,seed,score"] + [f"{name},{seed},{0.1 * seed * (name == 'a')}" for seed in range(5) for name in "ab"]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    base = {"rows": "rows.csv", "kind": "score", "metric": "score", "scale": 1}
    base |= {"first": {"method": "a"}, "second": {"method": "b"}}
    one, five = (measured(Measure.model_validate(base | {"tries": tries}), tmp_path) for tries in (1, 5))
    assert one.quoted(3) == "+0.200 ± 0.196"  # t(0.975, 4) = 2.776, times 0.1581 / sqrt(5)
    assert five.quoted(3) == "+0.200 ± 0.326"  # t(0.995, 4) = 4.604


def test_a_lead_that_the_control_has_too_is_undecided():
    assert judged(interval(1, 2), control=interval(-0.5, 0.5), margin=0.5) == "undecided"
    assert judged(interval(1, 2), control=interval(-2, -1)) == "undecided"
    assert judged(interval(1, 2), control=interval(0.5, 1)) == "holds"
    assert judged(interval(1, 2), uncontrolled="its steps are longer") == "undecided"
    assert judged(interval(-1, 2), control=interval(-0.5, 0.5)) == "undecided"


def test_a_lead_is_undecided_while_it_is_open_whether_the_control_has_it_too():
    assert judged(interval(1, 2), control=interval(-0.5, 0.6), margin=0.5) == "undecided"
    assert judged(interval(1, 2), control=interval(-0.5, 0.6), uncontrolled="its steps are longer") == "undecided"


@pytest.mark.parametrize("count", [1, 2])
def test_two_seeds_decide_nothing(count: int):
    assert judged(interval(1, 2, count)) == "undecided"


def test_a_curve_is_compared_by_seed_over_its_rounds(tmp_path: Path):
    rows = ["study,method,seed,round,accuracy/test,simulated_time_s/total"]
    for seed, gap in ((0, 0.1), (1, 0.2), (2, 0.3)):
        for index in range(10):
            rows.append(f"s,a,{seed},{index},{0.05 * index + (gap if index > 7 else 0)},{index}")
            rows.append(f"s,b,{seed},{index},{0.05 * index},{2 * index}")
    rows += [f"s,a,3,{index},1,1" for index in range(10)]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    base = {"rows": "rows.csv", "studies": ["s"], "first": "a", "second": "b"}
    last = measured(Measure.model_validate(base | {"rounds": [8, 9]}), tmp_path)
    assert last.count == 3  # the fourth seed has no partner
    assert last.value == pytest.approx(20)
    assert last.quoted(1) == "+20.0 ± 24.8"  # 4.303 * 10 / sqrt(3)
    assert measured(Measure.model_validate(base | {"rounds": [0, 7]}), tmp_path).value == pytest.approx(0)
    seconds = {"kind": "seconds", "metric": "simulated_time_s/total", "target": 0.3, "scale": 1}
    assert measured(Measure.model_validate(base | seconds), tmp_path).value == pytest.approx(-6)
    with pytest.raises(ConfigError, match="has not all rounds"):
        measured(Measure.model_validate(base | {"rounds": [8, 10]}), tmp_path)


def test_settings_are_pooled_within_a_seed(tmp_path: Path):
    rows = ["study,method,seed,round,accuracy/test"]
    for seed in (0, 1, 2):
        for study, gap in (("easy", 0.1), ("hard", -0.1 + 0.01 * seed)):
            rows += [f"{study},a,{seed},0,{0.5 + gap}", f"{study},b,{seed},0,0.5"]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    measure = Measure(rows="rows.csv", studies=("easy", "hard"), first="a", second="b")
    effect = measured(measure, tmp_path)
    assert (effect.count, effect.counted) == (3, "3×2")
    assert effect.value == pytest.approx(0.5)


def test_paired_times_are_a_ratio_over_another(tmp_path: Path):
    case = {"group": "alpha 0.6", "case": "exact", "ratios": [0.2] * 5 + [0.4], "details": {"mac_ratio": 0.1}}
    (tmp_path / "times.json").write_text(json.dumps({"results": [case]}))
    base = {"rows": "times.json", "kind": "pairs", "scale": 1, "case": ["alpha 0.6"]}
    effect = measured(Measure.model_validate(base | {"over": "mac_ratio"}), tmp_path)
    assert (effect.value, effect.low, effect.high) == pytest.approx((2, 2, 4))
    with pytest.raises(ConfigError, match="0 cases"):
        measured(Measure.model_validate(base | {"case": ["alpha 0.7"]}), tmp_path)


@given(st.lists(st.integers(), min_size=6, max_size=40))
def test_the_interval_of_a_median_takes_as_few_values_as_hold_it(values: list[int]):
    """Of n values each side may leave out k - 1 with 2 P(Binomial(n, 1/2) < k) at most 5 %."""
    low, high = median_interval(values) or (0, 0)
    left_out = {6: 0, 8: 0, 9: 1, 10: 1, 11: 1, 12: 2, 15: 3, 20: 5, 40: 13}.get(len(values))
    if left_out is not None:
        ordered = sorted(values)
        assert (low, high) == (ordered[left_out], ordered[-1 - left_out])
    assert median_interval(values[:5]) is None
