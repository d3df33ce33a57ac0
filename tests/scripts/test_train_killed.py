"""A training that dies at any instant goes on where it was, to the same bits, rows and bytes."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fork_server import ROOT, ForkServer
from shorthand import release
from tiny_training import Ended, outcome_of

from vfl.runs.checkpoint import CheckpointStore

SCRIPT = ROOT / "scripts" / "train.py"
ROUNDS = 4
UPDATES = 4
"""Of parties in a round: two exchanges with two parties."""
SECTIONS = 4
"""Loop, server and two parties: each two files of a checkpoint."""
EXPERIMENT = {
    "name": "killed",
    "seed": 3,
    "threads": 1,
    "data": {"train_samples": 48, "test_samples": 40, "partition": {"rows": 1, "columns": 2}},
    "models": {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8}, "head": {"hidden": [16]}},
    "training": {
        "rounds": ROUNDS,
        "steps_per_round": 2,
        "batch_size": 16,
        "local_iterations": 2,
        "optimizer": {"learning_rate": 0.05, "momentum": 0.9},
    },
    # Pruned before a kill in round 2, and again after it.
    "lightweighting": {
        "alpha": {1: 0.2, 3: 0.5},
        "beta": {0: 0.3, 2: 0.6},
        "error_feedback": True,
        "resolution": {"party_1": {0: 0.5, 3: 1.0}},
    },
    "checkpoint": {"every": 1},
}


Strike = tuple[str, int, str]
"""At which place, at which time of passing it, what happens: see places.py."""


class Runner:
    """Runs the training command of one experiment in processes of their own."""

    def __init__(self, fork_server: ForkServer, folder: Path, every: int) -> None:
        self.fork_server = fork_server
        self.folder = folder
        self.run_dir = folder / "run"
        self.every = every
        self.config = folder / "experiment.yaml"
        self.config.write_text(yaml.safe_dump(EXPERIMENT | {"checkpoint": {"every": every}}))

    def __call__(self, *strikes: Strike, resume: bool = False) -> Ended:
        """Run it in a fork of the server, with what shall happen to it."""
        log, errors = self.folder / "out", self.folder / "err"
        for path in (log, errors):
            path.write_text("")
        places = Path(__file__).with_name("places.py")
        process = self.fork_server.start(
            self.argv(resume=resume), log, errors=errors, places=places, strikes=strikes, life_s=60
        )
        return Ended(self.fork_server.wait(process), log.read_text(), errors.read_text())

    def from_scratch(self, *, resume: bool = False) -> Ended:
        """Run it as a user does, in a new interpreter."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *self.argv(resume=resume)], env=environment, capture_output=True, text=True, timeout=120
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def argv(self, *, resume: bool) -> list[str]:
        resumption = ["--resume"] if resume else []
        return [str(SCRIPT), str(self.config), "--run-dir", str(self.run_dir), *resumption]

    @property
    def saved_rounds(self) -> list[int]:
        return CheckpointStore(self.run_dir / "checkpoints").rounds()

    def outcome(self) -> dict[str, Any]:
        return outcome_of(self.run_dir)


@pytest.fixture(scope="module")
def uninterrupted(fork_server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the plain command reaches when nothing happens to it."""
    runner = Runner(fork_server, tmp_path_factory.mktemp("uninterrupted"), every=1)
    ended = runner()
    assert (ended.code, ended.err) == (0, "")
    outcome = runner.outcome()
    # What a wrong resume would have to get right: both prunings, changing sparsity, sparse differences, image sizes.
    assert [row["alpha/party_1"] for row in outcome["rows"]] == [0.0, 0.2, 0.2, 0.5]
    assert [row["beta/party_1"] for row in outcome["rows"]] == [0.3, 0.3, 0.6, 0.6]
    assert [row["resolution/party_1"] for row in outcome["rows"]] == [0.5, 0.5, 0.5, 1.0]
    return outcome


@pytest.fixture
def make_runner(fork_server, tmp_path: Path) -> Callable[[int], Runner]:
    return lambda every: Runner(fork_server, tmp_path, every)


def check_finished(runner: Runner, ended: Ended, uninterrupted: dict[str, Any]) -> None:
    """The run is done, equals the uninterrupted one, and left nothing behind."""
    assert (ended.code, ended.err) == (0, "")
    assert runner.outcome() == uninterrupted
    assert runner.saved_rounds == ([3, 4] if runner.every == 1 else [2, 4])
    assert left_behind(runner) == []


def left_behind(runner: Runner) -> list[str]:
    return [path.name for path in runner.run_dir.rglob(".*")]


def files_until(checkpoint: int) -> int:
    """Durably written files before a checkpoint's: two of settings, the emptied rows, earlier checkpoints."""
    return 3 + checkpoint * (2 * SECTIONS + 1)


# A place, how often it is passed unharmed, and the checkpoints then there with checkpoint.every 1 and 2.
KILLS = {
    "while the configuration is written": ("half a file", 0, [], []),
    "before the settings of its predictions": ("half a file", 1, [], []),
    "before the folder has its rows": ("rename over", 2, [], []),
    "in the first round": ("update", 2, [], []),
    "in the first round's row": ("half a row", 0, [], []),
    "between the first row and its checkpoint": ("evaluated", 0, [], []),
    "at the first checkpoint's first file": ("half a file", files_until(0), [], []),
    "between the first checkpoint's files and manifest": ("half a file", files_until(1) - 1, [], []),
    "between the first manifest and the name": ("rename", 0, [], []),
    "in a round between two prunings": ("update", 2 * UPDATES + 1, [1, 2], [2]),
    "in a row": ("half a row", 2, [1, 2], [2]),
    "between a row and its checkpoint": ("evaluated", 2, [1, 2], [2]),
    "in the second checkpoint's tensors": ("half a file", files_until(1) + 3, [1], [2]),
    "between the second checkpoint's files and manifest": ("half a file", files_until(2) - 1, [1], [2]),
    "in the round of the second pruning, after it": ("update", 3 * UPDATES + 3, [2, 3], [2]),
    "before the summary": ("summary", 0, [3, 4], [2, 4]),
    "while the summary is written": ("rename over", 3, [3, 4], [2, 4]),
}


AT_EVERY_RUN = {("in the second checkpoint's tensors", 1)}
"""The others are for a release."""


def every_that_matters() -> list[Any]:
    """Instants with each checkpoint.every, once where there is no checkpoint before them either way."""
    cases = [(instant, every) for instant, kill in KILLS.items() for every in (1, 2) if every == 1 or kill[3]]
    return [pytest.param(*case, marks=() if case in AT_EVERY_RUN else pytest.mark.release) for case in cases]


@pytest.mark.parametrize(("instant", "every"), every_that_matters())
def test_a_killed_run_goes_on_to_the_same_end(make_runner, uninterrupted, instant: str, every: int):
    place, passed, *saved = KILLS[instant]
    runner = make_runner(every)
    assert runner((place, passed + 1, "SIGKILL")).code == -signal.SIGKILL
    assert runner.saved_rounds == saved[every - 1]
    assert not (runner.run_dir / "summary.json").exists()
    check_finished(runner, runner(resume=True), uninterrupted)


@pytest.mark.release
@pytest.mark.parametrize(("passed", "saved"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [2, 3, 4]), (3, [3, 4])])
def test_a_run_killed_while_an_old_checkpoint_is_removed(make_runner, uninterrupted, passed: int, saved: list[int]):
    runner = make_runner(1)
    assert runner(("remove", passed + 1, "SIGKILL")).code == -signal.SIGKILL
    assert runner.saved_rounds == saved
    ended = runner(resume=True)
    if passed < 2:  # there is a checkpoint to come
        check_finished(runner, ended, uninterrupted)
    else:  # nobody needs to tidy up after the last one
        assert (ended.code, ended.err) == (0, "")
        assert runner.outcome() == uninterrupted
        assert left_behind(runner) == ([] if passed == 2 else [".partial-round_000002"])


@pytest.mark.release
def test_a_killed_run_goes_on_in_a_new_interpreter(make_runner, uninterrupted):
    runner = make_runner(2)
    assert runner(("update", 2 * UPDATES + 2, "SIGKILL")).code == -signal.SIGKILL
    check_finished(runner, runner.from_scratch(resume=True), uninterrupted)


@pytest.mark.release
def test_a_run_killed_again_and_again_while_it_resumes(make_runner, uninterrupted):
    runner = make_runner(1)
    blows = [
        ("update", 2 * UPDATES + 1),  # in round 2
        ("rename over", 1),  # while the rows of lost rounds are dropped
        ("half a file", 1),
        ("update", 1),
        ("half a row", 1),
        ("half a file", 4),  # in the checkpoint of round 2
        ("rename", 1),
        ("update", UPDATES + 1),  # in round 3
        ("summary", 1),
    ]
    for number, (place, passing) in enumerate(blows):
        assert runner((place, passing, "SIGKILL"), resume=number > 0).code == -signal.SIGKILL, place
    check_finished(runner, runner(resume=True), uninterrupted)


@pytest.mark.parametrize("every", [1, release(2)])
@pytest.mark.parametrize("name", ["SIGTERM", release("SIGINT")])
def test_a_signal_ends_the_run_after_its_round_and_a_checkpoint(make_runner, uninterrupted, name: str, every: int):
    runner = make_runner(every)
    ended = runner(("update", 2 * UPDATES + 1, name))
    assert (ended.code, ended.err) == (130, "")
    assert f"{name}: ending after this round and its checkpoint" in ended.out
    assert f"interrupted after 3 rounds; go on with --run-dir {runner.run_dir} --resume" in ended.out
    assert runner.saved_rounds == [2, 3]  # round 3 also where every second one is due
    assert len((runner.run_dir / "metrics.jsonl").read_text().splitlines()) == 3
    assert not (runner.run_dir / "summary.json").exists()
    shutil.rmtree(runner.run_dir / "checkpoints/round_000002")  # the last full round alone must do
    resumed = runner(resume=True)
    assert (resumed.code, resumed.err) == (0, "")
    assert "resumed after 3 of 4 rounds" in resumed.out
    assert runner.outcome() == uninterrupted


@pytest.mark.release
def test_a_signal_in_the_last_round_finishes_the_run(make_runner, uninterrupted):
    runner = make_runner(2)
    check_finished(runner, runner(("update", 3 * UPDATES + 2, "SIGTERM")), uninterrupted)


@pytest.mark.release
@pytest.mark.parametrize("second", ["SIGINT", release("SIGTERM")])
def test_a_second_signal_ends_the_run_at_once(make_runner, uninterrupted, second: str):
    runner = make_runner(2)
    ended = runner(("update", 2 * UPDATES + 1, "SIGINT"), ("update", 2 * UPDATES + 2, second))
    assert (ended.code, ended.err) == (130, "interrupted; what was saved stays\n")
    assert runner.saved_rounds == [2]
    assert len((runner.run_dir / "metrics.jsonl").read_text().splitlines()) == 2
    check_finished(runner, runner(resume=True), uninterrupted)


@pytest.mark.release
def test_a_second_signal_while_a_checkpoint_is_written(make_runner, uninterrupted):
    runner = make_runner(2)
    ended = runner(("update", UPDATES + 1, "SIGINT"), ("half a file", files_until(0) + 3, "SIGINT"))
    assert (ended.code, ended.err) == (130, "interrupted before the first checkpoint: nothing was saved\n")
    assert runner.saved_rounds == []
    check_finished(runner, runner(resume=True), uninterrupted)


@pytest.mark.parametrize(
    ("checkpoint", "still", "file"),
    [
        (0, [], 0),
        release(1, [1], 5),
        release(2, [1, 2], 2 * SECTIONS),
        release(3, [2, 3], 2 * SECTIONS - 1),
    ],
    ids=["first file", "tensors", "manifest", "last checkpoint"],
)
def test_a_disk_that_is_full_at_a_checkpoint(make_runner, uninterrupted, checkpoint: int, still: list[int], file: int):
    runner = make_runner(1)
    ended = runner(("checkpoint file", checkpoint * (2 * SECTIONS + 1) + file + 1, "ENOSPC"))
    assert ended.code == 75
    assert ended.err == (
        f"error: the checkpoint after round {checkpoint + 1} could not be saved in {runner.run_dir / 'checkpoints'}: "
        f"No space left on device; still saved: rounds {still}; free space, then continue with --resume\n"
    )
    assert runner.saved_rounds == still
    check_finished(runner, runner(resume=True), uninterrupted)


@pytest.mark.release
@pytest.mark.parametrize("every", [1, 2])
def test_a_disk_that_is_full_at_a_row(make_runner, uninterrupted, every: int):
    runner = make_runner(every)
    ended = runner(("row", 3, "ENOSPC"))
    assert ended.code == 75
    assert ended.err == (
        f"error: {runner.run_dir}/metrics.jsonl: cannot be written (No space left on device); "
        "mend that, then continue with --resume\n"
    )
    assert runner.saved_rounds == ([1, 2] if every == 1 else [2])
    check_finished(runner, runner(resume=True), uninterrupted)


@pytest.mark.release
def test_a_disk_that_is_full_from_the_start(make_runner, uninterrupted):
    runner = make_runner(1)
    ended = runner(("any file", 1, "ENOSPC"))
    assert ended.code == 75
    assert ended.err == f"error: --run-dir: {runner.run_dir} cannot be written (No space left on device)\n"
    check_finished(runner, runner(), uninterrupted)  # nothing began, so nothing is to be resumed
