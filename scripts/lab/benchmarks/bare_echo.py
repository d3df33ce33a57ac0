"""A round trip with gRPC and TLS alone, without our frame and threads: the lower bound of ours.

``python -m scripts.lab.benchmarks.bare_echo CONFIG NAME`` is its child process.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from scripts.lab.benchmarks.workbench import JOIN_S, Workplace, child
from vfl.config import ExperimentConfig, NetworkConfig, load_config
from vfl.parties.network.tls.certificates import SERVER, Peer
from vfl.parties.network.transport.rpc import Pipe, Server, grpc, is_end, make_server, open_channel, open_stream
from vfl.parties.network.transport.security import load_identity
from vfl.parties.network.wire.frame import PIECE_BYTES


@contextmanager
def bare_echoing(config: ExperimentConfig) -> Generator[Callable[[bytes, int], bytes]]:
    """Start one process that sends back every gRPC message.

    Yield a function that sends a message several times, each after the previous reply, and returns the last reply.
    """
    pipes, over = asyncio.Queue[Pipe](), asyncio.Event()

    async def serve(pipe: Pipe, _caller: Peer | None) -> None:
        await pipe.read()  # the client's first message: gRPC tells of a stream with it
        pipes.put_nowait(pipe)
        await over.wait()

    async def listen(network: NetworkConfig) -> Server:
        server = make_server(network.listen, load_identity(SERVER, network, insecure=False), 1, serve)
        await server.start()
        return server

    async def trips(pipe: Pipe, content: bytes, times: int) -> bytes:
        pieces = [content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)]
        back = list[bytes]()
        for _ in range(times):
            for piece in pieces:
                await pipe.write(piece)
            back = [await pipe.read() for _ in pieces]
        return b"".join(back)

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as loop:
        workplace, name = Workplace.make(config, Path(folder)), config.parties[0]
        server = loop.run(listen(workplace.configs[SERVER].network))
        try:
            with child(__name__, str(workplace.folder / f"{name}.yaml"), name):
                pipe = loop.run(asyncio.wait_for(pipes.get(), JOIN_S))
                yield lambda content, times: loop.run(trips(pipe, content, times))
        finally:
            over.set()
            loop.run(server.stop(None))


async def echo(config: ExperimentConfig, name: str) -> None:
    """Send everything back until the server hangs up."""
    tls = load_identity(name, config.network, insecure=False)
    call = open_stream(open_channel(config.network.server, tls))
    await call.write(b"here")
    while not is_end(message := await call.read()):
        await call.write(message)


if __name__ == "__main__":
    with suppress(grpc.aio.AioRpcError):  # the server is gone
        asyncio.run(echo(load_config(Path(sys.argv[1])), sys.argv[2]))
