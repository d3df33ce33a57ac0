"""Clock, locks, event loops and streams, by which the threads of a process wait.

All waiting for another thread, a time or the network goes through here, and nowhere else. So a simulation can take its
place, in which threads take turns and time is a number (``tests/faults``).
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from vfl.parties.network.transport import rpc

T = TypeVar("T")


def close(loop: asyncio.AbstractEventLoop) -> None:
    """Close an event loop, in its thread, after ending gRPC's pending work, as asyncio would complain of it."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks) if tasks else asyncio.sleep(0))
    loop.close()


class System:
    """Clock and threads of the machine that this process runs on."""

    def now_s(self) -> float:
        """Return seconds since a fixed moment."""
        return time.monotonic()

    def condition(self) -> threading.Condition:
        """Return a lock with which threads can also wait for each other."""
        return threading.Condition()

    def thread(self, run: Callable[[], object], name: str) -> threading.Thread:
        """Return a thread, not yet started, that does not keep the process alive."""
        return threading.Thread(target=run, name=name, daemon=True)

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop, to be run in one of the threads."""
        return asyncio.new_event_loop()

    def future(self) -> "Future[Any]":
        """Return a future that one thread waits for and another one sets."""
        return Future()

    def result(self, future: "Future[T]") -> T:
        """Wait for another thread's result, and return it or raise its error."""
        return future.result()

    make_server = staticmethod(rpc.make_server)
    open_channel = staticmethod(rpc.open_channel)
    open_stream = staticmethod(rpc.open_stream)


SYSTEM = System()
