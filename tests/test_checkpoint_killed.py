"""A checkpoint survives a kill at any instant.

Run as a program this file is the process that gets killed: see `main` at its end.
"""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_states import assert_same, content

import vfl
from vfl.runs.checkpoint import CheckpointStore

pytestmark = pytest.mark.release
REACHED = 20
"""Rounds that are passed before processes are no longer killed."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stores as SIGKILL left them: save/0001, ..., replace/, recover/, random/."""
    directory = tmp_path_factory.mktemp("killed")
    environment = os.environ | {"PYTHONPATH": str(Path(vfl.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", __file__, str(directory)]
    subprocess.run(command, env=environment, check=True, timeout=120)
    return directory


class TestKill:
    @pytest.mark.parametrize(
        ("scenario", "new"),
        [("save", (3, content(3))), ("replace", (2, content(2, 1))), ("recover", (3, content(3)))],
    )
    def test_at_every_step_of_a_save(self, killed: Path, scenario: str, new: Any) -> None:
        old = (2, content(2))
        outcomes: list[bool] = []
        for folder in sorted((killed / scenario).iterdir()):
            store = CheckpointStore(folder)
            if 1 in store.rounds():
                assert_same(store.load(1), content(1))
            latest = store.load_latest()
            assert latest is not None
            outcomes.append(latest[0] == new[0] and latest[1]["loop"]["version"] == new[1]["loop"]["version"])
            assert_same(latest, new if outcomes[-1] else old)
            store.save(4, content(4))
            assert_same(store.load_latest(), (4, content(4)))
            names = sorted(path.name for path in folder.iterdir())
            assert names == [f"round_{latest[0]:06d}", "round_000004"]
        assert len(outcomes) > 80
        assert outcomes == sorted(outcomes)  # once new, a later step cannot bring the old one back
        assert set(outcomes) == {False, True}

    def test_at_random_moments_of_saving_round_after_round(self, killed: Path) -> None:
        reached = [0]
        for folder in sorted((killed / "random").iterdir()):
            round_index, sections = CheckpointStore(folder).load_latest() or (0, None)
            assert sections is None or round_index > 0
            assert_same(sections, content(round_index) if round_index else None)
            reached.append(round_index)
        assert reached == sorted(reached)
        assert reached[-1] > REACHED


def main(directory: Path) -> None:
    """Start processes that save and die, and leave what is on the disk then to the tests."""
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None
    kill_at_every_step(directory / "save", 3, 0)
    kill_at_every_step(directory / "replace", 2, 1)
    kill_at_every_step(directory / "recover", 3, 0)
    kill_at_random_moments(directory / "random")


def kill_at_every_step(directory: Path, round_index: int, version: int) -> None:
    for step in itertools.count(1):
        store = CheckpointStore(directory / f"{step:04d}")
        for earlier in (1, 2):
            store.save(earlier, content(earlier))
        if directory.name == "recover":  # as if killed between the two renames of a replacement of round 2
            committed = store.directory / "round_000002"
            shutil.copytree(committed, store.directory / ".partial-round_000002")
            committed.rename(store.directory / ".replaced-round_000002")
        child = os.fork()
        if child == 0:
            die_at(step)
            store.save(round_index, content(round_index, version))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            assert status == 0
            return


def die_at(step: int) -> None:
    """Have this process killed before its `step`-th change of the file system or line of a write."""
    count = itertools.count(1)

    def tick() -> None:
        if next(count) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def trace(frame: Any, event: str, _: object) -> Any:
        if event == "line":
            tick()
        return trace if frame.f_code.co_name == "write_durably" else None

    changes = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
    sys.addaudithook(lambda event, _: tick() if event in changes else None)
    sys.settrace(trace)


def kill_at_random_moments(directory: Path) -> None:
    generator = random.Random(0)
    store = CheckpointStore(directory / "0000")
    for attempt in itertools.count(1):
        child = os.fork()
        if child == 0:
            for round_index in itertools.count(max(store.rounds(), default=1)):  # replaces the last one first
                store.save(round_index, content(round_index))
        time.sleep(generator.uniform(0, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if store.directory.exists():
            shutil.copytree(store.directory, directory / f"{attempt:04d}")
            if attempt >= 20 and max(store.rounds(), default=0) > REACHED:  # however busy the machine is
                break
    shutil.rmtree(store.directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
