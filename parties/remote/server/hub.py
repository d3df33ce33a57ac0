"""The server's listening side: lets parties in, keeps their streams, and tells when they are lost."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from parties.remote.joining import Expected, JoinRefused, check_hello, check_identity
from parties.remote.server.connection import PartyConnection
from parties.remote.tls.files import TlsFiles
from parties.remote.transport.rpc import Pipe, Server, error_text, is_end, make_server
from parties.remote.transport.stream import Ended, Stream
from vfl.config import NetworkConfig
from vfl.errors import PeerLost, PeerMisbehaved
from vfl.wire.envelope import PROTOCOL_VERSION, Envelope, EnvelopeError, Goodbye, Welcome, read_envelope, refusal

JOIN_LIMIT_S = 20.0
"""A stream that has not said hello by then is closed."""
SPARE_STREAMS = 8
"""Streams beyond one per party: for those that are refused."""
FAREWELL_S = 10.0
"""How long the parties may take to hang up at the end."""


class Hub:
    """Listens in a thread of its own, from ``with`` to its end.

    Args:
        run: id of the run.
        expected: what the server expects of each party, by name.
        network: addresses and limits.
        tls: the server's identity; None for plaintext.
        log: shows a line.
        on_leaving: called, in the hub's thread, with the name of a party that wants to leave.
        on_joined: called, in the hub's thread, with the name of a party that is here.
    """

    def __init__(
        self,
        run: str,
        expected: Mapping[str, Expected],
        network: NetworkConfig,
        tls: TlsFiles | None,
        *,
        log: Callable[[str], None],
        on_leaving: Callable[[str], None] = lambda name: None,
        on_joined: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.run = run
        self.expected = expected
        self.network = network
        self.tls = tls
        self.log = log
        self.on_leaving = on_leaving
        self.on_joined = on_joined
        self.barred: dict[str, str] = {}
        """Why a party is not let in any more, by name."""
        self._connections: dict[str, PartyConnection] = {}
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hub", daemon=True)

    def __enter__(self) -> Self:
        """Listen. Raises ConfigError where the address cannot be bound."""
        self._thread.start()
        try:
            self._server: Server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        except BaseException:
            self._stop_thread()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and free the port; whoever is still connected finds the connection ended."""
        asyncio.run_coroutine_threadsafe(self._server.stop(0), self._loop).result()
        self._stop_thread()

    def joined(self) -> dict[str, PartyConnection]:
        """Return the parties that are connected now, but for those that are being thrown out."""
        with self._changed:
            return {name: connection for name, connection in self._connections.items() if not connection.lost}

    def wait_for(self, names: tuple[str, ...], limit_s: float) -> dict[str, PartyConnection]:
        """Return all of ``names``, connected. Raises PeerLost, naming the missing, after ``limit_s``."""
        deadline_s = time.monotonic() + limit_s
        told: list[str] = []
        with self._changed:
            while missing := [name for name in names if name not in self.joined()]:
                if missing != told:
                    self.log(f"waiting for {', '.join(missing)}")
                    told = missing
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise PeerLost(f"{', '.join(missing)} did not join within network.wait_s = {limit_s:g} s")
                self._changed.wait(min(left_s, 1.0))  # in pieces: a signal's handler runs in between
            return {name: self._connections[name] for name in names}

    def dismiss(self, names: tuple[str, ...], *, exit_code: int, reason: str) -> None:
        """Tell parties that the training is over for them, and wait until they have hung up."""
        self.say_goodbye(names, exit_code=exit_code, reason=reason)
        with self._changed:
            self._changed.wait_for(lambda: not self._connections.keys() & set(names), FAREWELL_S)

    def say_goodbye(self, names: tuple[str, ...], *, exit_code: int, reason: str) -> None:
        """Tell parties that it is over for them, and go on; from any thread."""
        for name, connection in self.joined().items():
            if name in names:
                goodbye = Goodbye(exit_code=exit_code, reason=reason)
                connection.stream.send(Envelope(version=PROTOCOL_VERSION, run=self.run, goodbye=goodbye))

    async def _listen(self) -> Server:
        streams = len(self.expected) + SPARE_STREAMS
        server = make_server(self.network.listen, self.tls, streams, self._serve)
        await server.start()
        return server

    def _stop_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, pipe: Pipe, identity: str | None) -> None:
        """Serve one stream from its hello to its end."""
        try:
            connection = self._admit(await _first(pipe), identity, pipe)
        except JoinRefused as refused:
            self.log(f"refused to let a party in: {refused}")
            await pipe.write(refusal(str(refused), again=refused.again).SerializeToString())
            return
        if connection is None:
            await pipe.write(self._welcome())
            return
        ended = Ended("the connection ended")
        try:
            await pipe.write(self._welcome())
            ended = await connection.stream.run()
        except Exception as error:
            ended = Ended(error_text(error))
        finally:  # a peer that hangs up cancels this very task
            self._drop(connection, ended)

    def _admit(self, first: Envelope, identity: str | None, pipe: Pipe) -> PartyConnection | None:
        """Return the new party's connection; None for one that only asks and would be let in. Raises JoinRefused."""
        hello = check_identity(first, identity, tuple(self.expected))
        if first.run not in ("", self.run):
            raise JoinRefused(
                f"{hello.party}'s folder belongs to run {first.run}, the server's to run {self.run}; "
                "give the party another --run-dir, or resume the server's run"
            )
        check_hello(hello, self.expected[hello.party])
        if hello.party in self.barred:
            raise JoinRefused(self.barred[hello.party])
        connection = PartyConnection(
            hello,
            self.run,
            reply_limit_s=self.network.reply_limit_s,
            slow_s=self.network.silence_s,
            log=self.log,
            on_leaving=self.on_leaving,
        )
        connection.stream = Stream(
            pipe,
            connection.receive,
            max_message_mb=self.network.max_message_mb,
            heartbeat_s=self.network.heartbeat_s,
            silence_s=self.network.silence_s,
            on_beat=connection.check_pace,
        )
        with self._changed:
            present = self._connections.get(hello.party)
            if present is not None and not present.lost and present.hello.instance != hello.instance:
                raise JoinRefused(
                    f"{hello.party} is already here; stop the other process of that name "
                    f"(one that died without a word is let go after {self.network.silence_s:g} s)",
                    again=True,
                )
            if hello.only_asks:
                self.log(f"{hello.party} asks whether it may join: it may")
                return None
            self._connections[hello.party] = connection
            self._changed.notify_all()
        if present is not None:  # the same process dials again before its old stream was found to be dead
            present.fail(PeerLost(f"{hello.party} is lost: it dialled again"))
            present.stream.end("it dialled again")
        self.log(f"{hello.party} joined")
        self.on_joined(hello.party)
        return connection

    def _drop(self, connection: PartyConnection, ended: Ended) -> None:
        name = connection.name
        lost = PeerMisbehaved(name, ended.reason) if ended.violation else PeerLost(f"{name} is lost: {ended.reason}")
        with self._changed:
            if self._connections.get(connection.name) is connection:
                del self._connections[connection.name]
            self._changed.notify_all()
        connection.fail(lost)

    def _welcome(self) -> bytes:
        welcome = Welcome(heartbeat_s=self.network.heartbeat_s, silence_s=self.network.silence_s)
        return Envelope(version=PROTOCOL_VERSION, run=self.run, welcome=welcome).SerializeToString()


async def _first(pipe: Pipe) -> Envelope:
    """Return a stream's first envelope. Raises JoinRefused for none, a late one and one that cannot be read."""
    try:
        data = await asyncio.wait_for(pipe.read(), JOIN_LIMIT_S)
    except TimeoutError:
        raise JoinRefused(f"no hello within {JOIN_LIMIT_S:g} s") from None
    if is_end(data):
        raise JoinRefused("the stream ended before its hello")
    try:
        return read_envelope(data)
    except EnvelopeError as error:
        raise JoinRefused(str(error)) from None
