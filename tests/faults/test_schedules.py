"""Seeded faults: whatever happens to a training, it ends with the undisturbed outcome or an error that was stated.

``python -m faults`` plays as many seeds as one likes (docs/results/reliability).
"""

from pathlib import Path
from typing import Any

import pytest
from faults.federation import prepare
from faults.schedules import play
from shorthand import release

pytestmark = [
    # What a killed process was about to do is never done: its server's end, for instance.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    # A party that was dropped for a while has no rows of those rounds, and says so.
    pytest.mark.filterwarnings("ignore:.* are damaged or missing:UserWarning"),
    # So few rows have not all digits.
    pytest.mark.filterwarnings("ignore:labels. only tested rows:UserWarning"),
]
SEEDS = (
    *range(4),
    *(release(seed) for seed in range(4, 49)),
    *(release(seed) for seed in (5178, 8223, 20017, 31100)),
)
"""5178: a peer that dies while the server is frozen is let go as soon as any other.

8223: a server ends at the moment at which a hello comes.

20017: a party dials while the server is frozen, which wakes up after the hello was due.

31100: under drop, both parties come back without their folders.
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("faults")
    undisturbed = prepare(folder)
    return folder / "data", undisturbed


@pytest.mark.parametrize("seed", SEEDS)
def test_a_training_ends_as_undisturbed_or_as_stated(
    seed: int, tmp_path: Path, prepared: tuple[Path, list[dict[str, Any]]]
):
    verdict = play(seed, tmp_path, *prepared)
    assert not verdict.wrong, (verdict.wrong, verdict.happened, verdict.ended)


def test_a_seed_repeats_exactly(tmp_path: Path, prepared: tuple[Path, list[dict[str, Any]]]):
    first, again = (play(4, tmp_path / name, *prepared) for name in ("first", "again"))
    assert first.happened
    assert (first.trace, first.happened, first.ended) == (again.trace, again.happened, again.ended)
