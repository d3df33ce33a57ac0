"""A process opens its own data and nobody else's: the kernel is asked (inotify), not the program."""

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vfl.parties.network.tls.certificates import SERVER

IN_OPEN, IN_NONBLOCK = 0x20, os.O_NONBLOCK
_EVENT = struct.Struct("iIII")


class Watch:
    """Names of the files in a folder that any process opens."""

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = libc.inotify_init1(IN_NONBLOCK)
        assert libc.inotify_add_watch(self.descriptor, os.fsencode(folder), IN_OPEN) >= 0

    def opened(self) -> set[str]:
        """Return the names since the last call; the folder itself is ``""``."""
        try:
            events = os.read(self.descriptor, 1 << 20)
        except BlockingIOError:
            return set()
        names: set[str] = set()
        while events:
            *_, length = _EVENT.unpack_from(events)
            names.add(events[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode())
            events = events[_EVENT.size + length :]
        return names - {""}

    def close(self) -> None:
        os.close(self.descriptor)


@pytest.fixture
def watch() -> Iterator[Callable[[Path], Watch]]:
    made: list[Watch] = []

    def make(folder: Path) -> Watch:
        made.append(Watch(folder))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_the_watch_sees_what_is_opened(tmp_path, watch):
    (tmp_path / "file").write_text("-")
    (tmp_path / "other").write_text("-")
    watching = watch(tmp_path)
    (tmp_path / "file").read_text()
    assert watching.opened() == {"file"}
    assert watching.opened() == set()


@pytest.mark.parametrize("labels", ["shared", "server"])
@pytest.mark.release
def test_nobody_opens_what_is_not_his(labels, federate, watch):
    federation = federate(training={"labels": labels})
    watching = watch(federation.folder / "data")
    shared = {"shared_labels.safetensors"} if labels == "shared" else set()
    # One process after another is started and left waiting for the next, so that it is known who opened what.
    for name in ("party_1", SERVER):
        federation.start(name)
        said = {SERVER: "waiting for party_2", "party_1": "dialling the server"}[name]
        federation.wait_for_line(name, said)
        own = {"labels.safetensors"} if name == SERVER else {f"{name}.safetensors"} | shared
        assert watching.opened() == own
    federation.start("party_2")
    federation.finish()
    federation.check_ended()
    assert watching.opened() == {"party_2.safetensors"} | shared
