"""Requests for scores that the framework need not read: answered with the bytes that it would have sent."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vfl.config.serving import ServingConfig
from vfl.core.tasks import Classification
from vfl.parties.serving import http as service
from vfl.parties.serving.request_queue import QueueFull, Score, Scored

JSON = (b"content-type", b"application/json")
TOKEN = "the token of all clients"
WELL_FORMED = [
    b'{"keys": ["1"]}',
    b'{"keys":["1", 2, "\\u00e9\\"", -7]}',
    '{"keys": ["é"]}'.encode(),
    b' {"keys" : [0]}\n',
]
ODD = [
    *(b"", b"{", b"[]", b"null", b"{}", b'{"keys": []}', b'{"keys": "1"}', b'{"keys": {"1": 2}}', b'{"keys": [[]]}'),
    *(b'{"keys": [true]}', b'{"keys": [1.0]}', b'{"keys": [null]}', b'{"keys": [["1", "2"]]}', b'{"keys": [[["1"]]]}'),
    *(b'{"keys": ["1"], "more": 1}', b'{"keys": ["1"], "keys": ["2"]}', b'{"KEYS": ["1"]}', b'{"keys": ["1"]} x'),
    *(
        b'{"keys": ["\\ud800"]}',
        b'{"keys": ["\xff"]}',
        b'\xef\xbb\xbf{"keys": ["1"]}',
        '{"keys": ["1"]}'.encode("utf-16"),
    ),
    *(b'{"keys": [' + b"9" * 30 + b"]}", b'{"keys": [' + b"9" * 5000 + b"]}", b'{"keys": ["' + b"a" * 600 + b'"]}'),
    *(b'{"keys": [NaN]}', b'{"keys": [1e3]}', b"[" * 5000, json.dumps({"keys": [*range(65)]}).encode()),
]
HEADS = [
    [JSON],
    [],
    [(b"content-type", b"text/plain")],
    [(b"content-type", b"application/json; charset=utf-8")],
    [(b"content-type", b"text/plain"), JSON],
    [JSON, (b"host", b"evil.example")],
    [JSON, (b"authorization", b"Bearer " + TOKEN.encode())],
    [JSON, (b"authorization", b"bearer " + TOKEN.encode())],
    [JSON, (b"authorization", b"Bearer another \xe9")],
]


def make(columns: tuple[str, ...], given: dict[str, Any]) -> Any:
    def submit(keys: list[tuple[str, ...]]):
        if ("full",) in keys:
            raise QueueFull("9 keys wait, serving.queue is 9")

        async def scored() -> Scored:
            if ("fails",) in keys:
                raise RuntimeError("the scorer failed")
            return Scored("v", tuple(Score(key, (0.25, 0.75), {"bank": "row"}) for key in keys))

        return scored()

    version = SimpleNamespace(digest="v", columns=columns, drift=None, task=Classification(2, names=("no", "é")))
    return SimpleNamespace(settings=ServingConfig(**given), submit=submit, version=version, outcomes=None)


def answered(app: Any, head: list[tuple[bytes, bytes]], body: bytes, method: str, path: str) -> list[Any]:
    """All that the service sends, with the reason of its failure, if any."""
    sent: list[Any] = []
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": head, "http_version": "1.1", "scheme": "http", "root_path": "", "server": ("", 1)}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append({name: message[name] for name in message if name != "more_body"})

    try:
        asyncio.run(app(scope, receive, send))
    except RuntimeError as error:
        sent.append(str(error))
    return sent


@pytest.fixture(scope="module", params=["open", "guarded", "two columns"])
def services(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A service, one whose framework reads all requests, and whether the first one has answered without it."""
    token, taken = tmp_path_factory.mktemp("token") / "token", list[bool]()
    token.write_text(TOKEN)
    token.chmod(0o600)
    settings = {"token": token} if request.param == "guarded" else {}
    scorer = make(("k", "l") if request.param == "two columns" else ("k",), settings)
    answer = service._Quick.answer

    async def noted(quick: Any, scope: Any, body: bytes) -> bytes | None:
        found = await answer(quick, scope, body)
        taken.append(found is not None)
        return found

    async def never(quick: Any, scope: Any, body: bytes) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service._Quick, "answer", noted)
        quick = service.make_app(scorer)
        patch.setattr(service._Quick, "answer", never)
        yield request.param, quick, service.make_app(scorer), taken


def compare(services: Any, head: Any, body: bytes, method: str = "POST", path: str = "/v1/predict") -> bool:
    """Whether the framework was passed by; its answer is the same."""
    _, quick, slow, taken = services
    taken.clear()
    assert answered(quick, head, body, method, path) == answered(slow, head, body, method, path)
    return any(taken)


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_every_answer_has_the_bytes_of_the_frameworks(services, head):
    for body in (*WELL_FORMED, *ODD):
        passed = compare(services, head, body)
        authorized = services[0] != "guarded" or (b"authorization", b"Bearer " + TOKEN.encode()) in head
        local = services[0] == "guarded" or (b"host", b"evil.example") not in head
        plain = [value for name, value in head if name == b"content-type"] == [b"application/json"]
        due = body in WELL_FORMED and services[0] != "two columns" and plain and authorized and local
        assert passed or not due, body
        assert not passed or (plain and authorized and local), body


def test_what_fails_and_other_ways_are_answered_by_the_framework(services):
    head = [JSON, (b"authorization", b"Bearer " + TOKEN.encode())]
    for body in (b'{"keys": ["full"]}', b'{"keys": ["fails"]}'):
        assert not compare(services, head, body)
    for method, path in (("GET", "/v1/predict"), ("POST", "/v1/predict/"), ("POST", "/v1/outcomes"), ("PUT", "/")):
        assert not compare(services, head, WELL_FORMED[0], method, path)


cells = st.one_of(st.text(max_size=5), st.integers(), st.none(), st.booleans(), st.floats(), st.just("\ud800"))
keys = st.one_of(cells, st.lists(cells, max_size=3))


@given(st.lists(keys, max_size=4), st.booleans(), st.sampled_from(["keys", "key"]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_keys_are_answered_alike(services, asked, ascii_only, name):
    body = json.dumps({name: asked}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    passed = compare(services, [JSON, (b"authorization", b"Bearer " + TOKEN.encode())], body)
    assert passed <= (name == "keys" and bool(asked))
