"""A training's own health and metrics over HTTP, at ``network.metrics``: ``GET /healthz`` and ``GET /metrics``.

A thread with an event loop of its own answers with what the training has left here last, so the training waits for
nobody. A request can change nothing, and learns nothing that ``lvfl status`` does not show as well.
"""

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from vfl.base.errors import plain
from vfl.config import ConfigError
from vfl.parties.network.transport.listening import bounded, listening
from vfl.runs.loop import Metrics, Viewer, Watched

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

F = TypeVar("F", "CounterMetricFamily", "GaugeMetricFamily")

SETTING = "network.metrics"
MOST_CONNECTIONS = 16
"""Most connections at a time; further ones are closed."""
MOST_HEAD = 8192
"""Bytes of a request."""
REQUEST_LIMIT_S = 5.0
"""Longest time of a connection."""
LOOK_S = 0.5
"""Seconds between two looks at who is connected."""
DIRECTIONS = {"up": "uplink_bytes/", "down": "downlink_bytes/"}
"""Beginning of the tags of training messages' bytes, from a party up to the server and down."""


PREFIX = "lvfl_"
"""Beginning of all metrics' names."""
EXCHANGED = ("loss", "exchange_s")
"""Beginnings of the tags of values by samples or by party."""


class RoundsDone(NamedTuple):
    """The training after a round. The training's thread replaces it as one object, and nobody changes it."""

    done: int = 0
    rounds: int = 0
    """All rounds, once the training has begun."""
    ended_s: float = 0.0
    """Unix time of the last round's end, 0 before it."""
    last: Metrics = {}  # noqa: RUF012 - never changed
    """Latest value of every metric, by TensorBoard tag."""
    sent: Counter[str] = Counter()  # noqa: RUF012 - never changed
    """Bytes of this process's rounds, by tag."""


class TrainingPage(Viewer):
    """Notes rounds, and shows them while ``served``.

    Args:
        peers: names of those to whom there should be a connection.
    """

    def __init__(self, peers: Sequence[str]) -> None:
        self.peers = peers
        self.present: Callable[[], Collection[str]] = tuple[str, ...]
        """Returns the peers to whom there is a connection; called in the page's thread."""
        self.progress = RoundsDone()
        self._awaited_s = dict.fromkeys(peers, 0.0)

    def on_start(self, loop: Watched) -> None:
        """Note how many rounds there are."""
        self.progress = self.progress._replace(done=loop.next_round, rounds=loop.rounds)

    def on_round(self, loop: Watched, round_index: int, metrics: Metrics) -> None:
        """Note the round."""
        sent = {tag: int(value) for tag, value in metrics.items() if tag.startswith(tuple(DIRECTIONS.values()))}
        total = self.progress.sent + Counter(sent)
        self.progress = RoundsDone(round_index + 1, loop.rounds, time.time(), {**loop.last_metrics}, total)

    @contextmanager
    def served(self, address: str | None, log: Callable[[str], None]) -> Generator[None]:
        """Answer at HOST:PORT meanwhile; None: nowhere.

        Raises ConfigError where the address cannot be bound or prometheus-client is missing, TryLater where the port is
        taken.
        """
        if address is None:
            yield
            return
        try:
            from prometheus_client import CollectorRegistry
        except ImportError:
            raise ConfigError(f'{SETTING}: needs prometheus-client; pip install "lvfl[serve]"') from None
        registry = CollectorRegistry()
        registry.register(self)
        with listening(SETTING, address) as sockets:
            held = bounded(sockets, MOST_CONNECTIONS)
            loop = asyncio.new_event_loop()
            serving = loop.create_task(self._serve(held, registry))

            def run() -> None:
                try:
                    loop.run_until_complete(serving)
                except asyncio.CancelledError:
                    pass
                except Exception as error:  # whatever it is, it is no reason to end a training
                    log(f"warning: {SETTING}: nobody answers there any more ({plain(str(error))}); training continues")
                finally:
                    loop.close()

            thread = threading.Thread(target=run, name="metrics", daemon=True)
            thread.start()
            log(f"health and metrics at http://{address}/healthz and /metrics")
            try:
                yield
            finally:
                with suppress(RuntimeError):  # it has ended
                    loop.call_soon_threadsafe(serving.cancel)
                thread.join()
                for each in held:
                    each.close()

    def collect(self) -> Iterable["Metric"]:
        """Return the metrics, as prometheus-client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now, present = self.progress, {*self.present()}
        yield GaugeMetricFamily("lvfl_rounds", "Rounds of the training", now.rounds)
        yield GaugeMetricFamily("lvfl_rounds_done", "Rounds that are done", now.done)
        if now.ended_s:
            yield GaugeMetricFamily("lvfl_round_end_time_seconds", "Unix time of the last round's end", now.ended_s)
        last = {tuple(tag.partition("/")[::2]): value for tag, value in now.last.items()}
        losses = {(of,): value for (name, of), value in last.items() if name == "loss"}
        seconds = {(of,): value for (name, of), value in last.items() if name == "exchange_s"}
        tests = {(name,): value for (name, of), value in last.items() if of == "test" and name not in EXCHANGED}
        sent = {
            (tag.removeprefix(prefix), direction): total
            for direction, prefix in DIRECTIONS.items()
            for tag, total in now.sent.items()
            if tag.startswith(prefix)
        }
        connected = {(peer,): peer in present for peer in self.peers}
        awaited = {(peer,): self._awaited_s[peer] for peer in self.peers}
        yield family(GaugeMetricFamily, "loss", "Latest loss, by samples", ["samples"], losses)
        yield family(GaugeMetricFamily, "test", "Latest test result, by metric", ["metric"], tests)
        yield family(GaugeMetricFamily, "exchange_seconds", "Seconds of an exchange, last round", ["party"], seconds)
        yield family(CounterMetricFamily, "bytes", "Bytes of training messages", ["party", "direction"], sent)
        yield family(CounterMetricFamily, "awaited_seconds", "Seconds without a connection", ["peer"], awaited)
        yield family(GaugeMetricFamily, "connected", "1 while there is a connection", ["peer"], connected)

    async def _serve(self, sockets: Sequence[socket.socket], registry: "CollectorRegistry") -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            gone = (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
            with suppress(*gone):
                async with asyncio.timeout(REQUEST_LIMIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_answer(head, registry))
                    await writer.drain()
            writer.close()

        servers = [await asyncio.start_server(answer, sock=each, limit=MOST_HEAD) for each in sockets]
        try:
            looked_s = time.monotonic()
            while True:
                await asyncio.sleep(LOOK_S)
                before_s, looked_s = looked_s, time.monotonic()
                for peer in {*self.peers} - {*self.present()}:
                    self._awaited_s[peer] += looked_s - before_s
        finally:
            for server in servers:
                server.close()


def family(
    kind: "type[F]", name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]
) -> "F":
    """Return a metric with a value for each combination of labels."""
    metric = kind(PREFIX + name, text, labels=labels)
    for of, value in values.items():
        metric.add_metric(of, value)
    return metric


def _answer(head: bytes, registry: "CollectorRegistry") -> bytes:
    from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    method, _, rest = head.partition(b" ")
    path = rest.split(b" ", 1)[0].partition(b"?")[0]
    kind, body = "text/plain; charset=utf-8", b""
    if method not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", b"only GET\n"
    elif path == b"/healthz":
        status, kind, body = "200 OK", "application/json", b'{"status":"ok"}'
    elif path == b"/metrics":
        status, kind, body = "200 OK", CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)
    else:
        status, body = "404 Not Found", b"/healthz, /metrics\n"
    fields = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n".encode() + (b"" if method == b"HEAD" else body)
