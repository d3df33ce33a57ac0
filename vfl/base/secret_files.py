"""Files that hold a secret, and the users who may read them."""

import os
import stat

FIX = "chmod 600 it; only a mounted secret of root may be 0440, for a group of this process"


def is_open_to_others(file: os.stat_result) -> bool:
    """Return whether users other than this process's own may read a file, or write it.

    0440 of root and a group of this process is private, too: Kubernetes mounts secrets so for a pod without root, and
    nobody in the pod can change that.
    """
    mounted = file.st_uid == 0 and file.st_gid in (os.getegid(), *os.getgroups())
    return bool(stat.S_IMODE(file.st_mode) & 0o077) and not (mounted and stat.S_IMODE(file.st_mode) == 0o440)
