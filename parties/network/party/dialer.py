"""The party's end: dials the server, redials when the stream ends, and passes its orders to the party's thread."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import KW_ONLY, dataclass
from typing import Self

from vfl.base.errors import PeerLost
from vfl.config import ConfigError, NetworkConfig
from vfl.messages.messages import SESSION, Kind, Message, MessageError
from vfl.parties.network.action_log import limited
from vfl.parties.network.clock_and_threads import SYSTEM, System, close
from vfl.parties.network.tls.certificates import SERVER, Peer, peer
from vfl.parties.network.tls.diagnosis import explain
from vfl.parties.network.tls.files import TlsFiles, fetch_certificate
from vfl.parties.network.tls.lists import Lists
from vfl.parties.network.transport.rpc import Call, error_text, is_end, is_oversize
from vfl.parties.network.transport.stream import Stream, StreamEnd
from vfl.parties.network.wire.frame import MIB, PIECE_BYTES, check_size, pack, unpack
from vfl.parties.network.wire.session import FAREWELL_S, Refusal, Welcome, refusal

MOST_WAITING = 5
"""Most waiting orders: a welcome, two restores of the session that begins, a request or save after them, a goodbye."""


@dataclass(frozen=True)
class ReceivedOrder:
    """An order of the server, and the stream on which it waits for the answer."""

    message: Message
    stream: Stream
    failed: Exception | None = None
    """The error, which the party's thread is to raise, of an order that was carried out where it arrived."""


@dataclass(eq=False)
class Inbox:
    """Queue from the dialler's thread to the party's."""

    machine: System = SYSTEM
    ahead: int = 0
    """training.staleness, by which parties are ahead: so many requests more wait."""

    def __post_init__(self) -> None:
        self._waiting = deque[ReceivedOrder]()
        self._over: Exception | None = None
        self._idle = False
        """The party's thread waits for an order."""
        self.at_once: Callable[[ReceivedOrder], ReceivedOrder | None] = lambda order: order
        """Carries out a light order where it arrives, while the party's thread waits; returns what is left to do."""
        self._changed = self.machine.condition()

    def put(self, order: ReceivedOrder) -> None:
        """Add an order. Raises MessageError for more, or more requests, than can be under way."""
        with self._changed:
            self._waiting = deque(each for each in self._waiting if not _voids(order, each))
            requests = sum(each.message.kind not in SESSION for each in (*self._waiting, order))
            if requests > 1 + self.ahead or len(self._waiting) == MOST_WAITING + self.ahead:
                kind = order.message.kind.name
                raise MessageError(f"{kind} came while {len(self._waiting)} orders wait: more than can be under way")
            left = self.at_once(order) if self._idle and not self._waiting else order
            if left is not None:
                self._waiting.append(left)
                self._changed.notify()

    def close(self, error: Exception) -> None:
        """End the queue with this error."""
        with self._changed:
            self._over = error
            self._changed.notify()

    def get(self, timeout_s: float | None = None) -> ReceivedOrder | None:
        """Return the oldest order; None if nothing comes in time. Raises the error of ``close`` if none is left."""
        with self._changed:
            self._idle = True
            self._changed.wait_for(lambda: self._waiting or self._over, timeout_s)
            self._idle = not (self._waiting or self._over)
            if not self._waiting and self._over is not None:
                raise self._over
            return self._waiting.popleft() if self._waiting else None


def _voids(order: ReceivedOrder, earlier: ReceivedOrder) -> bool:
    """Return whether earlier orders are void, as another stream or session begins."""
    kind = order.message.kind
    begins_session = kind is Kind.RESTORE and order.message.sequence == 1
    return kind is Kind.WELCOME or (begins_session and earlier.message.kind is not Kind.WELCOME)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Approximate seconds before dialling again, first and longest: doubled each time, randomly varied among parties."""
JOIN_LIMIT_S = 20.0
"""Seconds that the server has to answer the hello; then it is dialled again."""


class _NotNow(Exception):  # noqa: N818 - says why
    """No stream came about; dialling again may help. ``refused``: the server does not let this party in for now."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


@dataclass(eq=False)
class Dialer:
    """Keeps a stream to the server in a thread of its own, from ``with`` to its end.

    Raises ConfigError for unusable lists of ``network.tls``.
    """

    hello: Callable[[], Message]
    """Makes the first message of every stream."""
    network: NetworkConfig
    tls: TlsFiles | None
    """The party's identity; None for plaintext."""
    _: KW_ONLY
    log: Callable[[str], None]
    ahead: int = 0
    """training.staleness"""
    machine: System = SYSTEM

    def __post_init__(self) -> None:
        self.tell = limited(self.log)
        """Prints lines about the server, at most so many a minute."""
        self.lists = Lists(self.network.tls, self.log)
        self.server = Peer(SERVER)
        """The server as seen when it was last dialled."""
        self.inbox = Inbox(self.machine, self.ahead)
        self.stream: Stream | None = None
        """The present stream, if the server has admitted the party."""
        self._closing = False

    def __enter__(self) -> Self:
        """Begin to dial."""
        self._loop = self.machine.event_loop()
        self._task = self._loop.create_task(self._keep_dialling())
        self._thread = self.machine.thread(self._run, "dialer")
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Hang up."""
        with suppress(RuntimeError):  # the loop is closed: dialling is over already
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def present(self) -> tuple[str, ...]:
        """Return the name of the server while it has admitted this party."""
        return (SERVER,) if self.stream is not None else ()

    def refuse(self, reason: str) -> None:
        """Tell the server why this party cannot continue, and wait until it hangs up."""
        self._closing = True
        if self.stream is not None:
            self.stream.send(refusal(reason))
            self._thread.join(FAREWELL_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            return
        except Exception as error:
            self.inbox.close(error)
        finally:
            close(self._loop)

    async def _keep_dialling(self) -> None:
        """Dial until an error ends it: the server refused the party, or stayed away."""
        connected_s = self.machine.now_s()
        pause_s, reported, refused_s = FIRST_PAUSE_S, "", 0.0
        while True:
            # The server may hold on to a dead process of this name for silence_s: until then a refusal may pass.
            refused = False
            try:
                reason = await self._dial(patient=refused_s < 2 * self.network.silence_s)
                connected_s, pause_s, reported = self.machine.now_s(), FIRST_PAUSE_S, ""
            except _NotNow as error:
                reason, refused = str(error), error.refused
            if self._closing:
                return
            if self.machine.now_s() - connected_s > self.network.wait_s:
                raise PeerLost(
                    f"the server at {self.network.server} stayed away for network.wait_s = {self.network.wait_s:g} s "
                    f"({reason})"
                )
            if reason != reported:
                line = f"warning: no connection to the server at {self.network.server} ({reason}); dialling again"
                self.tell(self.server, line)
                reported = reason
            # Only what this side waits is counted: a server that is frozen itself cannot let go of another of the name.
            refused_s = refused_s + pause_s if refused else 0.0
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _dial(self, *, patient: bool) -> str:
        """Serve one stream to its end, and return the reason. Raises _NotNow for none, ValueError if none can be.

        ``patient``: dial again if the party may be admitted later.
        """
        async with AsyncExitStack() as undo:
            call, first = await self._open(undo)
            try:
                welcome = welcomed_by(first)
            except NotWelcome as refused:
                if refused.again and patient:
                    raise _NotNow(refused.reason, refused=True) from None
                raise
            ended = await self._serve(call, first, welcome)
            if ended.violation:
                raise ValueError(f"the server: {ended.reason}")
            return ended.reason

    async def ask(self) -> Message:
        """Say hello on a stream of its own, and return the answer. Raises ValueError where none comes."""
        async with AsyncExitStack() as undo:
            try:
                return (await self._open(undo))[1]
            except _NotNow as error:
                raise ValueError(f"the server at {self.network.server} does not answer ({error})") from None

    async def _open(self, undo: AsyncExitStack) -> tuple[Call, Message]:
        """Open a stream and return it with the server's answer to the hello; ``undo`` closes it.

        Raises _NotNow where dialling again may help, ValueError where it would not.
        """
        try:
            trusted, use_proxy = await self._trusted(), self.network.use_proxy
            channel = self.machine.open_channel(self.network.server, trusted, use_proxy=use_proxy)
            undo.push_async_callback(channel.close)
            call = self.machine.open_stream(channel)
            async with asyncio.timeout(JOIN_LIMIT_S):  # asyncio.wait_for of 3.11 may lose a cancellation
                return call, await say_hello(call, self.hello())
        except TimeoutError:
            raise _NotNow(f"no answer within {JOIN_LIMIT_S:g} s") from None
        except MessageError as error:
            raise ValueError(f"the server: {error}") from None
        except ConfigError:
            raise
        except Exception as error:
            if explained := await asyncio.to_thread(explain, self.network.server, self.tls):
                raise ValueError(explained) from None
            nobody = isinstance(error, ConnectionRefusedError)
            raise _NotNow("nobody listens there" if nobody else error_text(error)) from None

    async def _trusted(self) -> TlsFiles | None:
        """Return our identity, trusting only the server's present certificate; None for plaintext.

        Raises ConfigError for a denied server, OSError if there is none, or another one.
        """
        if self.tls is None or self.network.use_proxy:
            return self.tls
        certificate = await fetch_certificate(self.network.server, self.tls)
        self.server = peer(certificate)
        if objection := self.lists.objection(self.server):
            raise ConfigError(f"network.tls: {objection}")
        return self.tls.trusting(certificate)

    async def _serve(self, call: Call, first: Message, welcome: Welcome) -> StreamEnd:
        def receive(message: Message) -> None:
            if message.kind is Kind.REFUSAL:
                raise MessageError(Refusal.of(message).reason)
            if message.kind is Kind.WELCOME:
                raise MessageError("WELCOME came again")
            self.inbox.put(ReceivedOrder(message, stream))

        def on_beat() -> None:
            if objection := self.lists.objection(self.server):
                stream.end(f"network.tls: {objection}")

        stream = Stream(call, receive, as_welcomed(welcome, self.network), on_beat)
        self.inbox.put(ReceivedOrder(first, stream))
        self.stream = stream
        try:
            return await stream.run()
        finally:
            self.stream = None
            call.cancel()


def as_welcomed(welcome: Welcome, own: NetworkConfig) -> NetworkConfig:
    """Return the server's heartbeats with the own size limit. Raises ValueError for values that no server can have."""
    size, beat_s, silence_s = own.max_message_mb, welcome.heartbeat_s, welcome.silence_s
    try:
        return NetworkConfig(max_message_mb=size, heartbeat_s=beat_s, silence_s=silence_s)
    except ValueError:
        raise ValueError(
            f"the server: a welcome with heartbeats every {beat_s:g} s and silence_s = {silence_s:g} came, which no "
            "server may be set to"
        ) from None


class NotWelcome(ValueError):  # noqa: N818 - says what happened
    """The server does not let the party in. ``again``: the ``reason`` may pass."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(f"refused by the server: {reason}")
        self.reason, self.again = reason, again


def welcomed_by(answer: Message) -> Welcome:
    """Read the answer to a hello. Raises NotWelcome for a refusal, ValueError for what is neither."""
    try:
        if answer.kind is Kind.REFUSAL:
            refused = Refusal.of(answer)
            raise NotWelcome(refused.reason, again=refused.again)
        if answer.kind is not Kind.WELCOME:
            raise MessageError(f"{answer.kind.name} came where WELCOME is due; install the same release on both sides")
        return Welcome.of(answer)
    except MessageError as error:
        raise ValueError(f"the server: {error}") from None


async def say_hello(call: Call, hello: Message) -> Message:
    """Begin a stream and return the server's answer.

    Raises ConfigError for a hello that no server takes, MessageError, ConnectionError, and gRPC's own.
    """
    check_size(hello, PIECE_BYTES // MIB)
    try:
        await call.write(pack(hello))
        data = await call.read()
    except Exception as error:
        if is_oversize(error):  # also once it is decompressed
            raise MessageError(f"its answer to the hello is above {PIECE_BYTES} bytes ({error_text(error)})") from None
        raise
    if is_end(data):
        raise ConnectionError("the server hung up")
    return unpack(data)
