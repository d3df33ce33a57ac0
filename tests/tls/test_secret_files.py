"""Who may read a secret: its user alone, or, where root mounts it for a group, the processes of that group."""

import os
from itertools import product
from pathlib import Path

import pytest

from vfl.parties.network.tls.files import load_key
from vfl.runs.atomic import is_open_to_others
from vfl.runs.run_folder import read_secret

ME, OTHER = 4000, 4001
GROUP, FURTHER, STRANGE = 5000, 5001, 5002


def status_of(mode: int, user: int, group: int) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 1, 1, 1, user, group, 100, 0, 0, 0))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640, 0o460, 0o444, 0o404, 0o644, 0o660, 0o777])
def test_only_a_mounted_secret_of_root_is_read_by_a_group(mode, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: ME)
    monkeypatch.setattr(os, "getegid", lambda: GROUP)
    monkeypatch.setattr(os, "getgroups", lambda: [FURTHER])
    for user, group in product((0, ME, OTHER), (0, GROUP, FURTHER, STRANGE)):
        mounted = mode == 0o440 and user == 0 and group in (GROUP, FURTHER)
        assert is_open_to_others(status_of(mode, user, group)) == (mode not in (0o600, 0o400) and not mounted)


def read_as_another_user(folder: Path) -> int:
    """Return 0 if a process without root accepts both secrets, 2 if it refuses both."""
    child = os.fork()
    if child == 0:  # a fork: another user may not be able to read this interpreter
        code = 1
        try:
            os.setgroups([FURTHER])
            os.setgid(GROUP)
            os.setuid(ME)
            refused = 0
            for read in (lambda: read_secret(folder / "token"), lambda: load_key("", folder / "key.pem")):
                try:
                    read()
                except ValueError:
                    refused += 1
            code = refused
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize(
    ("mode", "group", "accepted"),
    [(0o440, GROUP, True), (0o440, FURTHER, True), (0o444, GROUP, False), (0o640, GROUP, False), (0o600, 0, True)],
)
def test_a_process_without_root_reads_secrets_as_kubernetes_mounts_them(mode, group, accepted, credentials, tmp_path):
    """Files behind two links, of root and a group that the process has by itself or by ``fsGroup``."""
    mount = tmp_path / "secrets"
    (mount / "..2026").mkdir(parents=True)
    (mount / "..data").symlink_to("..2026")
    contents = {"token": b"0123456789abcdef", "key.pem": credentials("party_1").key.read_bytes()}
    for name, content in contents.items():
        path = mount / "..2026" / name
        path.write_bytes(content)
        os.chown(path, ME if mode == 0o600 else 0, group)
        path.chmod(mode)
        (mount / name).symlink_to(f"..data/{name}")
    for folder in [mount, *mount.parents]:
        if folder.is_relative_to(tmp_path.parents[2]):
            folder.chmod(0o755)
    (mount / "..2026").chmod(0o755)
    assert read_as_another_user(mount) == (0 if accepted else 2)
