"""The server's listening side: admits parties, keeps their streams, and reports their loss."""

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar

from vfl.base.errors import PeerLost, PeerMisbehaved, plain
from vfl.config import ConfigError, NetworkConfig
from vfl.console import INTERRUPTED, failure_code
from vfl.messages.messages import Kind, Message, MessageError
from vfl.parties.network.action_log import AWAITED, ActionLog, limited
from vfl.parties.network.admission import Expected, JoinRefused, check_hello, check_identity
from vfl.parties.network.clock_and_threads import SYSTEM, System, close
from vfl.parties.network.server.connection import PartyConnection
from vfl.parties.network.tls.certificates import Peer
from vfl.parties.network.tls.files import TlsFiles
from vfl.parties.network.tls.lists import Lists
from vfl.parties.network.transport.rpc import Pipe, error_text, is_end
from vfl.parties.network.transport.security import last_word
from vfl.parties.network.transport.stream import LAST_WORD_S, Stream, StreamEnd
from vfl.parties.network.wire.frame import pack, unpack
from vfl.parties.network.wire.session import FAREWELL_S, Goodbye, Hello, Refusal, Welcome, refusal

T = TypeVar("T")
Connections = dict[str, PartyConnection]
"""Connections by party."""

HELLO_LIMIT_S = 5.0
"""Seconds after which a stream without a hello is closed."""
STREAMS_PER_OWNER = 2
"""Most streams with one certificate: the party's own, and one of its doctor or of its next dial."""
RESERVED_FILES = 256
"""File descriptors reserved for checkpoints, logs and this machine's sockets."""
MOST_CONNECTIONS = 4096
AUDITED = {Kind.SAVED: "saved", Kind.LEAVING: "leaving", Kind.REFUSAL: "refused"}
"""Messages of a joined party that the audit log records, with the name of their event."""
NOBODY = Peer("")
"""Peer on a plaintext connection that has not given its name."""


@dataclass(eq=False)
class Hub:
    """Listens in a thread of its own, from ``with`` to its end; or in a loop of others, from ``start`` to ``stop``."""

    run: str
    """Id of the run."""
    expected: Mapping[str, Expected]
    """The server's requirements of each party, by name."""
    network: NetworkConfig
    tls: TlsFiles | None
    """The server's identity; None for plaintext."""
    _: KW_ONLY
    log: Callable[[str], None]
    folder: Path | None = None
    """Folder of the run, for the audit log; None writes none."""
    on_leaving: Callable[[str], None] | None = None
    """Called, in the hub's thread, with the name of a party that wants to leave; None: it may, at once."""
    on_joined: Callable[[str], None] = lambda name: None
    """Called, in the hub's thread, with the name of a party that is here."""
    machine: System = SYSTEM
    spared: int = 0
    """Descriptors that the parties leave to other connections of this process."""

    def __post_init__(self) -> None:
        self.tell = limited(self.log)
        """Prints lines about peers, at most so many a minute each."""
        self.barred: dict[str, str] = {}
        """Reasons why parties are no longer admitted, by name."""
        self.lists = Lists(self.network.tls, self.log)
        self.audit = ActionLog(self.folder)
        self._offences = Counter[str]()
        self._streams = Counter[str]()
        """Number of open streams, by the name in the certificate."""
        self._connections: dict[str, PartyConnection] = {}
        self._changed = self.machine.condition()

    def __enter__(self) -> Self:
        """Listen. Raises ConfigError if the address cannot be bound."""
        self._loop = self.machine.event_loop()
        self._thread = self.machine.thread(self._run, "hub")
        self._thread.start()
        try:
            self._in_loop(self.start())
        except BaseException:
            self._stop_thread()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop listening and free the port; open connections end."""
        self._in_loop(self.stop())
        self._stop_thread()

    async def start(self) -> None:
        """Listen in the running loop. Raises ConfigError if the address cannot be bound."""
        connections = _connection_limit(STREAMS_PER_OWNER * len(self.expected), RESERVED_FILES + self.spared)
        self._server = self.machine.make_server(self.network.listen, self.tls, connections, self._serve)
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening and free the port; open connections end."""
        await self._server.stop(0)

    def joined(self) -> dict[str, PartyConnection]:
        """Return the parties that are connected now, except those being expelled."""
        with self._changed:
            return {name: connection for name, connection in self._connections.items() if not connection.lost}

    def wait_for(self, names: tuple[str, ...], limit_s: float) -> dict[str, PartyConnection]:
        """Return all of ``names``, connected. Raises PeerLost, naming the missing, after ``limit_s``."""
        deadline_s = self.machine.now_s() + limit_s
        reported: list[str] = []
        with self._changed:
            while missing := [name for name in names if name not in self.joined()]:
                if missing != reported:
                    with suppress(OSError):  # for lvfl status: a full disk is no reason not to wait
                        for name in {*missing} - {*reported}:
                            self.audit.note(AWAITED, Peer(name))
                    self.log(f"waiting for {', '.join(missing)}")
                    reported = missing
                left_s = deadline_s - self.machine.now_s()
                if left_s <= 0:
                    raise PeerLost(f"{', '.join(missing)} did not join within network.wait_s = {limit_s:g} s")
                self._changed.wait(min(left_s, 1.0))  # in pieces: a signal's handler runs in between
            return {name: self._connections[name] for name in names}

    def dismiss(self, names: tuple[str, ...], *, exit_code: int, reason: str) -> None:
        """Send parties a GOODBYE, and wait until they have disconnected."""
        self.say_goodbye(names, exit_code=exit_code, reason=reason)
        with self._changed:
            self._changed.wait_for(lambda: not self._connections.keys() & set(names), FAREWELL_S)

    def say_goodbye(self, names: tuple[str, ...], *, exit_code: int, reason: str) -> None:
        """Send parties the goodbye without waiting for them; from any thread."""
        goodbye = Goodbye.model_validate({"exit_code": exit_code, "reason": reason})
        for name, connection in self.joined().items():
            if name in names:
                connection.stream.send(Message(Kind.GOODBYE, parts=(goodbye.part(),), run=self.run))

    def note_offence(self, lost: PeerLost) -> str | None:
        """Count a loss if the party misbehaved; at ``network.max_offences`` bar it, and return the reason."""
        if not isinstance(lost, PeerMisbehaved):
            return None
        self._offences[lost.party] += 1
        times, allowed = self._offences[lost.party], self.network.max_offences
        if times <= allowed:
            return None
        reason = f"{lost.party} has misbehaved {times} times, network.max_offences is {allowed}; last: {lost.what}"
        self.barred[lost.party] = reason
        return reason

    def _let_go(self, name: str) -> None:
        self.say_goodbye((name,), exit_code=INTERRUPTED, reason="left before the end")

    def _run(self) -> None:
        self._loop.run_forever()
        close(self._loop)

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return self.machine.result(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _stop_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, pipe: Pipe, caller: Peer | None) -> None:
        """Serve one stream from its hello to its end. ``caller`` is None on a plaintext connection."""
        name = "" if caller is None else caller.name
        self._streams[name] += 1
        try:
            await self._serve_or_refuse(pipe, caller)
        except OSError as error:  # such as a full disk: the peer is disconnected without the reason
            line = f"warning: a stream of {name or 'a party'} ends, for this server's own reason: {error}"
            self.tell(caller or NOBODY, line)
        finally:
            self._streams[name] -= 1

    async def _serve_or_refuse(self, pipe: Pipe, caller: Peer | None) -> None:
        try:
            await self._serve_one(pipe, caller)
        except JoinRefused as refused:
            reason = plain(str(refused))
            self.tell(caller or NOBODY, f"warning: refused to let {caller.name if caller else 'a party'} in: {reason}")
            self.audit.note("refused", caller or NOBODY, reason)
            with suppress(TimeoutError):  # of a peer that does not read
                async with asyncio.timeout(LAST_WORD_S):
                    await pipe.write(pack(refusal(reason, again=refused.again)))

    async def _serve_one(self, pipe: Pipe, caller: Peer | None) -> None:
        if caller is not None and self._streams[caller.name] > STREAMS_PER_OWNER:
            raise JoinRefused(f"{caller.name} has {STREAMS_PER_OWNER} streams open already", again=True)
        connection = self._admit(await _first(pipe), caller, pipe)
        ended = StreamEnd("the connection ended")
        try:
            ended = await connection.stream.run()
        except Exception as error:
            ended = StreamEnd(error_text(error))
        finally:  # a peer that hangs up cancels this very task
            self._drop(connection, caller or Peer(connection.name), ended)

    def _admit(self, first: Message, caller: Peer | None, pipe: Pipe) -> PartyConnection:
        """Return the connection of a party that is admitted, or only asks and would be. Raises JoinRefused.

        Deny and allow lists are checked after the hello has come: a peer refused while it still writes may not receive
        the reason.
        """
        if objection := self.lists.objection(caller) if caller else None:
            raise JoinRefused(objection)
        hello = check_identity(first, None if caller is None else caller.name, tuple(self.expected))
        if first.run not in ("", self.run):
            raise JoinRefused(
                f"{hello.party}'s folder belongs to run {first.run}, the server's to run {self.run}; "
                "give the party another --run-dir, or resume the server's run"
            )
        check_hello(hello, self.expected[hello.party])
        if hello.party in self.barred:
            raise JoinRefused(self.barred[hello.party])
        party = caller or Peer(hello.party)
        connection = self._connect(hello, party, pipe)
        with self._changed:
            present = self._connections.get(hello.party)
            if present is not None and not present.lost and present.hello.instance != hello.instance:
                raise JoinRefused(
                    f"{hello.party} is already here; stop the other process of that name "
                    f"(a crashed one is released after {self.network.silence_s:g} s)",
                    again=True,
                )
            connection.stream.send(self._welcome(hello.party))  # before any order
            if hello.only_asks:
                self.tell(party, f"{hello.party} asks whether it may join: it may")
                connection.stream.end("it only asks")
                return connection
            self.audit.note("joined", party)  # who cannot be noted is not let in
            self._connections[hello.party] = connection
            self._changed.notify_all()
        if present is not None:  # the same process dials again before its old stream was found to be dead
            present.fail(PeerLost(f"{hello.party} is lost: it dialled again"))
            present.stream.end("it dialled again")
        self.tell(party, f"{hello.party} joined")
        self.on_joined(hello.party)
        return connection

    def _connect(self, hello: Hello, party: Peer, pipe: Pipe) -> PartyConnection:
        on_leaving = self.on_leaving or self._let_go
        connection = PartyConnection(hello, self.run, self.network, partial(self.tell, party), on_leaving, self.machine)

        def receive(message: Message) -> None:
            connection.receive(message)
            if event := AUDITED.get(message.kind):
                self.audit.note(event, party, Refusal.of(message).reason if message.kind is Kind.REFUSAL else "")

        def on_beat() -> None:
            connection.check_pace()
            if objection := self.lists.objection(party) if party.serial else None:
                connection.stream.end(objection)

        connection.stream = Stream(pipe, receive, self.network, on_beat)
        return connection

    def _drop(self, connection: PartyConnection, party: Peer, ended: StreamEnd) -> None:
        name = connection.name
        lost = PeerMisbehaved(name, ended.reason) if ended.violation else PeerLost(f"{name} is lost: {ended.reason}")
        connection.fail(lost)
        with self._changed:
            was_here = self._connections.get(name) is connection
            if was_here:
                del self._connections[name]
            self._changed.notify_all()
        if was_here:  # noted last: where no file can be written, it is lost all the same
            if not connection.session:  # else the training reports it, when it next needs the party
                self.tell(party, f"warning: {lost}")
            self.audit.note("lost", party, ended.reason)

    def _welcome(self, name: str) -> Message:
        welcome = Welcome(
            heartbeat_s=self.network.heartbeat_s, silence_s=self.network.silence_s, terms=self.expected[name].terms
        )
        return Message(Kind.WELCOME, parts=(welcome.part(),), run=self.run)


def spare_files(wanted: int) -> int:
    """Return how many descriptors to spare for other connections: ``wanted``, or a quarter of what there may be."""
    _now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most // 4)


def _connection_limit(needed: int, reserved: int) -> int:
    """Return the limit of connections, after raising this process's limit of file descriptors as far as possible.

    Raises ConfigError if not even the parties' own connections can be open.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + reserved
    allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    if allowed - reserved < needed:
        raise ConfigError(
            f"ulimit -Hn: {most} descriptors are too few for {needed} connections and {reserved} more; raise it"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, allowed), most))
    return allowed - reserved


async def _first(pipe: Pipe) -> Message:
    """Return a stream's first message. Raises JoinRefused for none, a late one and one that cannot be read."""
    try:
        async with asyncio.timeout(HELLO_LIMIT_S):  # asyncio.wait_for of 3.11 may lose a cancellation
            data = await pipe.read()
    except TimeoutError:
        raise JoinRefused(f"no hello within {HELLO_LIMIT_S:g} s", again=True) from None
    if is_end(data):
        raise JoinRefused("the stream ended before its hello")
    try:
        return unpack(data)
    except MessageError as error:
        raise JoinRefused(str(error)) from None


def in_sessions(
    hub: Hub,
    gather: Callable[[], Connections],
    work: Callable[[Connections, int], T | None],
    farewell: Callable[[T], tuple[str, int]],
    on_loss: Callable[[PeerLost], None] = lambda lost: None,
) -> T:
    """Work with the connected parties, again whenever one is lost, and return the result.

    All parties get a GOODBYE, whatever ends the work. The work itself handles state beyond a session: a training
    continues from its last checkpoint, anything else starts anew. Raises PeerLost if a party stays away, misbehaves
    too often, or ends the work.

    Args:
        hub: expects the parties.
        gather: waits for the parties. Raises PeerLost if too few come.
        work: works in the session of this number, from 1; returns None to continue in another one. Raises PeerLost.
        farewell: returns the text of the goodbye, and its exit code, given the result.
        on_loss: handles a loss. Raises PeerLost to end the work.
    """
    reason, code = "the server stopped", INTERRUPTED
    try:
        for session in count(1):
            connections = gather()
            try:
                result = work(connections, session)
            except PeerLost as lost:
                on_loss(lost)
                if last := hub.note_offence(lost):
                    raise PeerLost(last) from None
                hub.log(f"warning: {lost}; waiting up to {hub.network.wait_s:g} s for it to come back")
                continue
            if result is not None:
                reason, code = farewell(result)
                return result
        raise AssertionError("sessions have no end")
    except Exception as error:
        reason = f"the server ended: {last_word(error)}"
        code = failure_code(error)
        raise
    finally:
        hub.dismiss(tuple(hub.expected), exit_code=code, reason=reason)
