"""Choices of ratios: shown with their reasons, warned of once if a goal cannot be met, and read back from a run.

Choices depend on clocks, so a resumed run repeats those in its rows and makes the others anew.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from vfl.config import ExperimentConfig
from vfl.core.costs.schedule import Ratios
from vfl.runs.loop import Metrics
from vfl.runs.run_folder import Row, whole_rows

REASON, EXPECTED = "reason", "predicted_exchange_s"


def decision_metrics(ratios: Mapping[str, Ratios]) -> Metrics:
    """Return every party's reason, as ``reason/PARTY/link: 1``, and the expected seconds of an exchange."""
    reasons = {f"{REASON}/{party}/{each.reason}": 1.0 for party, each in ratios.items() if each.reason}
    expected = {f"{EXPECTED}/{party}": each.exchange_s for party, each in ratios.items() if each.exchange_s is not None}
    return reasons | expected


def tell_unmet(ratios: Mapping[str, Ratios], told: Sequence[str]) -> list[str]:
    """Warn of parties that cannot meet the controller's goal, except those ``told`` of before; return all of them."""
    unmet = [party for party, each in ratios.items() if each.reason == "bound" and party not in told]
    if unmet:
        warnings.warn(
            f"lightweighting: {', '.join(unmet)} cannot meet the controller's goal within alpha_max and beta_max; "
            "the closest allowed ratios are used",
            stacklevel=2,
        )
    return [*told, *unmet]


def past_ratios(config: ExperimentConfig, run_dir: Path) -> dict[int, dict[str, Ratios]]:
    """Return the ratios that a controller chose earlier, by round, from the rows of the run's folder."""
    rows = whole_rows(run_dir) if config.lightweighting.measures else []
    return {int(row["round"]): {party: _decision(row, party) for party in config.parties} for row in rows}


def _decision(row: Row, party: str) -> Ratios:
    reasons = [tag.rpartition("/")[2] for tag in row if tag.startswith(f"{REASON}/{party}/")]
    alpha, beta = row.get(f"alpha/{party}", 0.0), row.get(f"beta/{party}", 0.0)  # none if the party never reported
    return Ratios(alpha, beta, "".join(reasons), row.get(f"{EXPECTED}/{party}"))
