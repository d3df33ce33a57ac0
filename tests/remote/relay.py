"""A relay between two processes, which sees every byte."""

import contextlib
import socket
import threading


class Relay:
    """Passes bytes between whoever connects and a port, and keeps them."""

    def __init__(self, port: int) -> None:
        self.port, self.passed = port, bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                came = self.listener.accept()[0]
                try:
                    ends = came, socket.create_connection(("127.0.0.1", self.port))
                except OSError:  # nobody listens yet
                    came.close()
                    continue
                for source, sink in (ends, ends[::-1]):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with sink, contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.passed += data
                sink.sendall(data)
