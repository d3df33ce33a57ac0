"""A project that was moved goes on at its new place: what its data hold counts, not where they lie."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from refusals import refused
from shorthand import release
from tiny_training import rows_of, timeless, train_run
from two_tables import sections_of, write_tables

import vfl
from vfl.config import ConfigError, Experiment, load_config, parse_config, parse_experiment
from vfl.config.files import lay_over
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run_folder import begin_run, check_run

OWNERS = ("bank", "shop")


class Project(NamedTuple):
    """A folder with a configuration, data and a run of three rounds."""

    folder: Path
    places: tuple[str, ...]
    """The settings that name the data from within the folder."""

    @property
    def run(self) -> Path:
        return self.folder / "run"


def sections(folder: Path) -> dict[str, Any]:
    own = sections_of({owner: folder / f"{owner}.csv" for owner in OWNERS})
    training = own["training"] | {"rounds": 3, "steps_per_round": 2, "batch_size": 16}
    return own | {"name": "moved", "threads": 1, "training": training, "checkpoint": {"every": 1, "keep": 3}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "project"
    folder.mkdir()
    write_tables(folder, range(80), labelled=True)
    train_run(sections(folder), folder / "run")
    (folder / "config.yaml").write_text(yaml.safe_dump(sections(Path())))
    return folder


@pytest.fixture
def moved(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The project at another place, where the caller stands; nothing is left at the first one."""
    hidden = trained.with_name("hidden")
    shutil.copytree(trained, tmp_path / "second")
    trained.rename(hidden)
    monkeypatch.chdir(tmp_path / "second")
    yield Project(tmp_path / "second", tuple(f"data.tables.{owner}.file={owner}.csv" for owner in OWNERS))
    hidden.rename(trained)


@pytest.mark.parametrize("how", ["own configuration", "run and places"])
def test_a_moved_run_is_resumed_to_the_same_bits(how, call, moved: Project):
    shutil.rmtree(moved.run / "checkpoints/round_000003")
    before = rows_of(moved.run)
    named = ["config.yaml", "--run-dir", "run"] if how == "own configuration" else ["run", *moved.places]
    assert call("train", *named, "--resume")[0] == 0
    assert timeless(rows_of(moved.run)) == timeless(before)
    config = load_config(moved.run / "config.yaml")
    assert [config.data.tables[owner].file for owner in OWNERS] == [moved.folder / f"{owner}.csv" for owner in OWNERS]
    assert call("predict", "run")[0] == 0  # it has learned its new places


@pytest.mark.parametrize("arguments", [("predict",), release(("audit",)), ("prune", "alpha=0.7")])
def test_a_finished_moved_run_is_used_with_its_new_places_named(arguments, call, moved: Project):
    name, *settings = arguments
    before = (moved.run / "config.yaml").read_bytes()
    code, _, line = call(name, "run", *settings)
    assert code == 2
    assert "bank.csv" in line
    assert "data.tables.bank.file=FILE" in line
    code, _, line = call(name, "run", *settings, *moved.places)
    assert code == 0, line
    assert (moved.run / "config.yaml").read_bytes() == before


def test_a_moved_run_predicts_the_same_in_python(trained: Path, moved: Project):
    moved_run = vfl.Run("run", places=moved.places)
    assert moved_run.predict().shape == (16, 2)
    config = moved_run.vertical.data.tables["bank"].file
    assert config == moved.folder / "bank.csv"


@pytest.mark.parametrize("setting", ["seed=7", "training.rounds=9", "data.tables.bank.label=age", "data.join=left"])
def test_only_places_can_be_named_of_a_finished_run(setting, call, moved: Project):
    code, _, line = call("predict", "run", *moved.places, setting)
    assert code == 2
    assert line.startswith(f"error: {setting.split('=')[0]} (")
    assert not (moved.run / "predictions.csv").exists()


@pytest.mark.parametrize("command", ["train", "predict", "audit"])
def test_other_data_at_the_new_place_are_refused_and_nothing_is_written(command, call, moved: Project):
    bank = moved.folder / "bank.csv"
    heading, first, *lines = bank.read_text().splitlines()
    key, _, *cells = first.split(",")
    bank.write_text("\n".join([heading, ",".join([key, "9.5", *cells]), *lines]))
    before = (moved.run / "config.yaml").read_bytes()
    resume = ["--resume", "training.rounds=4"] if command == "train" else []
    code, _, line = call(command, "run", *moved.places, *resume)
    assert code == 2
    assert line.startswith("error: --resume: " if command == "train" else "error: run: ")
    assert "bank's features are not those of the saved run" in line
    assert (moved.run / "config.yaml").read_bytes() == before
    assert CheckpointStore(moved.run / "checkpoints").rounds() == [1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"data.tables.bank.file": None},
        {"data.test_file": "other.csv"},
        {"data.tables.bank.match": "bank.match"},
        {"seed": 9},
        {"data.tables.shop.key": "spent"},
    ],
)
def test_a_place_that_was_not_there_is_another_configuration(change, moved: Project):
    with pytest.raises(ConfigError, match=r"^--resume: the configuration has changed: .*" + next(iter(change))):
        check_run(moved.run, parse_config(lay_over(sections(moved.folder), change)), resume=True)


OF_VERTICAL = ("data.file", "data.dataset.root", "training.start_from", "data.test_file")


@pytest.mark.parametrize(
    ("mode", "setting"), [*(("vertical", each) for each in OF_VERTICAL), ("horizontal", "data.dataset.root")]
)
def test_every_path_of_the_data_may_be_another_one(mode, setting, tmp_path: Path):
    def experiment(place: str) -> Experiment:
        return parse_experiment(lay_over({"name": "moved", "mode": mode}, {setting: str(tmp_path / place)}))

    begin_run(tmp_path / "run", experiment("first"))
    check_run(tmp_path / "run", experiment("second"), resume=True)
    with refused("--resume", setting):
        check_run(tmp_path / "run", parse_experiment({"name": "moved", "mode": mode}), resume=True)
