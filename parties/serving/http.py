"""The HTTP service of scores: POST /v1/predict and what an operator needs beside it.

Errors are problem details (RFC 9457). The framework writes the OpenAPI page, at /docs.
"""

import math
import ssl
from typing import Annotated, Any

import prometheus_client as prometheus
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from pydantic import BaseModel, Field, StrictFloat, StrictInt, StrictStr
from starlette.exceptions import HTTPException as StarletteHTTPException

from vfl.base.errors import plain
from vfl.data.drift import FEWEST, SHIFTED
from vfl.parties.network.training_page import PREFIX, family
from vfl.parties.serving.client_connection import ClientConnection, RequestGate, problem
from vfl.parties.serving.observed_outcomes import PERIOD, Outcomes, Period
from vfl.parties.serving.request_queue import Key, QueueFull, ReasonsAsked
from vfl.parties.serving.score_answers import (
    Cells,
    PredictRequest,
    PredictResponse,
    answer_of,
    key_of,
    reasons_of,
    shown,
)
from vfl.parties.serving.scorer import Scorer
from vfl.runs.run_folder import read_secret

MOST_CONNECTIONS = 1024
"""Most connections at a time; further ones are closed."""
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
"""Bounds of the latency histogram's bins."""


class Outcome(BaseModel):
    """Outcome of one key, reported later."""

    key: Cells
    outcome: StrictStr | StrictInt | StrictFloat
    """Name of the class; regression: the value."""


class OutcomesRequest(BaseModel):
    """Outcomes of keys that were scored."""

    outcomes: Annotated[list[Outcome], Field(min_length=1, max_length=10_000, fail_fast=True)]


class OutcomesResponse(BaseModel):
    """Number of outcomes noted."""

    noted: int
    unknown: list[str | list[str]]
    """Keys that have no score."""


class Problem(BaseModel):
    """Problem details of RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


def make_app(scorer: Scorer) -> FastAPI:
    """Return the service. Raises ConfigError for an unusable token."""
    settings = scorer.settings
    guard = [Depends(_check_token)] if settings.token else []
    app = FastAPI(title="Scores by key", version="1", redoc_url=None)
    metrics = prometheus.CollectorRegistry()
    metrics.register(_Collected(scorer))
    seconds = prometheus.Histogram(
        f"{PREFIX}predict_seconds", "Time of a request for scores", buckets=SECONDS, registry=metrics
    )
    scores = prometheus.Counter(f"{PREFIX}predictions", "Scores given", registry=metrics)
    requests = prometheus.Counter(f"{PREFIX}requests", "All requests by status", ["status"], registry=metrics)
    problems: dict[int | str, dict[str, Any]] = {
        code: {"model": Problem} for code in (400, 401, 413, 415, 422, 429, 503)
    }

    async def score(keys: list[Key], reasons: ReasonsAsked | None) -> bytes:
        future = scorer.submit(keys, reasons)
        with seconds.time():
            scored = await future
            answer = answer_of(scored, scorer.version.task, settings.when_absent)
        scores.inc(sum(each.values is not None for each in scored.scores))
        return answer

    @app.post("/v1/predict", dependencies=guard, responses=problems, response_model=PredictResponse)
    async def predict(asked: PredictRequest) -> Response:  # pyright: ignore[reportUnusedFunction]  # the framework calls it
        reasons = reasons_of(asked, scorer.version.task)
        keys = [key_of(cells, f"keys[{place}]", scorer.version.columns) for place, cells in enumerate(asked.keys)]
        try:
            return Response(await score(keys, reasons), media_type="application/json")
        except QueueFull as full:
            raise HTTPException(429, str(full), {"Retry-After": "1"}) from None

    app.include_router(_outcome_routes(scorer), dependencies=guard, responses=problems)
    app.include_router(_state_routes(scorer))

    @app.get("/metrics", dependencies=guard)
    async def measured() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(prometheus.generate_latest(metrics), media_type=prometheus.CONTENT_TYPE_PLAIN_0_0_4)

    @app.post("/v1/reload", dependencies=guard, status_code=202)
    async def reload() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        scorer.reload()
        return {"status": "the last checkpoint is taken before the next batch"}

    app.add_exception_handler(StarletteHTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_error)
    local = settings.token is None and settings.client_ca is None
    app.add_middleware(
        RequestGate, lambda status: requests.labels(status).inc(), token=read_secret(settings.token), local=local
    )
    return app


def _state_routes(scorer: Scorer) -> APIRouter:
    """Return what anybody may ask: what there is, and whether the service and its owners are there."""
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def begin() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"scores": "POST /v1/predict", "interface": "/docs", "status": "/readyz"}

    @router.get("/healthz")
    async def healthy() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok"}

    @router.get("/readyz", responses={503: {}})
    async def ready(response: Response) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        parties = scorer.ready()
        needed = all if scorer.settings.when_absent == "refuse" else any
        response.status_code = 200 if needed(parties.values()) else 503
        return {"model": scorer.version.digest, "parties": parties}

    return router


def _outcome_routes(scorer: Scorer) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/outcomes")
    def tell(told: OutcomesRequest) -> OutcomesResponse:  # pyright: ignore[reportUnusedFunction]
        kept = _kept(scorer)
        pairs = [
            (key_of(each.key, f"outcomes[{place}].key", scorer.version.columns), _outcome(each.outcome, place, scorer))
            for place, each in enumerate(told.outcomes)
        ]
        try:
            unknown = kept.note(pairs)
        except OSError as error:
            raise HTTPException(503, str(error), {"Retry-After": "60"}) from None
        return OutcomesResponse(noted=len(pairs) - len(unknown), unknown=[shown(key) for key in unknown])

    @router.get("/v1/outcomes")
    def periods() -> list[Period]:  # pyright: ignore[reportUnusedFunction]
        return _kept(scorer).periods(scorer.version.task)

    return router


def http_server(scorer: Scorer) -> uvicorn.Server:
    """Return the server, which serves until a signal ends it. Raises ConfigError for an unusable token."""
    settings = scorer.settings
    config = uvicorn.Config(
        make_app(scorer),
        http=ClientConnection,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=settings.idle_s,
        ws="none",
        timeout_graceful_shutdown=5,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        ssl_ca_certs=None if settings.client_ca is None else str(settings.client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if settings.client_ca is None else ssl.CERT_REQUIRED,
        server_header=False,
    )
    return uvicorn.Server(config)


async def _check_token(request: Request, _sent: Annotated[object, Depends(HTTPBearer(auto_error=False))]) -> None:
    """Refuse a request that the gate found to be without the token."""
    if not request.state.authorized:
        raise HTTPException(401, "send the token: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})


def _outcome(told: str | float, place: int, scorer: Scorer) -> float:
    names = scorer.version.task.names
    if names and str(told) not in names:
        raise HTTPException(400, f"outcomes[{place}].outcome: {told!r} is no class; they are {', '.join(names)}")
    try:
        value = float(names.index(str(told)) if names else told)
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise HTTPException(400, f"outcomes[{place}].outcome: {plain(str(told), 60)} is no number")
    return value


def _kept(scorer: Scorer) -> Outcomes:
    if scorer.outcomes is None:
        raise HTTPException(404, "scores are not kept for their outcomes; serving.outcomes names a file for them")
    return scorer.outcomes


def _problem(status: int, title: str, detail: str, headers: dict[str, str] | None = None) -> Response:
    return Response(problem(status, detail, title), status, headers, "application/problem+json")


async def _on_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    headers = dict(error.headers) if error.headers else None
    return _problem(error.status_code, "The request was refused", str(error.detail), headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "missing")
    if "json" not in kind:
        return _problem(422, "The request cannot be read", f"Content-Type is {kind[:100]}; send application/json")
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    status = 413 if first["type"] == "too_long" else 422
    return _problem(status, "The request cannot be read", f"{where}: {first['msg']}"[:300])


async def _on_error(_request: Request, _error: Exception) -> Response:
    return _problem(500, "The service failed", "its own log has the reason")


class _Collected:
    """The scorer's counters, read when they are requested."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def collect(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        """Return the metrics."""
        scorer, counters, task = self.scorer, self.scorer.counters, self.scorer.version.task
        gauges: dict[str, tuple[str, float]] = {
            "queue_keys": ("Keys that wait", scorer.waiting),
            "cached_embeddings": ("Embeddings that are kept", scorer.cached),
        }
        if (window := scorer.version.drift) is not None:
            gauges["drift_rows"] = ("Latest scores that are compared with those of the test samples", len(window))
            if len(window) >= FEWEST:  # with fewer it is large by chance
                told = f"Their population stability index; above {SHIFTED} they differ"
                gauges["score_stability_index"] = (told, window.stability(["score"]).get("score", 0.0))
        known, measured = (0, {}) if scorer.outcomes is None else scorer.outcomes.last(task)
        if scorer.outcomes is not None:
            gauges["outcomes"] = ("Scores whose outcomes are known", known)
        told = "Keys explained, by party and what it told of its columns"
        ready = {(party,): there for party, there in scorer.ready().items()}
        metrics = {(name,): value for name, value in measured.items()}
        return [
            family(CounterMetricFamily, "keys", "Keys by party and outcome", ["party", "outcome"], {**counters.rows}),
            family(CounterMetricFamily, "reasons", told, ["party", "disclosed"], {**counters.reasons}),
            CounterMetricFamily(f"{PREFIX}batches", "Batches scored", value=counters.batches),
            family(GaugeMetricFamily, "party_ready", "Whether a party can be asked", ["party"], ready),
            family(GaugeMetricFamily, "outcome_metric", f"Of the last {PERIOD} known outcomes", ["metric"], metrics),
            *(GaugeMetricFamily(PREFIX + name, *each) for name, each in gauges.items()),
        ]
