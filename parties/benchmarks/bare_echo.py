"""A round trip with gRPC and TLS alone, no envelope and no thread of ours: what ours can at best come to.

``python -m parties.benchmarks.bare_echo CONFIG NAME`` is its child process.
"""

import asyncio
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from parties.benchmarks.workbench import JOIN_S, Workplace
from parties.remote.tls.certificates import Peer
from parties.remote.together import SERVER
from parties.remote.transport.rpc import Pipe, Server, grpc, is_end, make_server, open_channel, open_stream
from parties.remote.transport.security import load_identity
from vfl.config import ExperimentConfig, load_config


class BareEcho:
    """One process that sends back every gRPC message; a context manager."""

    _server: Server
    _pipe: Pipe

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config
        self._loop = asyncio.new_event_loop()
        self._connected = threading.Event()
        self._over = asyncio.Event()
        self._at_end = ExitStack()

    def __enter__(self) -> Self:
        """Start it and wait until it has dialled."""
        with ExitStack() as undo:
            workplace = Workplace.make(self.config, Path(undo.enter_context(tempfile.TemporaryDirectory())))
            name = self.config.parties[0]
            thread = threading.Thread(target=self._loop.run_forever, name="bare echo", daemon=True)
            thread.start()
            undo.callback(self._loop.close)
            undo.callback(thread.join)
            undo.callback(self._loop.call_soon_threadsafe, self._loop.stop)
            network = workplace.configs[SERVER].network
            tls = load_identity(SERVER, network, "listen", insecure=False)

            async def listen() -> None:
                self._server = make_server(network.listen, tls, 1, self._serve)
                await self._server.start()

            async def stop() -> None:
                self._over.set()
                await self._server.stop(None)

            asyncio.run_coroutine_threadsafe(listen(), self._loop).result()
            undo.callback(lambda: asyncio.run_coroutine_threadsafe(stop(), self._loop).result())
            command = [
                sys.executable,
                "-m",
                "parties.benchmarks.bare_echo",
                str(workplace.folder / f"{name}.yaml"),
                name,
            ]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
            undo.callback(process.wait)
            undo.callback(process.kill)
            if not self._connected.wait(JOIN_S):
                raise TimeoutError(f"the echo did not dial within {JOIN_S:g} s")
            self._at_end = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._at_end.close()

    def send(self, content: bytes, times: int) -> bytes:
        """Send so many times, each after the one before has come back; return what came back last."""

        async def trips() -> bytes:
            back = b""
            for _ in range(times):
                await self._pipe.write(content)
                back = await self._pipe.read()
            return back

        return asyncio.run_coroutine_threadsafe(trips(), self._loop).result()

    async def _serve(self, pipe: Pipe, _caller: Peer | None) -> None:
        await pipe.read()  # the client's first message: gRPC tells of a stream with it
        self._pipe = pipe
        self._connected.set()
        await self._over.wait()


async def echo(config: ExperimentConfig, name: str) -> None:
    """Send everything back until the server hangs up."""
    tls = load_identity(name, config.network, "server", insecure=False)
    call = open_stream(open_channel(config.network.server, tls))
    await call.write(b"here")
    while not is_end(message := await call.read()):
        await call.write(message)


if __name__ == "__main__":
    with suppress(grpc.aio.AioRpcError):  # the server is gone
        asyncio.run(echo(load_config(Path(sys.argv[1])), sys.argv[2]))
