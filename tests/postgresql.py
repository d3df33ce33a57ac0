"""A real PostgreSQL, Debian's package, started in a folder of its own."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest


class Server(NamedTuple):
    database: str
    """Without a password."""
    password: str
    folder: Path
    start: Callable[[], None]
    stop: Callable[[], None]

    def end_connections(self) -> None:
        self.stop()
        self.start()


def binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        pytest.skip("Debian's package postgresql is not installed")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent


@contextmanager
def running_postgresql() -> Generator[Server]:
    """Yield PostgreSQL on a Unix socket alone, with a password for whoever comes."""
    programs = binaries()
    folder = Path(tempfile.mkdtemp(prefix="lvfl-pg-"))
    nobody = pwd.getpwnam("nobody")
    as_nobody: list[str] = []
    if os.getuid() == 0:  # it refuses to run as root
        as_nobody = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    (folder / "password").write_text("s3cret")
    (folder / "password").chmod(0o644)

    def ask(*argv: str) -> None:
        done = subprocess.run([*as_nobody, *argv], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    data = str(folder / "data")
    control = (str(programs / "pg_ctl"), "-D", data, "-w", "-t", "60")
    initdb = (str(programs / "initdb"), "-D", data, "-U", "bank", "-A", "scram-sha-256", "--no-sync", "-E", "UTF8")
    ask(*initdb, "--pwfile", str(folder / "password"))

    def start() -> None:
        ask(*control, "-o", f"-k {folder} -c listen_addresses='' -c fsync=off", "-l", str(folder / "log"), "start")

    def stop() -> None:
        ask(*control, "-m", "immediate", "stop")

    start()
    database = f"postgresql://bank@/postgres?host={quote(str(folder), safe='')}"
    try:
        yield Server(database, "s3cret", folder, start, stop)
    finally:
        stop()
        shutil.rmtree(folder)
