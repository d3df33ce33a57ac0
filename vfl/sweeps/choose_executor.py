"""The executor that a command line asks for: ``--on``, ``--jobs``."""

import argparse
from contextlib import AbstractContextManager, nullcontext

from vfl.base.errors import ConfigError
from vfl.sweeps.executor import AnyExecutor, Resources
from vfl.sweeps.pool import LocalProcesses


def open_executor(arguments: argparse.Namespace, resources: Resources) -> AbstractContextManager[AnyExecutor]:
    """Return the executor that the command line chose. Raises ConfigError for impossible options."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ConfigError(f"--jobs: {arguments.jobs} runs at once train nothing; give at least 1")
    engine, _, address = arguments.on.partition("=")
    if arguments.on == "local":
        return nullcontext(LocalProcesses(arguments.jobs or 1, resources))
    if engine != "ray" or arguments.on == "ray=":
        raise ConfigError(f"--on: {arguments.on!r} is no place for runs; choose local, ray or ray=HOST:PORT")
    from vfl.sweeps.on_ray import on_ray  # an extra: only who asks for it needs it

    return on_ray(address or None, arguments.jobs, resources)
