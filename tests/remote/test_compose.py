"""``compose.yaml`` and ``Dockerfile``: their commands in plain folders, as a builder of images may be missing."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from vfl.config import load_config
from vfl.parties.launch.supervisor import free_port

from .conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
INSTRUCTIONS = re.findall(r"(?m)^([A-Z]+) +(.*)$", DOCKERFILE)


class PlainFolders:
    """Runs services as processes: a volume is a folder, a service's name is this machine."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.folder, self.opened = folder, opened
        ports = [free_port() for _ in range(3)]
        self.moved = {
            "0.0.0.0:50051": f"127.0.0.1:{ports[0]}",
            "server:50051": f"127.0.0.1:{ports[0]}",
            "0.0.0.0:8080": f"127.0.0.1:{ports[1]}",
            "127.0.0.1:8080": f"127.0.0.1:{ports[1]}",
            "server:8080": f"127.0.0.1:{ports[1]}",
            "network.metrics=9464": f"network.metrics={ports[2]}",
        }
        tools = folder / "tools"
        tools.mkdir()
        (tools / "chown").write_text("#!/bin/sh\n")  # only root may
        (tools / "lvfl").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m vfl "$@"\n')
        for tool in tools.iterdir():
            tool.chmod(0o755)
        path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}

    def move(self, text: str) -> str:
        for before, after in self.moved.items():
            text = text.replace(before, after)
        return text

    def start(self, name: str) -> subprocess.Popen[str]:
        service = SERVICES[name]
        volumes = [each.split(":")[0] for each in service["volumes"]]
        for volume in volumes:
            (self.folder / volume).mkdir(exist_ok=True)
        where = self.folder if service.get("working_dir") == "/work" else self.folder / volumes[0]
        command = [*service["entrypoint"], *map(self.move, service["command"])]
        process = subprocess.Popen(
            command, cwd=where, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.opened.callback(self.end, process)
        return process

    @staticmethod
    def end(process: subprocess.Popen[str]) -> str:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[PlainFolders]:
    with ExitStack() as opened:
        yield PlainFolders(tmp_path, opened)


def health(environment: dict[str, str], address: str) -> int:
    """Return the exit code of the image's health check."""
    (told,) = [value for name, value in INSTRUCTIONS if name == "HEALTHCHECK"]
    command: list[str] = json.loads(told.partition("CMD ")[2])
    return subprocess.run(command, env=environment | {"HEALTH": address}, capture_output=True).returncode


@pytest.mark.release
@pytest.mark.timeout(600)
def test_three_owners_match_train_and_serve_and_a_client_gets_a_score(services: PlainFolders):
    done = services.start("prepare")
    assert done.wait(PATIENCE_S) == 0, services.end(done)
    key = services.folder / "bank" / "server" / "key.pem"
    made = key.read_bytes()
    again = services.start("prepare")
    assert (again.wait(PATIENCE_S), key.read_bytes()) == (0, made), services.end(again)
    owners = [name for name in SERVICES if name not in ("prepare", "client")]
    running = {name: services.start(name) for name in owners}
    address = services.move(SERVICES["server"]["environment"]["HEALTH"])
    until_s = time.monotonic() + 400
    while health(services.environment, address) != 0:
        ended = [name for name, process in running.items() if process.poll() is not None]
        assert not ended, f"{ended[0]} has ended: {services.end(running[ended[0]])}"
        assert time.monotonic() < until_s, {name: services.end(each) for name, each in running.items()}
        time.sleep(0.5)
    client = services.start("client")
    said = client.communicate(timeout=PATIENCE_S)[0]
    assert client.returncode == 0, said
    scores = json.loads(said)["scores"]
    assert [score["key"] for score in scores] == ["c2001", "c2002"]
    for score in scores:
        assert sum(score["probabilities"].values()) == pytest.approx(1, abs=1e-4)
        assert set(score["parties"].values()) == {"row"}


def test_the_health_check_says_what_it_was_asked(services: PlainFolders):
    assert health(services.environment, "") == 0
    assert health(services.environment, f"http://127.0.0.1:{free_port()}/healthz") != 0


def test_no_service_is_root_or_writes_outside_its_folder():
    (user,) = [value for name, value in INSTRUCTIONS if name == "USER"]
    assert user.split(":")[0] not in ("0", "root")
    for name, service in SERVICES.items():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert ("user" in service) == (name == "prepare")
    volumes = {volume.split(":")[0] for name in ("bank", "shop", "club") for volume in SERVICES[name]["volumes"]}
    assert len(volumes) == 3, "no owner has another one's folder"


@pytest.mark.release
def test_a_package_can_be_built_of_what_the_image_copies_and_no_more(tmp_path: Path):
    copied = [value.split() for name, value in INSTRUCTIONS if name == "COPY" and not value.startswith("--")]
    sources = [source for *each, _to in copied for source in each]
    wanted = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{source}" for source in sources} == {line for line in wanted if line.startswith("!")}
    for source in sources:
        subprocess.run(["cp", "-r", str(ROOT / source), str(tmp_path)], check=True)
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", "wheel", "."]
    subprocess.run(wheel, cwd=tmp_path, check=True)
    (built,) = (tmp_path / "wheel").iterdir()
    names = zipfile.ZipFile(built).namelist()
    assert {"vfl/commands/serve.py", "vfl/parties/serving/http.py", "vfl/shipped_configs/quickstart.yaml"} <= {*names}


def test_what_the_image_drops_is_no_part_of_a_program(tmp_path: Path):
    (step,) = [value for name, value in INSTRUCTIONS if name == "RUN" and "find" in value]
    packages = tmp_path / "lib" / "python3.13" / "site-packages"
    kept = [
        "torch/__init__.py",
        "torch/lib/libtorch.so",
        "torch/bin/torch_shm_manager",
        "pyarrow/lib.so",
        "pyarrow/libarrow_substrait.so",
        "sklearn/base.py",
    ]
    dropped = [
        "torch/include/a.h",
        "torch/bin/test_api",
        "pyarrow/include/a.h",
        "pyarrow/libarrow_flight.so.2600",
        "pyarrow/_s3fs.cpython-313-x86_64-linux-gnu.so",
        "tensorboard_data_server/bin/server",
        "torch/test/t",
        "sklearn/tests/t.py",
        "pip/a.py",
    ]
    for each in (*kept, *dropped, "pip-1.dist-info/a"):
        (packages / each).parent.mkdir(parents=True, exist_ok=True)
        (packages / each).touch()
    command = step[step.index("cd ") :].replace("/opt/lvfl", str(tmp_path))
    subprocess.run(["sh", "-ec", command], check=True)
    assert [each for each in kept if not (packages / each).exists()] == []
    assert [each for each in dropped if (packages / each).exists()] == []


def test_the_page_on_kubernetes_has_a_pod_with_no_rights_and_settings_that_exist(tmp_path: Path):
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    spec = yaml.safe_load(page.partition("```yaml")[2].partition("```")[0])["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (user,) = [value for name, value in INSTRUCTIONS if name == "USER"]
    assert user == f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {each["name"] for each in container["volumeMounts"]} == {"work", "secrets", "tmp"}
    (secret,) = [each["secret"] for each in spec["volumes"] if "secret" in each]
    assert secret["defaultMode"] == 0o440
    settings = [each for each in container["args"] if "=" in each]
    (tmp_path / "run.yaml").write_text("name: churn\n")
    config = load_config(tmp_path / "run.yaml", settings)
    assert config.serving.listen.endswith(f":{container['ports'][0]['containerPort']}")
    assert {probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")} == {
        "/healthz",
        "/readyz",
    }
