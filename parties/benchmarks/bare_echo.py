"""A round trip with gRPC and TLS alone, no envelope and no thread of ours: what ours can at best come to.

``python -m parties.benchmarks.bare_echo CONFIG NAME`` is its child process.
"""

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue

from parties.benchmarks.workbench import JOIN_S, Workplace, child
from parties.remote.supervisor import SERVER
from parties.remote.tls.certificates import Peer
from parties.remote.transport.rpc import Pipe, Server, grpc, is_end, make_server, open_channel, open_stream
from parties.remote.transport.security import load_identity
from vfl.config import ExperimentConfig, load_config


@contextmanager
def bare_echoing(config: ExperimentConfig) -> Generator[Callable[[bytes, int], bytes]]:
    """Start one process that sends back every gRPC message.

    Yield a function that sends a message so many times, each once the one before has come back, and returns the last
    one that came back.
    """
    pipes: Queue[Pipe] = Queue()
    with tempfile.TemporaryDirectory() as folder, _running_loop() as loop:
        workplace, name = Workplace.make(config, Path(folder)), config.parties[0]
        with (
            _listening(workplace.configs[SERVER], loop, pipes),
            child(__name__, str(workplace.folder / f"{name}.yaml"), name),
        ):
            pipe = pipes.get(timeout=JOIN_S)

            async def trips(content: bytes, times: int) -> bytes:
                back = b""
                for _ in range(times):
                    await pipe.write(content)
                    back = await pipe.read()
                return back

            yield lambda content, times: asyncio.run_coroutine_threadsafe(trips(content, times), loop).result()


@contextmanager
def _running_loop() -> Generator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="bare echo", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def _listening(config: ExperimentConfig, loop: asyncio.AbstractEventLoop, pipes: "Queue[Pipe]") -> Generator[None]:
    """Serve streams on a loop that runs in another thread; put the pipe of each into the queue."""
    over = asyncio.Event()
    tls = load_identity(SERVER, config.network, "listen", insecure=False)

    async def serve(pipe: Pipe, _caller: Peer | None) -> None:
        await pipe.read()  # the client's first message: gRPC tells of a stream with it
        pipes.put(pipe)
        await over.wait()

    async def listen() -> Server:
        server = make_server(config.network.listen, tls, 1, serve)
        await server.start()
        return server

    async def stop() -> None:
        over.set()
        await server.stop(None)

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()


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
