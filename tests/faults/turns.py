"""Threads that take turns in an order drawn from a seed, and a clock that moves when all of them wait.

The threads are real and run the program's own code, but one at a time: whichever waits (``Turns.block``) hands on the
turn. The same seed gives the same order and the same times, and so the same run.
"""

import asyncio
import hashlib
import heapq
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from math import inf
from typing import Any

PAUSES = 0.2
"""How often a thread that could go on lets others go first."""


class Killed(BaseException):
    """This thread's process is dead: nothing that it still does is seen."""


class Process:
    """Threads, and what they hold, that are frozen and killed together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen_until_s = self.busy_until_s = 0.0
        """All of it; its main thread alone."""
        self.main: Thread
        self.signals = deque[int]()
        self.handlers: dict[int, Any] = {}
        self.loops: list[Loop] = []


class Thread(threading.Thread):
    """A thread that runs when it is its turn."""

    def __init__(self, turns: "Turns", process: Process, run: Callable[[], object], name: str) -> None:
        super().__init__(target=run, name=f"{process.name}/{name}", daemon=True)
        self.turns = turns
        self.process = process
        self.turn = threading.Semaphore(0)
        self.ready: Callable[[], object] = lambda: True
        self.until_s = inf
        self.over = False

    def start(self) -> None:
        self.turns.threads.append(self)
        super().start()

    def run(self) -> None:
        self.turn.acquire()
        try:
            if self.process.alive:
                super().run()
        except Killed:
            pass
        except BaseException as error:
            self.turns.fail(f"{self.name}: {error!r}", error)
        finally:
            self.over = True
            self.turns.leave(self)

    def join(self, timeout: float | None = None) -> None:
        self.turns.block(lambda: self.over, timeout)

    def due_s(self, now_s: float) -> float:
        """When it may run, if nobody does anything meanwhile."""
        process, is_main = self.process, self is self.process.main
        if not process.alive:
            return 0.0
        held_s = max(process.frozen_until_s, process.busy_until_s if is_main else 0.0)
        return max(held_s, now_s if (is_main and process.signals) or self.ready() else self.until_s)


class Turns:
    """Says whose turn it is, and what time it is; made by the thread that directs, which has its turns as well."""

    def __init__(self, seed: int, limit_s: float) -> None:
        self.random = random.Random(seed)
        self.limit_s = limit_s
        self.now_s = 0.0
        self.trace = hashlib.sha256()
        """Of every turn; that of the same seed is the same."""
        self.failure: tuple[str, BaseException | None] | None = None
        """What must not be."""
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._number = count()
        self.director = Process("director")
        self.current = self.director.main = Thread(self, self.director, lambda: None, "main")
        self.threads = [self.current]

    def block(self, ready: Callable[[], object], timeout_s: float | None = None) -> None:
        """Let others run until something is true, or a time is over. Raises Killed."""
        me = self.current
        process = me.process
        me.ready, me.until_s = ready, inf if timeout_s is None else self.now_s + timeout_s
        while True:
            if process.alive:
                self._hand_on(me)
            if not process.alive:
                raise Killed
            while me is process.main and process.signals:
                number = process.signals.popleft()
                process.handlers.get(number, signal.default_int_handler)(number, None)
            if self.now_s >= me.until_s or ready():
                return

    def pause(self) -> None:
        """Let others run, now and then."""
        if not self.current.process.alive or self.random.random() < PAUSES:
            self.block(lambda: True)

    def at(self, time_s: float, act: Callable[[], object]) -> None:
        """Have something happen in the world: it takes no time, and waits for nothing."""
        heapq.heappush(self._events, (max(time_s, self.now_s), next(self._number), act))

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """Note what must not be, and let the director go on alone."""
        self.failure = self.failure or (what, error)
        self.director.main.until_s = self.now_s
        self._kill_all()

    def end(self) -> None:
        """Kill all processes and wait until their threads are over."""
        others = self._kill_all()
        self.block(lambda: all(thread.over for thread in others))
        for thread in others:
            threading.Thread.join(thread)

    def leave(self, thread: Thread) -> None:
        """End a thread's part, and what its process's event loops would have run where it was the last."""
        self.threads.remove(thread)
        if not thread.process.alive and all(each.process is not thread.process for each in self.threads):
            for loop in thread.process.loops:
                loop.close()
        self.current = self._next()
        self.current.turn.release()

    def _kill_all(self) -> list[Thread]:
        others = [thread for thread in self.threads if thread.process is not self.director]
        for thread in others:
            thread.process.alive = False
        return others

    def _hand_on(self, me: Thread) -> None:
        self.current = self._next()
        if self.current is not me:
            self.current.turn.release()
            me.turn.acquire()

    def _next(self) -> Thread:
        while True:
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[2]()
            due_s = [thread.due_s(self.now_s) for thread in self.threads]
            able = [thread for thread, time_s in zip(self.threads, due_s, strict=True) if time_s <= self.now_s]
            if able:
                chosen = self.random.choice([thread for thread in able if not thread.process.alive] or able)
                self.trace.update(f"{self.now_s:.9f} {chosen.name}\n".encode())
                return chosen
            self.now_s = min(*due_s, self._events[0][0] if self._events else inf)
            if self.now_s > self.limit_s:
                self.now_s = self.limit_s
                self.fail(f"after {self.limit_s:g} s these still wait: {[thread.name for thread in self.threads]}")


class Condition:
    """A ``threading.Condition`` whose waiters take turns."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self._holder: Thread | None = None
        self._depth = 0
        self._waiting: list[list[bool]] = []

    def __enter__(self) -> None:
        if self._holder is self.turns.current:
            self._depth += 1
        else:
            self.turns.pause()
            self._acquire(1)

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None

    def wait(self, timeout: float | None = None) -> bool:
        notified = [False]
        self._waiting.append(notified)
        depth, self._depth, self._holder = self._depth, 0, None
        self.turns.block(lambda: notified[0], timeout)
        if not notified[0]:
            self._waiting.remove(notified)
        self._acquire(depth)
        return notified[0]

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until_s = inf if timeout is None else self.turns.now_s + timeout
        while not (result := predicate()) and self.turns.now_s < until_s:
            self.wait(None if timeout is None else until_s - self.turns.now_s)
        return result

    def notify(self, n: int = 1) -> None:
        for notified in self._waiting[:n]:
            notified[0] = True
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))

    def _acquire(self, depth: int) -> None:
        if self._holder is not None:
            self.turns.block(lambda: self._holder is None)
        self._holder, self._depth = self.turns.current, depth


class Loop(asyncio.BaseEventLoop):
    """An event loop that waits by handing on its thread's turn."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns
        self.process = turns.current.process
        self.process.loops.append(self)
        self._woken = False
        self._selector = self

    def time(self) -> float:
        return self.turns.now_s

    def select(self, timeout: float | None) -> Iterable[object]:
        """Wait, as a selector does, until another thread calls or a timer is due."""
        if timeout != 0:
            self.turns.block(lambda: self._woken, timeout)
        self._woken = False
        return ()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Do it at once."""
        future = self.create_future()
        future.set_result(func(*args))
        return future

    def close(self) -> None:
        """Close; of a dead process, end what it would have run."""
        for task in asyncio.all_tasks(self) if not self.process.alive else ():
            task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
            body: Any = task.get_coro()
            while body.cr_frame is not None:  # its last words wait as well
                with suppress(RuntimeError, Killed):
                    body.close()
        super().close()

    def _process_events(self, event_list: Iterable[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        self._woken = True
