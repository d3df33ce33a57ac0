"""A run that was killed and resumed is the run that was not: weights, states, costs and clock, bit for bit."""

import pytest
import torch
from horizontal.conftest import ENGINES
from refusals import refuses
from safetensors.torch import load_file
from shorthand import release

from vfl.horizontal.client_states import OnDisk
from vfl.horizontal.components import ALGORITHMS
from vfl.runs.callbacks import Callback
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.loop import TrainingLoop

ROUNDS = 5
KILLED_IN = 3
"""Round after whose training, before whose checkpoint, the process dies; checkpoints are of every second round."""
DEVICES = {"availability": 0.8, "dropout": 0.2, "speed": {"kind": "exponential", "mean": 2.0, "redrawn": True}}
VARIANTS = {name: {"algorithm": name} for name in ALGORITHMS.built_in} | {
    "scaffold option 1": {"algorithm": "scaffold", "scaffold": {"option": 1}},
    "scaffold local buffers": {"algorithm": "scaffold", "buffers": "local"},
    "fedasync local buffers": {"algorithm": "fedasync", "buffers": "local"},
    "dms interval": {"algorithm": "dms", "work": {"kind": "interval", "interval_s": 2.0}},
    "fedlga partial": {"algorithm": "fedlga", "local_epochs": 3, "work": {"kind": "partial"}},
}


class Killed(RuntimeError):  # noqa: N818 - what happens to the process, no error of ours
    pass


class KillAfter(Callback):
    """Dies after a round's training, before its checkpoint."""

    def on_round(self, loop, round_index, metrics):
        if round_index == KILLED_IN:
            raise Killed


class Record(Callback):
    def __init__(self):
        self.rows = {}

    def on_round(self, loop, round_index, metrics):
        # Seconds of this machine are measured, all others are simulated.
        self.rows[round_index] = {tag: value for tag, value in metrics.items() if "train_time_s" not in tag}


@pytest.fixture(params=["batched", release("sequential")])
def engine(request):
    """Neither engine keeps anything from one cohort to the next (``engines/test_contract.py``)."""
    return ENGINES[request.param]


@pytest.fixture
def run(configure, build, problem_with_batch_norm, engine):
    """Build everything anew, as another process would, and train in a folder."""

    def train(folder, settings, *callbacks):
        config = configure(horizontal={"devices": DEVICES} | settings)
        on_disk = config.horizontal.client_state == "disk"
        trainer = build(config, problem_with_batch_norm, engine, run_dir=folder if on_disk else None)
        store = CheckpointStore(folder / "checkpoints", keep=2)
        TrainingLoop(trainer, ROUNDS, callbacks, checkpoints=store, checkpoint_every=2).run()
        return trainer

    return train


def comparable(trainer):
    """Return all state of a trainer without the seconds of this machine."""
    sections = trainer.state_dict()
    for costs in sections["clients"]["costs"].values():
        costs.pop("train_time_s")
    return flat(sections)


def flat(tree, prefix=""):
    if not isinstance(tree, dict | list):
        return {prefix: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {key: leaf for name, branch in items for key, leaf in flat(branch, f"{prefix}/{name}").items()}


def check_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


def kept_in_memory(name):
    """Every third is the smoke test of horizontal learning in each run."""
    smoke = [*VARIANTS].index(name) % 3 == 0
    return pytest.param(VARIANTS[name], "memory", id=f"{name}-memory", marks=[] if smoke else pytest.mark.release)


def kept_on_disk(name):
    """Clients have a state of their own in one of these; the others are for a release."""
    own = name.startswith("scaffold")
    return pytest.param(VARIANTS[name], "disk", id=f"{name}-disk", marks=[] if own else pytest.mark.release)


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        *map(kept_in_memory, VARIANTS),
        *map(kept_on_disk, VARIANTS),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(run, tmp_path, settings, place):
    settings = settings | {"client_state": place}
    whole, rest = Record(), Record()
    expected = run(tmp_path / "whole", settings, whole)
    with pytest.raises(Killed):
        run(tmp_path / "killed", settings, KillAfter())
    resumed = run(tmp_path / "killed", settings, rest)
    assert sorted(rest.rows) == [2, 3, 4]
    assert all(rest.rows[round_index] == whole.rows[round_index] for round_index in rest.rows)
    check_same(comparable(resumed), comparable(expected))
    assert resumed.summary()["model_digest"] == expected.summary()["model_digest"]
    if place == "disk":
        for client in range(6):
            check_same(resumed.fleet.states.get(client), expected.fleet.states.get(client))


def test_a_clients_state_is_read_once_per_round(build, problem, configure, tmp_path, monkeypatch):
    settings = {"algorithm": "scaffold", "client_state": "disk"}
    read, get = [], OnDisk.get
    monkeypatch.setattr(OnDisk, "get", lambda states, client: read.append(client) or get(states, client))
    trainer = build(configure(horizontal=settings), problem, run_dir=tmp_path)
    for round_index in range(2):
        read.clear()
        trainer.train_round(round_index)
        assert len(read) == len(set(read)) == 3


def test_another_split_of_the_data_is_refused(run, tmp_path, configure, build, problem_with_batch_norm):
    run(tmp_path, {})
    trainer = build(configure(), problem_with_batch_norm)
    state = CheckpointStore(tmp_path / "checkpoints").load(ROUNDS)
    trainer.data_digest = "other data"
    refuses("--resume", lambda: trainer.load_state_dict(state), "clients")


def vectors(value):
    return {"control_variate": torch.full((3,), float(value))}


@pytest.fixture
def states(tmp_path):
    return OnDisk(tmp_path / "client_states", keep=2)


def test_states_on_disk_come_back_and_clients_without_one_have_an_empty_one(states):
    states.put(4, vectors(1), 0)
    states.put(5, {}, 0)
    assert torch.equal(states.get(4)["control_variate"], vectors(1)["control_variate"])
    assert states.get(5) == states.get(0) == {}


def test_every_kept_checkpoint_finds_its_client_states(states, tmp_path):
    """States change between checkpoints; the last two checkpoints and the present stay whole, the rest goes."""
    saved = []
    for round_index in range(12):
        states.put(round_index % 3, vectors(round_index), round_index)
        if round_index % 2:
            saved.append((states.state_dict(), {client: states.get(client) for client in range(3)}))
            for versions, expected in saved[-2:]:
                reader = OnDisk(tmp_path / "client_states", keep=2)
                reader.load_state_dict(versions)
                for client in range(3):
                    check_same(reader.get(client), expected[client])
    assert len(list(states.folder.iterdir())) <= 3 * 4


def test_what_a_killed_run_leaves_is_replaced_and_in_the_end_removed(states):
    states.put(0, vectors(0), 0)
    checkpoint = states.state_dict()
    states.put(0, vectors(99), 1)
    states.put(1, vectors(99), 7)
    again = OnDisk(states.folder, keep=2)
    again.load_state_dict(checkpoint)
    check_same(again.get(0), vectors(0))
    assert again.get(1) == {}
    again.put(0, vectors(1), 1)
    check_same(again.get(0), vectors(1))
    for _ in range(4):
        again.state_dict()
    names = {path.name for path in states.folder.iterdir()}
    assert names == {"client_1-round_000001.safetensors"}
    check_same(load_file(states.folder / names.pop()), vectors(1))
