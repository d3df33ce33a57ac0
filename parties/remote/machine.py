"""What the threads of a process wait by: time, locks, event loops, streams to other processes.

Whatever waits for another thread, for a time or for the network goes through here, and nowhere else. So a simulation
can stand in the machine's place, in which threads take turns and time is a number (``tests/faults``).
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from parties.remote.transport import rpc

T = TypeVar("T")


def close(loop: asyncio.AbstractEventLoop) -> None:
    """Close an event loop, in its thread; what gRPC has under way in it ends first, or asyncio complains of it."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks) if tasks else asyncio.sleep(0))
    loop.close()


class Machine:
    """The one that this process runs on."""

    def now_s(self) -> float:
        """Return seconds since some moment."""
        return time.monotonic()

    def condition(self) -> threading.Condition:
        """Return a lock, by which threads can also wait for each other."""
        return threading.Condition()

    def thread(self, run: Callable[[], object], name: str) -> threading.Thread:
        """Return a thread, to be started, that does not keep the process alive."""
        return threading.Thread(target=run, name=name, daemon=True)

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop, to be run in one of the threads."""
        return asyncio.new_event_loop()

    def future(self) -> "Future[Any]":
        """Return what a thread waits for and another one sets."""
        return Future()

    def result(self, future: "Future[T]") -> T:
        """Wait for what another thread computes, and return it or raise its error."""
        return future.result()

    make_server = staticmethod(rpc.make_server)
    open_channel = staticmethod(rpc.open_channel)
    open_stream = staticmethod(rpc.open_stream)


MACHINE = Machine()
