"""The package as a stranger has it: built and installed outside the tree, used in an empty folder."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
FILES = ("pyproject.toml", "README.md", "LICENSE")
FOLDERS = ("scripts", "configs", "models", "parties", "vfl")
TINY = [
    "threads=1",
    "data.train_samples=64",
    "data.test_samples=40",
    "training.batch_size=32",
    "models.feature.kind=mlp",
    "models.feature.width=0.1",
    "training.rounds=2",
]
SWEEP = """
name: mine
base: quickstart
grid: {lightweighting.beta: [0.0, 0.5]}
"""

Command = Callable[..., str]


def install(folder: Path, *options: str) -> Path:
    """Install a copy of this checkout into a new virtual environment, and return that.

    Other packages are those of the running interpreter.
    """
    checkout, venv = folder / "checkout", folder / "venv"
    checkout.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, checkout)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    (site_packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--ignore-installed"]
    subprocess.run([venv / "bin/python", *pip, *options, checkout], check=True)
    return venv


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the installed package, whose checkout is gone."""
    venv = install(tmp_path_factory.mktemp("installed"))
    shutil.rmtree(venv.parent / "checkout")
    return venv


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which the package is a checkout."""
    return install(tmp_path_factory.mktemp("editable"), "--editable")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module")
def lvfl(environment: Path, folder: Path) -> Command:
    """Run the command in the empty folder and return what it printed."""

    def run(*arguments: str) -> str:
        command = [environment / "bin/lvfl", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_version_is_that_of_the_project(lvfl: Command):
    assert f'version = "{lvfl("--version").split()[1]}"' in (ROOT / "pyproject.toml").read_text()


def test_what_the_code_reads_beside_itself_is_installed(environment: Path):
    (site_packages,) = environment.glob("lib/python*/site-packages")
    beside = [path for room in ("vfl",) for end in ("j2", "yaml") for path in (ROOT / room).rglob(f"*.{end}")]
    assert {path.name for path in beside} >= {"page.html.j2", "card.md.j2"}
    assert [path for path in beside if not (site_packages / path.relative_to(ROOT)).exists()] == []


def test_help_of_a_command_imports_neither_pytorch_nor_the_configuration(environment: Path):
    code = """
import sys
from importlib import import_module
from vfl.__main__ import COMMANDS
for name in COMMANDS:
    if not name.startswith("paper-"):
        sys.argv = [name, "--help"]
        try:
            import_module(f"vfl.commands.{name.replace('-', '_')}").main()
        except SystemExit as end:
            assert end.code == 0, name
print(sorted({"torch", "pydantic", "numpy", "matplotlib", "grpc"} & sys.modules.keys()))
"""
    done = subprocess.run([environment / "bin/python", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stdout.count("usage: ") > 10


def test_a_shipped_experiment_trains_by_its_name(lvfl: Command, folder: Path):
    lvfl("train", "quickstart", *TINY)
    assert json.loads((folder / "runs/quickstart/summary.json").read_text())["rounds"] == 2


def test_processes_give_the_bits_of_one(lvfl: Command, folder: Path):
    lvfl("train", "quickstart", *TINY, "--processes", "--run-dir", "five")
    one, five = (json.loads((folder / run / "summary.json").read_text()) for run in ("runs/quickstart", "five"))
    assert one["model_digest"] == five["model_digest"]


def test_a_sweep_over_a_shipped_experiment_is_trained_and_reported(lvfl: Command, folder: Path):
    (folder / "mine.yaml").write_text(SWEEP)
    lvfl("sweep", "mine.yaml", *TINY)
    lvfl("report", "runs/mine")
    assert len((folder / "runs/mine/sweep.csv").read_text().splitlines()) == 3
    assert (folder / "runs/mine/report/report.html").stat().st_size > 10_000


def test_nothing_of_the_checkout_was_used(environment: Path, folder: Path):
    shipped = "from vfl.config.shipped import shipped_folder"
    code = f"import vfl, vfl.parties, vfl.models; {shipped}; print(vfl, vfl.parties, vfl.models, shipped_folder())"
    python = environment / "bin/python"
    said = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert said.count(str(environment)) == 4
    assert len(list(environment.glob("lib/*/site-packages/*/py.typed"))) == 1


OWN = """
import configs, models, parties, scripts, utils, yaml
import vfl

if __name__ == "__main__":
    assert {configs.OWN, models.OWN, parties.OWN, scripts.OWN, utils.OWN} == {"the user's"}
    settings = {key: yaml.safe_load(value) for key, value in (each.split("=") for each in SETTINGS)}
    print(vfl.train("quickstart", settings, run_dir="from_python").summary["rounds"])
"""


@pytest.mark.parametrize("installed", ["environment", "editable"])
def test_a_folder_with_names_like_ours_trains(installed: str, tmp_path: Path, request: pytest.FixtureRequest):
    """A user's models.py, parties.py, utils.py, scripts/ and configs/ lie first on the path, and are not ours."""
    for name in ("models.py", "parties.py", "utils.py", "scripts/__init__.py", "configs/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('OWN = "the user\'s"\n')
    (tmp_path / "own.py").write_text(f"SETTINGS = {TINY!r}\n{OWN}")
    python = request.getfixturevalue(installed) / "bin/python"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    clients = ["threads=1", "data.dataset.kind=digits", "models.classifier.kind=logistic", "training.rounds=2"]
    commands = {
        "from_python": ["own.py"],
        "from_module": ["-m", "vfl", "train", "quickstart", *TINY, "--run-dir", "from_module"],
        "processes": ["-m", "vfl", "train", "quickstart", *TINY, "--processes", "--run-dir", "processes"],
        "torchrun": [*torchrun, "-m", "vfl", "train", "horizontal/fedavg", *clients, "--run-dir", "torchrun"],
    }
    for run, arguments in commands.items():
        done = subprocess.run([python, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / run / "summary.json").read_text())["rounds"] == 2, run
