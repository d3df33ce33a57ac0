"""Checks of everything that can keep a server from starting, in the order in which it would meet it."""

import os
import shutil
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from vfl.config import ExperimentConfig
from vfl.data.source import open_source
from vfl.parties.launch.doctor import Check, find_folder, find_keys, look
from vfl.parties.network.server.server_process import server_labels
from vfl.parties.network.tls.certificates import SERVER
from vfl.predict.start_from import server_start

LEAST_FREE = 100_000_000
"""Bytes of a disk below which a training hardly has room for its checkpoints."""
DRIFT_S = 60.0
"""Seconds by which a file may be newer than this machine's clock: file servers have clocks of their own."""


def examine_server(config: ExperimentConfig, file: Path, run_dir: Path, *, insecure: bool) -> Iterator[Check]:
    """Check a server's configuration, data, keys, folder, disk, port and clock. Starts and changes nothing.

    ``file`` is the configuration's own. Without a usable configuration nothing else is checked.
    """
    _, known = look("config", lambda: _known(config))
    yield known
    if not known.good:
        return
    for name, check in {
        "data": lambda: _data(config, run_dir),
        "keys": lambda: find_keys(config, SERVER, insecure=insecure),
        "folder": lambda: (None, find_folder(config, run_dir)),
    }.items():
        yield look(name, check)[1]
    yield _disk(run_dir)
    yield _port(config.network.listen)
    yield _clock(file)


def _known(config: ExperimentConfig) -> tuple[None, str]:
    parties = ", ".join(config.parties)
    return None, f"server of experiment {config.name!r} for {parties}, training.labels={config.training.labels}"


def _data(config: ExperimentConfig, run_dir: Path) -> tuple[None, str]:
    start = server_start(config, run_dir)
    labels = server_labels(config, open_source(config).held_labels(), start)
    return None, f"labels of {len(labels.train.labels_N)} training and {len(labels.test.values)} test samples"


def _disk(run_dir: Path) -> Check:
    there = next(each for each in (run_dir.absolute(), *run_dir.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        return Check("disk", f"{there} cannot be written by this user; name another --run-dir", good=False)
    enough = free >= LEAST_FREE
    return Check("disk", f"{free / 1e9:.1f} GB free at {there}{'' if enough else '; make room'}", enough, not enough)


def _port(address: str) -> Check:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just closed is free
            probe.bind(target)
    except OSError as error:
        text = f"network.listen: {address} cannot be bound ({error.strerror}); stop what listens there, or name another"
        return Check("port", text, good=False, may_pass=True)
    return Check("port", f"network.listen={address} can be bound")


def _clock(file: Path) -> Check:
    now = time.time()
    shown = f"{datetime.fromtimestamp(now, UTC):%F %R} UTC"
    if file.is_file() and file.stat().st_mtime > now + DRIFT_S:
        written = f"{datetime.fromtimestamp(file.stat().st_mtime, UTC):%F %R} UTC"
        return Check("clock", f"{shown}, but {file} was written on {written}; set this machine's clock", good=False)
    return Check("clock", f"{shown}; certificates go by it")
