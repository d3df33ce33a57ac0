"""Federations of real processes, as in tests/remote."""

from remote.conftest import federate, in_process

__all__ = ["federate", "in_process"]
