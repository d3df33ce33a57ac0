"""The findings of `lvfl audit`, as the console, the report and the exported card show them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vfl.base.errors import ConfigError

AUDIT = "leakage.json"
FEWEST_ROWS = 100
"""Training rows that the attacks need."""
TITLE = "What leaks"
HEADINGS = ("who", "by which attack", "knows", "measure", "found", "by chance", "leaks")
EXPLANATION = (
    "Found: with the range in which the true value probably lies (95 %). By chance: the same attack on shuffled data. "
    "An AUC of 0.5 and an error left of 1 tell nothing; an AUC near 0 tells as much as one near 1. Leaks: whether "
    "something was found, not how much; an attack that finds nothing is no proof that none can."
)


def read_audit(run_dir: Path, rounds: int) -> Mapping[str, Any] | None:
    """Return the audit of a run after so many rounds; None if there is none, or only one of another state of the run.

    Raises ConfigError for a file that `lvfl audit` did not write.
    """
    path = run_dir / AUDIT
    if not path.exists():
        return None
    try:
        audit = json.loads(path.read_text(encoding="utf-8"))
        audit_rows(audit)
        return audit if audit.get("rounds") == rounds else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); write it again: lvfl audit {run_dir}") from None


def audit_rows(audit: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row per finding, grouped by attacker; only the first row of a group names it."""
    findings: list[Mapping[str, Any]] = audit["findings"]
    attackers = list(dict.fromkeys(finding["attacker"] for finding in findings))
    ordered = sorted(findings, key=lambda finding: attackers.index(finding["attacker"]))
    before = [None, *(finding["attacker"] for finding in ordered)]
    return [
        _finding_row(finding, repeated=finding["attacker"] == last)
        for finding, last in zip(ordered, before, strict=False)
    ]


def verdict(audit: Mapping[str, Any]) -> str:
    """Return in a sentence how many attacks found something."""
    leaking = sum(bool(finding["leaks"]) for finding in audit["findings"])
    return f"{leaking} of {len(audit['findings'])} measurements found more than chance."


def _finding_row(finding: Mapping[str, Any], *, repeated: bool) -> tuple[str, ...]:
    known_rows = finding["known"]
    return (
        "" if repeated else finding["attacker"],
        finding["attack"],
        f"{known_rows} row{'s' if known_rows > 1 else ''}" if known_rows else "no row",
        finding["measure"],
        _show_interval(finding["found"]),
        _show_interval(finding["control"]),
        "yes" if finding["leaks"] else "no",
    )


def _show_interval(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.2f} ({estimate['low']:.2f} to {estimate['high']:.2f})"
