"""Models of an owner's own code: named by file or module, with the bits of the module in Python, and never a peer's."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_models import NET, become_stranger, write_model
from refusals import refuses
from rich.console import Console
from shorthand import build_here, train_rounds
from tiny_training import TINY

import vfl
from vfl.base.random import seeded
from vfl.config import ConfigError, load_config, own_models, parse_config, vertical
from vfl.config.settings import agreed_values
from vfl.core.build import GivenModules
from vfl.parties.launch.local_launch import predict_together, run_together
from vfl.predict.export_run import export_run
from vfl.predict.open_run import SamplesWanted
from vfl.predict.start_from import start_of
from vfl.predict.trained_run import open_federation
from vfl.runs.run_folder import saved_config
from vfl.runs.stored_run import Run
from vfl.sweeps.sweep_plan import load_sweep

KIND = "my_models.py:Net"


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user who has named no code yet, and their file of notes."""
    become_stranger(monkeypatch, tmp_path / "state")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "state" / "lvfl" / "own_models"


def experiment(folder: Path, kind: str = KIND, name: str = "own.yaml", **options: Any) -> Path:
    """Write an experiment on the code beside it."""
    feature = {"kind": kind, "embedding_size": 8, "options": options}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(yaml.safe_dump(TINY | {"models": {"feature": feature, "head": {"hidden": [16]}}}))
    return path


def train(path: Path, run_dir: Path) -> Run:
    return vfl.train(path, run_dir=run_dir)


def refusal(path: Path) -> str:
    """The one line with which building an experiment's models ends."""

    def build() -> None:
        build_here(load_config(path))

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - any of one line
        build()
    text = str(caught.value)
    assert len(text.splitlines()) == 1, text
    return text


@pytest.mark.parametrize("form", ["file", "package"])
def test_code_that_is_named_has_the_bits_of_the_same_module_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
):
    write_model(tmp_path / "code")
    kind = KIND
    if form == "package":
        monkeypatch.syspath_prepend(tmp_path / "code")
        monkeypatch.delitem(sys.modules, "my_models", raising=False)
        kind = "my_models:Net"
    config = load_config(experiment(tmp_path / "code", kind, hidden=12))
    namespace: dict[str, Any] = {}
    exec(NET, namespace)
    models: dict[str, Any] = {}
    for party in config.parties:
        with seeded(config.seed, "init", owner=party):
            models[party] = namespace["Net"](hidden=12)
    digests: list[str] = []
    for given in (None, GivenModules(models)):
        built = build_here(config, given=given)
        train_rounds(built.server, 2)
        digests.append(built.server.summary()["model_digest"])
    assert digests[0] == digests[1]


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_model(tmp_path / "code")
    (tmp_path / "code" / "beside.py").write_text("WIDTH = 8\n")
    write_model(tmp_path / "code", f"import beside\n{NET.replace('size=8', 'size=beside.WIDTH')}")
    base = experiment(tmp_path / "code")
    (tmp_path / "other").mkdir()
    own = tmp_path / "other" / "own.yaml"
    own.write_text(f"base: {base}\nname: other\n")
    (tmp_path / "sweep.yaml").write_text(
        "name: s\nbase: other/own.yaml\ngrid: {models.feature.kind: [code/my_models.py:Net]}\n"
    )
    monkeypatch.chdir(tmp_path / "other")
    run = train(own, tmp_path / "run")
    assert run.vertical.models.feature.kind == f"{tmp_path}/code/{KIND}"
    (swept,) = load_sweep(tmp_path / "sweep.yaml").runs(1)
    assert vertical(swept.config).models.feature.kind == f"{tmp_path}/code/{KIND}"
    assert saved_config(run.folder) == run.config


def test_reading_a_configuration_runs_no_code(tmp_path: Path):
    ran = write_model(tmp_path / "code")
    load_config(experiment(tmp_path / "code"))
    assert not ran.exists()


def test_a_run_from_elsewhere_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By whatever command: its folder names code as one of the user's own does."""
    ran = write_model(tmp_path / "code")
    run = train(experiment(tmp_path / "code"), tmp_path / "run")
    assert run.predict().shape == (40, 10)
    ran.unlink()
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if not k.startswith("my_models@")})
    become_stranger(monkeypatch, tmp_path / "stranger")
    quiet = Console(quiet=True)
    own = tmp_path / "own.yaml"
    own.write_text(f"base: {run.folder}\n")
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"name: s\nbase: {run.folder}\ngrid: {{seed: [1]}}\n")
    apart = shutil.copytree(run.folder, tmp_path / "apart")
    (apart / "processes").mkdir()
    shutil.copy(apart / "config.yaml", apart / "processes" / "server.yaml")
    uses = [
        lambda: Run(run.folder).predict(),
        lambda: open_federation(Run(run.folder), with_data=False),
        lambda: export_run(run.folder, tmp_path / "exported"),
        lambda: vfl.prune(Run(run.folder), {"alpha": 0.7}),
        lambda: vfl.train(run.folder, {"training.rounds": 5}, run_dir=run.folder, resume=True),
        lambda: vfl.train(run.folder, run_dir=tmp_path / "again"),
        lambda: vfl.train(own, run_dir=tmp_path / "again"),
        lambda: run_together(load_config(run.folder), tmp_path / "together", resume=False, console=quiet),
        lambda: load_sweep(sweep),
        lambda: predict_together(apart, SamplesWanted(), tmp_path / "p.csv", quiet),
    ]
    for use in uses:
        with pytest.raises(ConfigError) as caught:
            use()
        assert "my_models.py:Net" in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    assert not ran.exists()
    assert not (tmp_path / "stranger").exists()
    assert Run(run.folder).summary["rounds"] == 4  # what needs no model is read as ever


def test_a_run_with_other_options_than_the_user_named_runs_no_code(tmp_path: Path):
    write_model(tmp_path / "code")
    run = train(experiment(tmp_path / "code", hidden=12), tmp_path / "run")
    saved = run.folder / "config.yaml"
    saved.write_text(saved.read_text().replace("hidden: 12", "hidden: 13"))
    with pytest.raises(ConfigError, match="options"):
        Run(run.folder).predict()


def test_code_of_a_configuration_that_the_user_names_is_the_user_s_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_model(tmp_path / "code")
    run = train(path := experiment(tmp_path / "code"), tmp_path / "run")
    become_stranger(monkeypatch, tmp_path / "stranger")
    load_config(path)
    monkeypatch.setattr(own_models, "_noted", set())  # as another process
    assert Run(run.folder).predict().shape == (40, 10)


def test_peers_learn_nothing_of_the_code_and_own_stands_for_it(tmp_path: Path):
    write_model(tmp_path / "code")
    config = load_config(experiment(tmp_path / "code"))
    assert KIND not in str(agreed_values(config, replayed=True))
    server = parse_config(
        TINY | {"models": {"feature": {"kind": "own", "embedding_size": 8}, "head": {"hidden": [16]}}}
    )
    assert agreed_values(server, replayed=True) == agreed_values(config, replayed=True)
    refuses("models.feature.kind", lambda: build_here(server), "owner")


def test_a_training_may_start_from_a_run_of_the_same_code_elsewhere(tmp_path: Path):
    write_model(tmp_path / "code")
    run = train(experiment(tmp_path / "code"), tmp_path / "run")
    shutil.copytree(tmp_path / "code", tmp_path / "moved")
    config = load_config(tmp_path / "moved" / "own.yaml", [f"training.start_from={run.folder}"])
    start = start_of(config, tmp_path / "next")
    assert build_here(config, start=start).parties[0].pruner.alpha_max == 0.5


@pytest.mark.parametrize(
    ("kind", "text", "parts"),
    [
        ("my_models.py", NET, ["my_models.py"]),
        ("my_models.py:", NET, ["my_models.py:Net"]),
        ("my models:Net", NET, ["my models"]),
        ("gone.py:Net", NET, ["gone.py", "relative"]),
        ("my_models.py:Nut", NET, ["Nut", "did you mean 'Net'"]),
        ("no_such_package.models:Net", NET, ["no_such_package"]),
        (KIND, "1 / 0", ["cannot be imported", "ZeroDivisionError"]),
        (KIND, "raise SystemExit(3)", ["cannot be imported", "SystemExit"]),
        (KIND, "def Net(: pass", ["cannot be imported", "SyntaxError"]),
        (KIND, "Net = 3", ["cannot be built", "not callable"]),
        (KIND, "def Net(): return 3", ["gives 3", "torch.nn.Module"]),
        (KIND, NET.replace("super().__init__()", "raise OSError('two\\nlines')"), ["OSError: two lines"]),
        (KIND, NET.replace("size=8", "size=5"), ["embedding_size to 5"]),
        (KIND, NET.replace("return self", "1 / 0; return self"), ["ZeroDivisionError"]),
        (KIND, NET.replace("return self.layers(images)", "return self.layers(images) * len(images)"), ["alone"]),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path, kind: str, text: str, parts: list[str]):
    write_model(tmp_path / "code", text)
    said = refusal(experiment(tmp_path / "code", kind))
    assert all(part in said for part in parts), said


def test_an_option_that_the_code_does_not_take_is_refused_in_one_line(tmp_path: Path):
    write_model(tmp_path / "code")
    said = refusal(experiment(tmp_path / "code", width=3))
    assert "width" in said
    assert "my_models.py:Net" in said


def test_notes_are_bounded_and_their_loss_is_said(tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(own_models, "MOST_NOTES", 10)
    for number in range(25):
        own_models.note_own(KIND, {"number": number})
    assert len(user.read_text().split()) <= 10
    monkeypatch.setattr(own_models, "_noted", set())
    own_models.check_noted(KIND, {"number": 24})
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="XDG_STATE_HOME"):
        own_models.note_own(KIND, {"number": 30})
    own_models.check_noted(KIND, {"number": 30})  # for this process
