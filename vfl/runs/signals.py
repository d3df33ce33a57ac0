"""SIGINT and SIGTERM as a request to stop."""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def stop_on_signal(request_stop: Callable[[str], None]) -> Generator[None]:
    """Turn the first SIGINT or SIGTERM into ``request_stop(name)``, a second one into KeyboardInterrupt."""

    def handle(number: int, _frame: object) -> None:
        for each in previous:
            signal.signal(each, signal.default_int_handler)
        request_stop(signal.Signals(number).name)

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
