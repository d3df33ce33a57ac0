"""Sockets that listen."""

import asyncio
import socket

from vfl.parties.network.transport.listening import listening


def test_an_answer_never_waits_for_an_acknowledgement():
    async def accepted(listener: socket.socket) -> int:
        came = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(lambda _reader, writer: came.set_result(writer), sock=listener)
        async with server:
            _reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            there: asyncio.StreamWriter = await came
            without_delay = there.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for each in (writer, there):
                each.close()
            return without_delay

    with listening("serving.listen", "127.0.0.1:0") as sockets:
        assert [asyncio.run(accepted(each)) for each in sockets] == [1]
