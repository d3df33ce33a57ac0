"""A relay between two processes, which sees every byte."""

import contextlib
import socket
import threading
import time


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
                threading.Thread(target=self._join, args=(came,), daemon=True).start()

    def _join(self, came: socket.socket) -> None:
        # Hanging up before the server listens would look like a server that takes no plaintext.
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError):  # nobody listens yet
                ends = came, socket.create_connection(("127.0.0.1", self.port))
                break
            time.sleep(0.02)
        else:
            came.close()
            return
        for source, sink in (ends, ends[::-1]):
            threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with sink, contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.passed += data
                sink.sendall(data)
