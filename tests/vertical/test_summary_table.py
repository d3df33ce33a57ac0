"""The table at the end of a run."""

import pytest
from made_runs import vertical_summary

from vfl.predict.mode import summary_table


@pytest.mark.parametrize(
    ("alpha", "beta", "changes", "lines"),
    [
        (0.0, 0.0, {}, 0),
        (0.0, 0.0, {"uplink_bytes": 1600.2}, 0),  # a header, of thousands of bytes
        (0.0, 0.0, {"uplink_bytes": 400}, 3),  # as whole numbers of 8 bits
        (0.0, 0.0, {"train_macs": 4000}, 3),  # pruned until the last round
        (0.5, 0.0, {}, 3),
        (0.0, 0.5, {}, 3),
        (0.5, 0.0, {"train_macs": 8000}, 3),  # asked for, and nothing saved: that is worth its line
    ],
)
def test_savings_are_told_where_some_were_asked_for_or_made(
    alpha: float, beta: float, changes: dict[str, float], lines: int
):
    caption = str(summary_table(vertical_summary(alpha, beta, 0.8) | changes).caption)
    assert len(caption.splitlines()) == lines
    assert ("saved" in caption) == (lines > 0)
