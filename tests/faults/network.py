"""Streams between processes of one simulation, in the place of gRPC's."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from faults.turns import Condition, Loop, Process, Thread, Turns

from vfl.parties.network.clock_and_threads import System
from vfl.parties.network.tls.certificates import Peer
from vfl.parties.network.transport.rpc import Serve, grpc

LATENCY_S = (0.001, 0.03)
WINDOW = 4
"""Messages that may be under way, unread, in one direction."""
OVER = ConnectionError("UNAVAILABLE: the connection is over")


class End:
    """One side of a stream: a ``Pipe``; on the dialling side a ``Call``, and its channel."""

    def __init__(self, turns: Turns, loop: asyncio.AbstractEventLoop, process: Process) -> None:
        self.turns = turns
        self.loop = loop
        self.process = process
        self.other: End
        self.over = False
        self.swallows = False
        """What is written here arrives nowhere."""
        self.change: Callable[[bytes], list[bytes]] = lambda message: [message]
        """What becomes of the next message."""
        self.arrives_s = 0.0
        """When the last message does; none overtakes another."""
        self.serving: asyncio.Task[None] | None = None
        """At the server: cancelled when the stream breaks, as gRPC does."""
        self._arrived = asyncio.Queue[Any]()
        self._window = asyncio.Semaphore(WINDOW)

    async def read(self) -> Any:
        message = await self._arrived.get()
        if message is OVER:
            raise OVER
        self.other.call(self.other._window.release)
        return message

    async def write(self, message: bytes) -> None:
        await self._window.acquire()
        if self.over:
            raise OVER
        messages, self.change = self.change(message), lambda message: [message]
        for each in messages:
            self.send(each)

    def send(self, message: Any) -> None:
        """Have something arrive at the other end."""
        if not self.swallows:
            late_s = self.turns.now_s + self.turns.random.uniform(*LATENCY_S)
            self.arrives_s = max(self.arrives_s + 1e-6, late_s)
            self.turns.at(self.arrives_s, partial(self.other.call, self.other.take, message))

    def take(self, message: Any) -> None:
        """Find what has arrived."""
        if message is OVER:
            self.over = True
            self._window.release()
            if self.serving is not None:
                self.serving.cancel()
        self._arrived.put_nowait(message)

    def call(self, act: Callable[..., object], *values: Any) -> None:
        """Do something in this end's loop."""
        if self.process.alive:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(act, *values)

    def cancel(self) -> bool:
        if not self.over:
            self.over = True
            self.send(OVER)
        return True

    async def close(self) -> None:
        self.cancel()


class Listener:
    """A ``Server``: takes the streams of an address."""

    def __init__(self, network: "Network", address: str, serve: Serve, process: Process) -> None:
        self.network = network
        self.address = address
        self.serve = serve
        self.process = process
        self.loop = asyncio.get_running_loop()
        self._serving = dict[asyncio.Task[None], None]()  # not a set: its order would be that of addresses

    async def start(self) -> None:
        self.network.listening[self.address] = self

    async def stop(self, _grace_s: float) -> None:
        self.network.listening.pop(self.address, None)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def take(self, end: End) -> None:
        """Begin to serve a stream, in the loop."""
        if not end.over:
            end.serving = self.loop.create_task(self._serve(end))
            self._serving[end.serving] = None
            end.serving.add_done_callback(self._serving.pop)

    async def _serve(self, end: End) -> None:
        try:
            await self.serve(end, Peer(end.other.process.name))
        except Exception as error:
            self.network.turns.fail(f"a stream of {end.other.process.name} is served: {error!r}", error)
        finally:
            end.send(grpc.aio.EOF)  # pyright: ignore[reportAttributeAccessIssue]
            end.over = True


class Network:
    """Who listens, and all streams."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.listening: dict[str, Listener] = {}
        self.ends: list[End] = []
        self.unreachable_until_s = 0.0

    def dial(self, address: str) -> End:
        """Return the dialling end; that nobody is there shows when it is read."""
        end = End(self.turns, asyncio.get_running_loop(), self.turns.current.process)
        listener = self.listening.get(address)
        if listener is None or not listener.process.alive or self.turns.now_s < self.unreachable_until_s:
            end.other, end.swallows = end, True
            self.turns.at(self.turns.now_s + LATENCY_S[1], partial(end.call, end.take, OVER))
            return end
        end.other = End(self.turns, listener.loop, listener.process)
        end.other.other = end
        self.ends += [end, end.other]
        end.arrives_s = self.turns.now_s + LATENCY_S[0]
        self.turns.at(end.arrives_s, partial(end.other.call, listener.take, end.other))
        return end

    def open_ends(self) -> list[End]:
        """Ends of streams that are not over for both."""
        return [end for end in self.ends if end.process.alive and not (end.over and end.other.over)]

    def drop(self, process: Process, *, silently: bool) -> None:
        """A process is dead: its machine tells the others, or is dead as well."""
        for end in self.open_ends():
            if end.process is process:
                if not silently:
                    end.send(OVER)
                end.swallows = True


class Awaited(Future[Any]):
    """What threads that take turns wait for."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns

    def result(self, timeout: float | None = None) -> Any:
        self.turns.block(self.done)
        return super().result(timeout)


class Simulated(System):
    """The machine of whichever process asks."""

    def __init__(self, turns: Turns, network: Network) -> None:
        self.turns = turns
        self.network = network

    def now_s(self) -> float:
        return self.turns.now_s

    def condition(self) -> Any:
        return Condition(self.turns)

    def thread(self, run: Callable[[], object], name: str) -> Thread:
        return Thread(self.turns, self.turns.current.process, run, name)

    def event_loop(self) -> Loop:
        return Loop(self.turns)

    def future(self) -> Any:
        return Awaited(self.turns)

    def result(self, future: Any) -> Any:
        self.turns.block(future.done)
        return future.result()

    def make_server(self, address: str, tls: object, connections: int, serve: Serve) -> Any:
        return Listener(self.network, address, serve, self.turns.current.process)

    def open_channel(self, address: str, tls: object, *, use_proxy: bool) -> Any:
        return self.network.dial(address)

    def open_stream(self, channel: Any) -> Any:
        return channel
