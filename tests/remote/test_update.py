"""``lvfl update``: what is served is the old version or the new one, and never a worse one."""

import itertools
import os
import shutil
from pathlib import Path

import pytest
from refusals import refuses
from test_checkpoint_killed import die_at

from vfl.config.prediction import PREDICTION
from vfl.parties.launch.update import _judged, _swap  # pyright: ignore[reportPrivateUsage]
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run_folder import PROCESSES
from vfl.runs.stored_run import Run

OWNERS = ("clinic", "laboratory")


def write_run(folder: Path, rounds: tuple[int, ...], metric: float = 0.9) -> Run:
    """Write a run of processes with these checkpoints; the server's names the owners'."""
    for done in rounds:
        digests = dict[str, object]()
        for owner in OWNERS:
            store = CheckpointStore(folder / PROCESSES / owner / "checkpoints", 3)
            store.save(done, {"party": {"owner": owner, "done": done}})
            digests[owner] = store.digest(done)
        loop = {"last_metrics": {"auc/test": metric}}
        CheckpointStore(folder / "checkpoints").save(done, {"loop": loop, "server": {"refers": digests}})
    (folder / "config.yaml").write_text("base: quickstart_tables.yaml\n")
    (folder / PREDICTION).write_text(f'{{"rounds": {rounds[-1]}}}')
    (folder / "summary.json").write_text('{"metric": "auc", "uplink_bytes": 0, "train_macs": 0}')
    (folder / "metrics.jsonl").write_text("".join(f'{{"round": {done}}}\n' for done in range(rounds[-1])))
    return Run(folder)


def served(folder: Path) -> int:
    """Return the rounds of the version that ``lvfl serve`` would take; every owner has its part of it."""
    loaded = CheckpointStore(folder / "checkpoints").load_latest()
    assert loaded is not None
    done, sections = loaded
    for owner, digest in sections["server"]["refers"].items():
        store = CheckpointStore(folder / PROCESSES / owner / "checkpoints")
        assert store.load(done)["party"] == {"owner": owner, "done": done}
        assert store.digest(done) == digest
    return done


@pytest.mark.release
def test_killed_at_any_step_the_old_version_is_served_or_the_new_one_and_it_goes_on(tmp_path: Path):
    new = write_run(tmp_path / "run-next", (3, 6))
    before = write_run(tmp_path / "before", (2, 3)).folder
    outcomes: list[int] = []
    for step in itertools.count(1):
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)
        run = Run(folder)
        child = os.fork()
        if child == 0:
            die_at(step)
            _swap(run, new, OWNERS, 2)
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        outcomes.append(served(folder))
        _swap(run, new, OWNERS, 2)
        assert served(folder) == 6
        assert CheckpointStore(folder / "checkpoints").rounds()[-2:] == [3, 6], "the version before can be served again"
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 6
        if not killed:
            break
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {3, 6}


def test_what_interrupted_updates_left_takes_no_place_of_the_served_version(tmp_path: Path):
    run, new = write_run(tmp_path / "run", (3,)), write_run(tmp_path / "run-next", (3, 9))
    store = CheckpointStore(tmp_path / "run" / PROCESSES / "clinic" / "checkpoints", 9)
    for done in (5, 6, 7):
        store.save(done, {"party": {"owner": "clinic", "done": done}})
    _swap(run, new, OWNERS, 2)
    assert {3, 9} <= {*store.rounds()}
    assert served(run.folder) == 9
    assert (run.folder / PREDICTION).read_bytes() == (new.folder / PREDICTION).read_bytes()


@pytest.mark.parametrize(("after", "points", "good"), [(0.9, 0, True), (0.89, 0, False), (0.89, 1.1, True)])
def test_a_model_that_lost_more_than_is_accepted_is_not_served(tmp_path: Path, after: float, points: float, good: bool):
    run, new = write_run(tmp_path / "run", (3,)), write_run(tmp_path / "run-next", (6,), after)
    if good:
        assert "after 6 rounds" in _judged(run, new, points)
    else:
        refuses("--points", lambda: _judged(run, new, points))
    assert served(run.folder) == 3
