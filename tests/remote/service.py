"""``lvfl serve`` and its parties as processes, for the tests of the service of scores."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from predicted import predict_in_process

from vfl.base.absence import WhenAbsent
from vfl.parties.network.tls.certificates import SERVER
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
