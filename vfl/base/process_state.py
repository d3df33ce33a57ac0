"""The state of PyTorch and NumPy in which lvfl computes, whatever the calling program has set."""

import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import torch

CUDNN = "benchmark", "deterministic", "allow_tf32"
"""Settings of cuDNN that a run changes."""


class _ProcessWide:
    """What all threads share: the first call sets the standard, and the last one restores what the program had."""

    def __init__(self) -> None:
        self._lock, self._calls = threading.Lock(), 0
        self._restore = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._set()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._calls -= 1
            if not self._calls:
                self._restore.close()

    def _set(self) -> None:
        self._restore.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        # RuntimeError: the caller has set a precision by PyTorch's newer names, which the older ones do not read.
        with suppress(RuntimeError):
            self._restore.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        for name in CUDNN:
            with suppress(RuntimeError):
                self._restore.callback(setattr, torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))


_process_wide = _ProcessWide()


@contextmanager
def standard_state() -> Generator[None]:
    """Compute as a fresh process does, then restore the caller's state, also after an error; decorates functions too.

    It covers default dtype and device, gradients, inference mode, autocast, float32's precision and NumPy's errors. The
    number of threads is only restored. PyTorch's random state stays alone: only `seeded` draws from it.
    """
    with ExitStack() as stack:
        stack.callback(_use_threads, torch.get_num_threads())
        stack.enter_context(_process_wide)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(np.errstate(all="warn", under="ignore"))
        if torch.get_default_device().type != "cpu":  # the mode slows down every call
            stack.enter_context(torch.device("cpu"))
        for device in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            # Uncached: PyTorch empties the cache at the end of the outermost autocast, which is the caller's.
            stack.enter_context(torch.autocast(device, enabled=False, cache_enabled=False))
        yield


def _use_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
