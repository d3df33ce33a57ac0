"""All processes of an experiment by one command: they train, and do not outlive it."""

import signal
import time
from pathlib import Path

import pytest
from fork_server import ROOT
from tiny_training import outcome_of

from vfl.runs.checkpoint import CheckpointStore

TOGETHER = "together"
ROUNDS = 15
"""So many that the parent's death comes before the last."""
SECONDS = 100.0


def processes_of(folder: Path) -> list[int]:
    """Processes with the folder in their command line."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:  # ended meanwhile
            continue
        if str(folder).encode() in command:
            found.append(int(process.name))
    return found


@pytest.mark.release
def test_its_processes_end_when_it_is_killed_and_the_run_goes_on(federate, in_process):
    sections = {"training": {"rounds": ROUNDS}, "data": {"partition": {"columns": 1}}}
    federation = federate(**sections)
    federation.start_together()
    federation.wait_for_line(TOGETHER, f"1 of {ROUNDS} rounds")
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in processes_of(federation.run_dir)]
    assert [b"OMP_WAIT_POLICY=passive" in each for each in environments] == [True, True]
    assert [b"GOMP_SPINCOUNT" in each for each in environments] == [False, False]
    federation.signal(TOGETHER, signal.SIGKILL)
    assert federation.wait(TOGETHER) == -signal.SIGKILL
    until_s = time.monotonic() + SECONDS
    while processes_of(federation.run_dir):
        assert time.monotonic() < until_s, "a process is left"
        time.sleep(0.05)
    assert "SIGTERM: ending after this round and its checkpoint" in federation.log(TOGETHER)
    folders = (federation.run_dir, federation.run_dir / "processes" / "party_1")
    saved = [CheckpointStore(folder / "checkpoints").rounds()[-1] for folder in folders]
    assert 0 < saved[0] < ROUNDS
    assert saved[0] == saved[1]
    federation.start_together("--resume")
    assert federation.wait(TOGETHER) == 0, federation.log(TOGETHER)
    assert not processes_of(federation.run_dir)
    assert federation.outcome() == in_process(**sections)


@pytest.mark.release
def test_its_run_goes_on_where_it_was_moved_to(federate, in_process):
    """The processes' own configurations name files within the run's folder by whole paths."""
    data = {"partition": {"columns": 1}}
    federation = federate(training={"rounds": 2}, data=data)
    federation.start_together()
    assert federation.wait(TOGETHER) == 0, federation.log(TOGETHER)
    moved = federation.run_dir.rename(federation.folder / "moved")
    federation.launch(TOGETHER, [str(ROOT / "scripts/train.py"), str(moved), "--resume", "training.rounds=3"])
    assert federation.wait(TOGETHER) == 0, federation.log(TOGETHER)
    assert outcome_of(moved) == in_process(training={"rounds": 3}, data=data)
