"""Shared settings of the tests: one thread (bits do not depend on the machine), small experiments."""

import gc
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fork_server import ForkServer, blank
from hypothesis import settings
from shorthand import as_before, build_here
from tiny_training import SCRIPT, Ended

import vfl.parties.network.transport.rpc  # noqa: F401  # says no TLS below 1.3, before attackers start gRPC
from vfl.compression import codec, sparsify
from vfl.config import ExperimentConfig, parse_config, registry
from vfl.core import embeddings, pruning_pictures
from vfl.core.server import HeadServer
from vfl.data.sources import images

# The same verdict for the same commit: no example fails for its time, and the examples are always the same ones.
# Every run tries a quarter of those of `--hypothesis-profile=release`; `explore` tries others.
settings.register_profile("explore", deadline=None)
settings.register_profile("release", deadline=None, derandomize=True)
settings.register_profile("repeatable", settings.get_profile("release"), max_examples=25)
settings.load_profile("repeatable")

TIERS = {
    "process": ("attacks", "faults", "remote", "scripts", "tls", "test_checkpoint_killed.py"),
    "training": ("horizontal", "leakage", "parties", "report", "vertical", "test_tensorboard.py"),
}
"""Folders and files of tests, most of which start processes, or train; those of the others are units."""


RELEASE = {"horizontal": "test_resume.py", "lab": "test_reference.py test_sentences.py"}
"""Folders whose tests are for a release, as little changes there, and their files for every run."""


def tier_of(path: Path) -> str:
    """Return the tier of a file's tests that name none themselves."""
    first, *folders = path.relative_to(Path(__file__).parent).parts
    if any(folder in RELEASE and path.name not in RELEASE[folder].split() for folder in (first, *folders)):
        return "release"
    return next((tier for tier, names in TIERS.items() if first in names), "unit")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of which nothing is asked for: ONNX, Ray and the laboratory take each worker 15 seconds."""
    asked = config.option.markexpr
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    named = re.search(r"^pytestmark = .*mark\.(release|browser)", collection_path.read_text(), re.MULTILINE)
    tier = named[1] if named else tier_of(collection_path)
    return True if f"not {tier}" in asked or (asked == "unit" and tier != "unit") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier: release and browser where it says so, else that of its folder."""
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in ("release", "browser")):
            item.add_marker(tier_of(item.path))


Settings = dict[str, Any]
Build = Callable[..., HeadServer]


@pytest.fixture(autouse=True, scope="session")
def quick():
    """Read the digits once, and do not wait for the disk: the system lives on, so what is written can be read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "_read_rows", cache(images._read_rows))
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def frozen():
    """Spare the collector what is there before a file's tests: a training asks it to go through all of PyTorch."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def undrawn():
    """Draw no prunings; a file that tests the pictures has an empty fixture of this name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruning_pictures, "draw_widths", blank)
        yield


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def process_settings():
    with as_before():
        yield


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Call a command's script, or ``lvfl`` with the command as first argument, in this process; return how it ended."""

    def run(command: str, *arguments: object) -> Ended:
        path = SCRIPT.with_name(f"{command}.py")
        monkeypatch.setattr(sys, "argv", [path.name, *map(str, arguments)])
        capsys.readouterr()
        main = import_module("vfl.__main__").main if command == "lvfl" else runpy.run_path(str(path))["main"]
        try:
            code = main()
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return run


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch):
    """Compute and send in float64 what is float32 otherwise.

    Two ways of computing the same training then differ by far less than a mistake does, on any processor.
    """
    wide = codec._STORAGE["float32"]._replace(
        numbers=torch.float64, bits=torch.uint64, frame_bits=np.dtype("<u8"), width=64
    )
    monkeypatch.setitem(codec._STORAGE, "float32", wide)
    monkeypatch.setitem(sparsify._MAGNITUDE_BITS, torch.float64, (torch.int64, 2**63 - 1))
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    embeddings.dense_size.cache_clear()  # sizes of either width are remembered
    yield
    embeddings.dense_size.cache_clear()
    torch.set_default_dtype(before)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


def small_config(**sections: Settings) -> ExperimentConfig:
    """Four digit quadrants, a narrow CNN at each party; ``sections`` lay over it key by key."""
    values: Settings = {
        "name": "small",
        "seed": 3,
        "threads": 1,
        "data": {"dataset": {"kind": "digits"}, "train_samples": 48, "test_samples": 40},
        "models": {
            "feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8},
            "head": {"hidden": [16]},
        },
        "training": {"rounds": 4, "batch_size": 16, "optimizer": {"learning_rate": 0.05, "momentum": 0.9}},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section if isinstance(section, dict) else section
    return parse_config(values)


@pytest.fixture(scope="session")
def configure() -> Callable[..., ExperimentConfig]:
    return small_config


@pytest.fixture(scope="session")
def build() -> Build:
    """Build a head server with its parties in this process from sections that lay over the small experiment."""

    def build_server(**sections: Settings) -> HeadServer:
        return build_here(small_config(**sections)).server

    return build_server


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install packages: the group, the name, the source of its one module of that name, and what it offers."""
    monkeypatch.syspath_prepend(tmp_path)
    registry._offered.cache_clear()

    def one(group: str, name: str, source: str, **offers: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        lines = "\n".join(f"{offer} = {name}:{attribute}" for offer, attribute in offers.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")

    yield one
    registry._offered.cache_clear()
