"""Federations of real processes, as in tests/remote."""

from remote.conftest import federate, in_process, zygote

__all__ = ["federate", "in_process", "zygote"]
