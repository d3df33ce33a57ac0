"""network.on_party_loss: drop. Who was dropped is awaited by nobody, whatever happens to the others afterwards."""

from pathlib import Path
from typing import Any

import pytest
from faults.federation import SERVER, Federation, prepare, simulating
from faults.turns import Turns

pytestmark = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore:.* are damaged or missing:UserWarning",
    "ignore:labels. only tested rows:UserWarning",
)
DROP: dict[str, Any] = {"training": {"rounds": 8}, "network": {"on_party_loss": "drop"}}
NEVER_S = 1000.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dropped")
    prepare(folder)
    return folder / "data"


@pytest.mark.parametrize("away_s", [2.0, NEVER_S], ids=["the last one blinks", "the last one stays away"])
@pytest.mark.parametrize("dropped", ["party_1", "party_2"])
def test_a_party_dropped_earlier_is_not_awaited_with_the_last_one(
    dropped: str, away_s: float, data: Path, tmp_path: Path
):
    last = next(name for name in ("party_1", "party_2") if name != dropped)
    turns = Turns(0, 1200.0)
    with simulating(turns):
        federation = Federation(turns, tmp_path, data, DROP)
        server = federation.said[SERVER]

        def soon(what: Any) -> None:
            turns.at(turns.now_s + 0.05, what)

        def first() -> None:
            if "joined" not in server.getvalue() or not (tmp_path / SERVER / "metrics.jsonl").exists():
                soon(first)
                return
            federation.kill(dropped, NEVER_S, silently=False)
            soon(second)

        def second() -> None:
            if "; dropped: " not in server.getvalue():
                soon(second)
                return
            federation.kill(last, away_s, silently=False)
            if away_s == NEVER_S:
                turns.at(turns.now_s + 300, lambda: setattr(federation, "finished", True))

        soon(first)
        federation.run()
        end = next(each for each in federation.ended if each.name == SERVER)
    log = server.getvalue()
    assert "no party is left" in log, log
    assert f"waiting for {last}\n" in log, log
    if away_s == NEVER_S:
        assert (end.code, end.text) == (3, f"{last} did not join within network.wait_s = 60 s")
    else:
        assert end.code == 0, log
