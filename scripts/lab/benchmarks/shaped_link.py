"""A TCP proxy that behaves like a slow or broken network, for measurements and for tests of faults.

Each direction has its own rate and delay, shared by all connections: bytes leave one after another at the rate and
arrive a delay later. There is no loss, and TCP's congestion control runs over loopback only: a real network of that
rate and delay takes longer for the first bytes of a connection.
"""

import asyncio
import contextlib
import math
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self, TypeVar

R = TypeVar("R")

CHUNK_BYTES = 16 * 1024
"""Bytes that arrive together: 6.6 ms at 20 Mbit/s."""
CHUNKS_UNDER_WAY = 4096
BURST_S = 0.005
"""Idle seconds after which that much time's bytes pass at once; otherwise late timers would lower the rate."""
REPLY_LIMIT_S = 60.0


@dataclass(frozen=True)
class Shape:
    """Rate and delay of each direction of a link."""

    rate_bits_per_s: float = math.inf
    delay_s: float = 0.0
    """One-way delay: half of a ping."""


class Direction:
    """Schedule of the bytes in one direction of a link, and the number that have arrived."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.free_at_s = -math.inf
        self.arrived_bytes = 0

    def send(self, size: int, now_s: float) -> float:
        """Return the time at which the last of ``size`` more bytes leaves; all earlier ones have left by then."""
        # Idle time is credit, but at most BURST_S of it: the link may count as free since then.
        self.free_at_s = max(self.free_at_s, now_s - BURST_S) + 8 * size / self.shape.rate_bits_per_s
        return max(self.free_at_s, now_s)


@dataclass(eq=False)
class _Connection:
    """One client, connected to the target."""

    task: asyncio.Task[Any]
    client: asyncio.StreamWriter
    target: asyncio.StreamWriter | None = None
    client_stays: bool = False
    """The target's end is closed, and the client does not know yet."""


class ShapedLink:
    """Forwards connections from a port of its own to a target, in a thread, until it is closed.

    A context manager. Its methods may be called from any thread and have acted when they return.

    Args:
        target: (host, port) to which connections go; dialled for every new connection. While nobody listens there,
            clients are reset.
        shape: rate and delay of each direction; the default is as fast as the machine.
    """

    def __init__(self, target: tuple[str, int], shape: Shape | None = None) -> None:
        self.target = target
        shape = shape or Shape()
        self._up, self._down = Direction(shape), Direction(shape)
        self._connections: set[_Connection] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shaped link", daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])
        """Port of the link, on 127.0.0.1."""

    @property
    def arrived_bytes(self) -> tuple[int, int]:
        """Return the bytes that have arrived at the target, and at the clients."""
        return self._up.arrived_bytes, self._down.arrived_bytes

    @property
    def open_connections(self) -> int:
        """Return the number of connections between clients and the link."""
        return len(self._connections)

    def reshape(self, shape: Shape) -> None:
        """Set another rate and delay in both directions; bytes under way keep theirs."""

        def change() -> None:
            self._up.shape = self._down.shape = shape

        self._call(change)

    def cut(self) -> None:
        """Reset every connection at both ends; new ones pass."""
        self._call(self._end_connections)

    def half_open(self) -> None:
        """Reset every connection at the target's end, silently for its client; new ones pass."""
        self._call(lambda: self._end_connections(clients_stay=True))

    def stall(self) -> None:
        """Hold back everything in either direction, also on new connections, silently."""
        self._call(self._flowing.clear)

    def restore(self) -> None:
        """End a stall; held-back bytes arrive first."""
        self._call(self._flowing.set)

    def close(self) -> None:
        """Stop listening, reset every connection, end the thread."""
        if self._loop.is_closed():
            return
        self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(REPLY_LIMIT_S)

    def _call(self, action: Callable[[], object]) -> None:
        async def act() -> None:
            action()

        self._run(act())

    def _end_connections(self, *, clients_stay: bool = False) -> None:
        for connection in self._connections:
            if connection.client_stays and clients_stay:
                continue  # has lost its target already; its task only swallows what the client sends
            connection.client_stays = clients_stay
            if not clients_stay:
                _reset(connection.client)
            if connection.target is not None:
                _reset(connection.target)
            connection.task.cancel()

    async def _shut(self) -> None:
        self._server.close()
        tasks = [connection.task for connection in self._connections]
        self._end_connections()
        await asyncio.gather(*tasks)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Serve one client from its first byte to its last."""
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(task, client)
        self._connections.add(connection)
        try:
            await self._forward(connection, reader)
        except asyncio.CancelledError:  # by `_end_connections` alone: the task just ends
            if connection.client_stays:
                await _swallow(reader)
        except OSError:
            pass  # nobody listens at the target
        finally:
            _reset(client)
            self._connections.discard(connection)

    async def _forward(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        """Move bytes both ways until both ends have closed, or one resets. Raises OSError without a target."""
        await self._flowing.wait()
        back, target = await asyncio.open_connection(*self.target)
        connection.target = target
        try:
            async with asyncio.TaskGroup() as group:
                for source, sink, direction in ((reader, target, self._up), (back, connection.client, self._down)):
                    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_UNDER_WAY)
                    group.create_task(self._send(source, under_way, direction))
                    group.create_task(self._deliver(under_way, sink, direction))
            for writer in (target, connection.client):
                writer.close()
                await writer.wait_closed()
        except* OSError:
            pass  # one end has reset the connection, so both are
        finally:
            _reset(target)

    async def _send(
        self, source: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]], direction: Direction
    ) -> None:
        """Take bytes at the direction's rate; the last chunk is empty."""
        data = b"anything but empty, which is the end"
        while data:
            await self._flowing.wait()
            data = await source.read(CHUNK_BYTES)
            left_s = direction.send(len(data), self._loop.time())
            await under_way.put((left_s + direction.shape.delay_s, data))
            await self._sleep_until(left_s)  # as long as the link is full nothing more is read: TCP holds the sender

    async def _deliver(
        self, under_way: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter, direction: Direction
    ) -> None:
        """Write every chunk at its arrival time, and the end of the stream."""
        while True:
            arrives_s, data = await under_way.get()
            await self._sleep_until(arrives_s)
            await self._flowing.wait()
            if not data:
                sink.write_eof()
                return
            sink.write(data)
            await sink.drain()
            direction.arrived_bytes += len(data)

    async def _sleep_until(self, time_s: float) -> None:
        wait_s = time_s - self._loop.time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)


async def _swallow(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError):
        while await reader.read(CHUNK_BYTES):
            pass


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, so that the other end sees a reset and not an orderly end."""
    if writer.transport.is_closing():
        return
    # Lingering for 0 s is the socket interface's way to ask for a reset.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
