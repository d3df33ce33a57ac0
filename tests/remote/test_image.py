"""The image of ``Dockerfile``, built and run, where a builder and the base image are at hand; else test_compose.

A test pulls nothing from a registry: without the base image on this machine it is skipped. The environment variable
``IMAGE_BUILD`` adds arguments to the build, as another base image or another package index:
``IMAGE_BUILD="--build-arg BASE=localhost/base" pytest -m release tests/remote/test_image.py``.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILDER = shutil.which("podman") or shutil.which("docker")
NAME = "localhost/lvfl-tested"
BUILD = os.environ.get("IMAGE_BUILD", "")


pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]


def base_image() -> str:
    return re.findall(r"BASE=([\w./:@-]+)", (ROOT / "Dockerfile").read_text() + BUILD)[-1]


def has_base() -> bool:
    return (
        BUILDER is not None
        and not subprocess.run([BUILDER, "image", "inspect", base_image()], capture_output=True).returncode
    )


def builder(*arguments: str) -> str:
    done = subprocess.run([str(BUILDER), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image() -> str:
    if not has_base():
        pytest.skip(f"no builder that has {base_image()}; test_compose runs the same commands")
    form = ["--format", "docker"] if "podman" in str(BUILDER) else []
    builder("build", *form, *shlex.split(BUILD), "-t", NAME, str(ROOT))
    return NAME


def confined(image: str, work: Path, *command: str) -> str:
    limits = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    return builder("run", "--rm", "--network", "none", *limits, "-v", f"{work}:/work", image, *command)


def test_it_trains_and_predicts_without_rights_in_a_read_only_root(image: str, tmp_path: Path):
    tmp_path.chmod(0o777)
    confined(image, tmp_path, "train", "quickstart_tables", "training.rounds=2", "--processes", "--run-dir", "run")
    confined(image, tmp_path, "predict", "run", "--out", "scores.csv")
    assert (tmp_path / "run" / "summary.json").stat().st_uid == 10001
    assert len((tmp_path / "scores.csv").read_text().splitlines()) > 100


def test_its_user_cannot_write_where_the_programs_are(image: str, tmp_path: Path):
    found = builder("run", "--rm", "--entrypoint", "sh", image, "-c", "id -u; test -w /opt/lvfl || echo safe")
    assert found.split() == ["10001", "safe"]


def test_it_has_a_health_check_that_needs_no_other_program(image: str):
    check = builder("image", "inspect", "--format", "{{json .Config.Healthcheck.Test}}", image)
    assert '"python3"' in check
