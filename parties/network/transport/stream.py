"""A stream with heartbeats; both sides run it in a separate thread, so that no computation delays a heartbeat."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from vfl.config import NetworkConfig
from vfl.messages.messages import Kind, Message, MessageError
from vfl.parties.network.transport.rpc import Pipe, error_text, is_end, is_oversize
from vfl.parties.network.wire.frame import Assembler, check_size, cut
from vfl.parties.network.wire.session import refusal

T = TypeVar("T")
LAST_WORD_S = 5.0
"""Seconds to send the peer a last message about an error."""
BEAT = Message(Kind.HEARTBEAT)


class StreamEnd(NamedTuple):
    """Reason of a stream's end."""

    reason: str
    violation: bool = False
    """The peer broke the protocol: it gets a REFUSAL, and dialling again would not help."""


@dataclass(eq=False)
class Stream:
    """Reads, writes and sends heartbeats until the peer hangs up, falls silent or breaks the protocol.

    Created and run in the loop's thread; ``send`` and ``end`` may be called from any thread.
    """

    pipe: Pipe
    receive: Callable[[Message], None]
    """Takes every message but heartbeats; may raise MessageError."""
    network: NetworkConfig
    """Limit of messages' size, heartbeat interval, and longest silence of the peer."""
    on_beat: Callable[[], None]

    def __post_init__(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._outbox = asyncio.Queue[Message | StreamEnd]()
        self._ending: asyncio.Future[StreamEnd] = self._loop.create_future()
        self._heard_s = self._loop.time()

    def send(self, message: Message) -> None:
        """Queue a message, whose payloads must not change any more. Raises ConfigError for one above the limit."""
        check_size(message, self.network.max_message_mb)
        self._in_loop(self._outbox.put_nowait, message)

    def end(self, reason: str) -> None:
        """End the stream from this side once what was queued is written, or ``LAST_WORD_S`` later."""
        self._in_loop(self._end, StreamEnd(reason))

    async def run(self) -> StreamEnd:
        """Serve the stream to its end and return the reason."""
        works = (self._read, self._write, self._beat, self._expire)
        tasks = [asyncio.create_task(work()) for work in works]
        writing = tasks[1]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = next(task.result() for task in tasks if task in done)
            if ended.violation:  # said by the writer: it may be in the middle of a message
                self._outbox.put_nowait(refusal(ended.reason))
                self._outbox.put_nowait(ended)
                await asyncio.wait((writing,), timeout=LAST_WORD_S)
            return ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> StreamEnd:
        assembler = Assembler(self.network.max_message_mb)
        while True:
            try:
                data = await self.pipe.read()
            except Exception as error:
                return StreamEnd(error_text(error), violation=is_oversize(error))
            if is_end(data):
                return StreamEnd("the connection ended")
            self._heard_s = self._loop.time()
            try:
                message = assembler.add(data)
                if message is not None and message.kind is not Kind.HEARTBEAT:
                    self.receive(message)
            except MessageError as error:
                return StreamEnd(str(error), violation=True)
            del message  # or it stays in memory while the next one comes

    async def _write(self) -> StreamEnd:
        while True:
            message = await self._outbox.get()
            if isinstance(message, StreamEnd):
                return message
            try:
                for piece in cut(message):
                    await self.pipe.write(piece)
            except Exception as error:
                return StreamEnd(error_text(error), violation=is_oversize(error))
            del message  # or it stays in memory until the next one goes

    async def _expire(self) -> StreamEnd:
        ended = await self._ending
        await asyncio.sleep(LAST_WORD_S)
        return ended

    async def _beat(self) -> StreamEnd:
        while True:
            if self._outbox.empty():  # what waits there is a sign of life as well
                self._outbox.put_nowait(BEAT)
            slept_s = self._loop.time()
            await asyncio.sleep(self.network.heartbeat_s)
            now_s = self._loop.time()
            # A process that was frozen itself finds the peer's heartbeats unread: that silence is not the peer's. Once
            # they are read there is none to forgive: a peer that died meanwhile is silent from now on, not later.
            frozen_s = max(0.0, now_s - slept_s - 2 * self.network.heartbeat_s)
            self._heard_s = min(now_s, self._heard_s + frozen_s)
            if now_s - self._heard_s > self.network.silence_s:
                return StreamEnd(f"silent for {self.network.silence_s:g} s: frozen, or the network is cut")
            self.on_beat()

    def _end(self, ended: StreamEnd) -> None:
        self._outbox.put_nowait(ended)
        if not self._ending.done():
            self._ending.set_result(ended)

    def _in_loop(self, act: Callable[[T], None], message: T) -> None:
        if threading.get_ident() == self._thread:  # nobody has to be woken
            act(message)
            return
        try:
            self._loop.call_soon_threadsafe(act, message)
        except RuntimeError:  # the loop is closed: nobody listens any more
            return
