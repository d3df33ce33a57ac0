"""``lvfl serve`` and its parties as processes, for the tests of the service of scores."""

import json
import socket
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from predicted import predict_in_process

from vfl.base.errors import WhenAbsent
from vfl.parties.network.tls.certificates import SERVER
from vfl.predict.reasons import Reasons, ReasonsWanted
from vfl.runs.stored_run import Run

SCRIPTS = Path(__file__).parents[2] / "scripts"
NEW = range(1000, 1150)
"""Keys of the rows to be scored."""


class Reply(NamedTuple):
    status: int
    body: Any


class Service:
    """``lvfl serve`` and its parties as processes."""

    def __init__(self, federation, tables: dict[str, Path], whole: Path) -> None:
        self.federation, self.tables, self.whole = federation, tables, whole
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, *names: str, server: tuple[str, ...] = (), party: tuple[str, ...] = ()) -> None:
        for name in names:
            if name == SERVER:
                argv = [
                    str(SCRIPTS / "serve.py"),
                    str(self.federation.run_dir),
                    f"serving.listen=127.0.0.1:{self.port}",
                ]
                self.federation.launch(SERVER, [*argv, *server])
            else:
                table = f"data.tables.{name}.serve={self.tables[name]}"
                self.federation.start(name, extra=("--serve", table, *party))

    def get(self, path: str) -> Reply:
        return self._open(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}"))

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | headers
        return self._open(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers))

    def score(self, *keys: Any) -> list[dict[str, Any]]:
        reply = self.post("/v1/predict", {"keys": list(keys)})
        assert reply.status == 200, reply
        return reply.body["scores"]

    def predicted(self, absent=(), when_absent: WhenAbsent = "refuse") -> dict[str, dict[str, float]]:
        """The probabilities by key and class that one process with all tables predicts, as in its table."""
        tables = {owner: path for owner, path in self.tables.items() if owner not in absent}
        heading, *rows = predict_in_process(Run(self.whole), None, absent, when_absent, tables).rows()
        classes = [name.removeprefix("p_") for name in heading[3:-1]]
        return {row[0]: dict(zip(classes, map(float, row[3:-1]), strict=True)) for row in rows}

    def explained(self, keys: Sequence[Any], reasons: bool | int = True, **more: Any) -> list[dict[str, Any]]:
        reply = self.post("/v1/predict", {"keys": list(keys), "reasons": reasons, **more})
        assert reply.status == 200, reply
        return reply.body["scores"]

    def predicted_reasons(
        self, when_absent: WhenAbsent = "refuse", of: str | None = None, absent: tuple[str, ...] = ()
    ) -> tuple[dict[str, int], Reasons]:
        """The reasons that one process with all tables gives, and each key's place in them."""
        tables = {owner: path for owner, path in self.tables.items() if owner not in absent}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*no placeholder was learned")
            wanted = ReasonsWanted(of)
            found = predict_in_process(Run(self.whole), None, absent, when_absent, tables, reasons=wanted)
        assert found.reasons is not None
        return {str(key[0]): place for place, key in enumerate(found.keys[1:])}, found.reasons

    def until(self, holds: Callable[[], bool]) -> None:
        until_s = time.monotonic() + 60
        while True:
            try:
                if holds():
                    return
            except OSError:
                pass
            assert time.monotonic() < until_s, self.federation.logs()
            time.sleep(0.05)

    def until_ready(self, *names: str) -> None:
        self.until(lambda: [name for name, there in self.get("/readyz").body["parties"].items() if there] == [*names])

    def _open(self, request: urllib.request.Request) -> Reply:
        try:
            answer: Any = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as refused:
            answer = refused
        with answer:
            text = answer.read()
            plain = answer.headers["content-type"].startswith("text/")
            return Reply(answer.status, text.decode() if plain else json.loads(text))


def check_reasons(scores: list[dict[str, Any]], places: dict[str, int], expected: Reasons) -> None:
    """Assert that the reasons of scores are the expected ones, of owners that tell amounts column by column."""
    for score in scores:
        row, told = places[score["key"]], score["reasons"]
        assert told["of"] == (expected.classes[int(expected.of_N[row])] if expected.classes else None)
        near = 1e-6 * max(1.0, float(expected.score_N.abs().max()))
        assert told["score"] == pytest.approx(float(expected.score_N[row]), abs=near)
        assert told["without_owners"] == pytest.approx(float(expected.without_N[row]), abs=near)
        moved = dict(zip(expected.owners, expected.moved_NK[row].tolist(), strict=True))
        assert told["owners"] == pytest.approx(moved, abs=near)
        assert sum(told["owners"].values()) == pytest.approx(told["score"] - told["without_owners"], abs=10 * near)
        for owner, own in expected.columns.items():
            if told["disclosed"][owner] != "amounts":
                assert owner not in told["columns"]
                continue
            amounts = dict(zip(own.names, own.moved_NC[row].tolist(), strict=True))
            assert told["columns"][owner] == pytest.approx(amounts, abs=10 * near)
            gained = told["score"] - told["reference"][owner]
            assert sum(told["columns"][owner].values()) == pytest.approx(gained, abs=1000 * near)
