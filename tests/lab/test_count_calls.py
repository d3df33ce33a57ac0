"""How much a reader walks through, frozen: who exceeds a number makes the way longer for everybody."""

import pytest

from scripts.lab.count_calls import count_exchange, count_prediction

FROZEN = {"exchange": (88, 23), "prediction": (257, 41)}
"""Most functions, and most files, of one exchange and of one row to its score. Lower them with the code."""


@pytest.mark.parametrize("way", FROZEN)
@pytest.mark.filterwarnings("ignore:lightweighting")
def test_no_way_becomes_longer(way: str):
    calls = count_exchange() if way == "exchange" else count_prediction()
    functions, files = FROZEN[way]
    assert 0 < len(calls) <= functions
    assert 0 < len({code.co_filename for code in calls}) <= files
