"""What an evil server sends: the party says what was wrong, in one line, and ends. The server is another process."""

import json
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from attacks.server_lies import CASES
from attacks.wire_server import HONEST
from rich.console import Console
from shorthand import at_every_run, release

from vfl.base.errors import PeerLost
from vfl.config import ExperimentConfig, parse_config
from vfl.data.split import party_file, split_data, write_split
from vfl.parties.launch.doctor import examine
from vfl.parties.network.party.party_process import run_party

ROOT = Path(__file__).parents[2]
EXPERIMENT: dict[str, Any] = {
    "name": "attacked",
    "seed": 3,
    "threads": 1,
    "data": {"train_samples": 16, "test_samples": 40, "partition": {"rows": 1, "columns": 2}},
    "models": {"feature": {"kind": "mlp", "embedding_size": 8}, "head": {"hidden": [16]}},
    "training": {"rounds": 2, "batch_size": 16, "labels": "server"},
    "lightweighting": {"alpha": 0.2, "beta": 0.5},
}
SPACE_MB = 300
"""More than that must not be added by any attack."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked")
    write_split(folder, split_data(parse_config(EXPERIMENT)), shared_labels=False, overwrite=True)
    return folder


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """The ports of one evil server for every case, and an honest one."""
    command = [sys.executable, "-m", "attacks.wire_server"]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": ""}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.kill()


Attack = Callable[..., tuple[Exception | None, str]]


@pytest.fixture
def attack(data: Path, ports: dict[str, int], tmp_path: Path) -> Attack:
    """Let a server lie to a real party; return how the party ended, and what it showed."""

    def run(case: str, *, accept: bool = False, alpha: float = 0.2, **network: Any) -> tuple[Exception | None, str]:
        shown = StringIO()
        config = configuration(data, ports[case], alpha, network)
        console = Console(file=shown, width=1000)
        try:
            run_party(config, "party_1", tmp_path / "run", insecure=True, console=console, accept=accept)
        except (ValueError, PeerLost) as error:
            return error, shown.getvalue()
        return None, shown.getvalue()

    return run


@pytest.fixture(scope="module")
def undisturbed(data: Path, ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The weights of a party that an honest server has trained."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    config = configuration(data, ports["honest"], 0.2, {})
    run_party(config, "party_1", run, insecure=True, console=Console(quiet=True))
    return weights_in(run)


def configuration(data: Path, port: int, alpha: float, network: dict[str, Any]) -> ExperimentConfig:
    own = {"server": f"127.0.0.1:{port}", "wait_s": 1} | network
    file = {"data": EXPERIMENT["data"] | {"file": str(data / party_file("party_1"))}}
    ratios = {"lightweighting": {"alpha": alpha, "beta": 0.5}}
    return parse_config(EXPERIMENT | file | ratios | {"network": own})


def tier(case: str) -> Any:
    """A lie as a parameter; every third one is told at every run."""
    return case if not CASES[case].release and [*CASES].index(case) % 3 == 0 else release(case)


def own_threads() -> set[threading.Thread]:
    """Return the threads, but gRPC's own, which lives from a process's first call to its end."""
    return {thread for thread in threading.enumerate() if "_poll_wrapper" not in thread.name}


def test_the_server_is_believed_as_long_as_it_is_honest(attack: Attack):
    error, shown = attack("honest")
    assert error is None, shown


@pytest.mark.parametrize("case", [*map(tier, CASES)])
def test_a_lie_is_told_to_the_owner_and_ends_the_party(attack: Attack, case: str):
    before_mb, threads = peak_mb(), own_threads()
    error, shown = attack(case)
    assert isinstance(error, ValueError), f"{error!r}\n{shown}"
    line = " ".join(str(error).split())
    assert re.search(CASES[case].told, line), line
    assert len(line) < 700
    assert line.isprintable()
    assert peak_mb() - before_mb < SPACE_MB
    assert own_threads() <= threads


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.at == "welcome"])
def test_a_welcome_that_the_party_refuses_is_wrong_to_the_doctor(data: Path, ports, tmp_path: Path, case: str):
    config = configuration(data, ports[case], 0.2, {})
    found = {each.name: each for each in examine(config, "party_1", tmp_path / "run", insecure=True)}
    assert not found["joining"].good
    assert re.search(CASES[case].told, found["joining"].text)


LAST_LIES = [*{case.at: name for name, case in CASES.items()}.values()]
"""One at each step of a server."""


def test_every_step_of_a_server_is_lied_about():
    assert {case.at for case in CASES.values()} == HONEST.keys() - {"goodbye"}  # which says nothing else


@pytest.mark.parametrize("case", at_every_run(LAST_LIES, *LAST_LIES[::3]))
def test_after_a_lie_an_honest_server_trains_the_party_to_the_bits_of_an_undisturbed_run(
    attack: Attack, case: str, undisturbed: list[bytes], tmp_path: Path
):
    assert attack(case)[0] is not None
    error, shown = attack("honest")
    assert error is None, shown
    assert weights_in(tmp_path / "run") == undisturbed


TERMS_DIFFER = {
    "welcome: more rounds": {"rounds": 3},
    "welcome: stronger pruning": {"alpha": 0.9},
    "welcome: everything sent": {"beta": 0.0},
    "welcome: more rows": {"evaluation_rows": 41},
}


@pytest.mark.parametrize("case", [release(case) if case == "welcome: more rounds" else case for case in TERMS_DIFFER])
def test_other_terms_than_those_of_the_file_are_agreed_to_once_by_option_fingerprint_or_bounds(
    attack: Attack, case: str, tmp_path: Path
):
    error, _ = attack(case)
    assert isinstance(error, ValueError)
    mark = str(error).rpartition("network.consent.accepted=")[2]
    assert re.fullmatch("[0-9a-f]{32}", mark)
    assert attack(case, consent={"accepted": mark})[0] is None
    assert isinstance(attack(case, consent={"accepted": "0" * 32})[0], ValueError)
    assert attack(case, consent=TERMS_DIFFER[case])[0] is None
    assert not (tmp_path / "run" / "accepted").exists()
    assert attack(case, accept=True)[0] is None
    assert attack(case)[0] is None, "accepted once"


BEYOND = {
    "rounds": ({"rounds": 1}, "rounds 2 is offered, 1 is the bound"),
    "alpha": ({"alpha": 0.1}, "alpha 0.2 is offered, 0.1 is the bound"),
    "beta": ({"beta": 0.6}, "beta 0.5 is offered, 0.6 is the bound"),
    "evaluation_rows": ({"evaluation_rows": 39}, "evaluation_rows 40 is offered, 39 is the bound"),
    "run": ({"run": "fedcba9876543210"}, "allows only run fedcba9876543210, the server's is 0123456789abcdef"),
}


@pytest.mark.parametrize("bound", BEYOND)
def test_a_bound_holds_whatever_is_accepted(attack: Attack, bound: str, tmp_path: Path):
    bounds, told = BEYOND[bound]
    for accept in (False, True):
        error, _ = attack("honest", accept=accept, consent=bounds)
        assert told in str(error)
    assert "refused" in (tmp_path / "run" / "audit.jsonl").read_text()


def test_a_party_that_was_never_let_in_starts_again_with_a_file_that_is_mended(attack: Attack):
    case = "welcome: stronger pruning"
    assert "alpha {0: 0.9} (here {0: 0.2})" in str(attack(case)[0])
    assert attack(case, alpha=0.9)[0] is None
    assert "the configuration has changed: lightweighting.alpha" in str(attack(case)[0])


def test_a_run_cannot_be_renamed(attack: Attack, tmp_path: Path):
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "run_id").write_text("fedcba9876543210\n")
    error, _ = attack("honest")
    assert "welcome to run 0123456789abcdef came, this party's folder belongs to run fedcba9876543210" in str(error)
    assert (tmp_path / "run" / "run_id").read_text() == "fedcba9876543210\n"


def test_what_a_run_leaves_is_its_owners_alone(attack: Attack, tmp_path: Path):
    assert attack("honest")[0] is None
    left = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    assert {path.name for path in left} >= {"config.yaml", "run_id", "audit.jsonl", "checkpoints", "party.safetensors"}
    assert {oct(path.stat().st_mode & 0o777) for path in left if path.is_dir()} == {"0o700"}
    assert {oct(path.stat().st_mode & 0o777) for path in left if path.is_file()} == {"0o600"}


def weights_in(run: Path) -> list[bytes]:
    saved = [path.read_bytes() for path in sorted((run / "checkpoints").rglob("party.safetensors"))]
    assert saved
    return saved


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
