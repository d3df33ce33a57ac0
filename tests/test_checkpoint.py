"""Checkpoints come back bit for bit, and one always survives: a damaged file, a full disk."""

import errno
import io
import itertools
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from unittest.mock import Mock

import pytest
import torch
from checkpoint_states import assert_same, content
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from refusals import refuses
from shorthand import examples

from vfl.runs.atomic import write_atomically
from vfl.runs.checkpoint import CheckpointStore, CheckpointWriteError, CorruptCheckpoint, State

SECTIONS = ("loop", "party_1")
TREE_FILES = [f"{name}.{kind}" for name in SECTIONS for kind in ("json", "safetensors")]


class Lazy(dict[str, State]):
    """Sections that are fetched when asked for."""

    def __init__(self, fetch: Callable[[str], State]) -> None:
        super().__init__({name: {} for name in SECTIONS})
        self.fetch = fetch

    def __getitem__(self, name: str) -> State:
        return self.fetch(name)


def save_and_load(directory: Path, state: State) -> State:
    store = CheckpointStore(directory)
    store.save(0, {"server": state})
    return store.load(0)["server"]


def tensors() -> st.SearchStrategy[torch.Tensor]:
    """Any bits (NaN payloads, -0.0, subnormals), 0 to 3 dimensions, some empty, some not contiguous."""

    def build(dtype: torch.dtype, shape: list[int], seed: int, transpose: bool) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randint(0, 256, (math.prod(shape) * dtype.itemsize,), generator=generator).to(torch.uint8)
        tensor = (values % 2 if dtype == torch.bool else values).view(dtype).reshape(shape)
        return tensor.mT if transpose and tensor.dim() > 1 else tensor

    names = "bool uint8 uint16 int64 float8_e4m3fn float16 bfloat16 float32 float64"
    dtypes = st.sampled_from([getattr(torch, name) for name in names.split()])
    return st.builds(build, dtypes, st.lists(st.integers(0, 4), max_size=3), st.integers(0, 999), st.booleans())


def states() -> st.SearchStrategy[State]:
    # Keys that try to look like the file format's own marks and paths.
    keys = st.sampled_from(["$tensor", "$$tensor", "$", "a/b", "a~1b", "a", "b", "", "0"]) | st.text()
    scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
    nodes = st.recursive(
        scalars | tensors(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=12,
    )
    return st.dictionaries(keys, nodes, max_size=4)


class TestRoundTrip:
    @examples(120, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(state=states())
    def test_any_state_comes_back_bit_for_bit(self, tmp_path: Path, state: State) -> None:
        assert_same(save_and_load(tmp_path, state), state)

    def test_strides_views_and_shared_memory(self, tmp_path: Path) -> None:
        image = torch.randn(2, 3, 4, 5)
        complex_image = torch.randn(3, 2, dtype=torch.complex64)
        state: State = {
            "channels_last": image.to(memory_format=torch.channels_last),
            "part": image[:, 1:, ::2],
            "tied": [image, image, image.view(-1)],
            "expanded": torch.tensor(3.0).expand(2, 3),
            "parameter": torch.nn.Parameter(torch.randn(3)),
            "negative": complex_image[:1, :1].conj().imag,
            "a": {"b": torch.zeros(1)},
            "a/b": torch.ones(2),  # must not pass for the one above in the file, nor the next for this
            "a~1b": torch.ones(3),
        }
        assert_same(save_and_load(tmp_path, state), state)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_tensors_of_an_accelerator_come_back_on_the_cpu(self, tmp_path: Path) -> None:
        state: State = {"weight": torch.randn(8, 4, device="cuda").T, "half": torch.ones(3, device="cuda").bfloat16()}
        assert_same(save_and_load(tmp_path, state), state)

    def test_loaded_tensors_do_not_depend_on_the_files(self, tmp_path: Path) -> None:
        store = CheckpointStore(tmp_path)
        folder = store.save(1, content(1))
        loaded = store.load(1)
        for file in folder.iterdir():
            with file.open("r+b") as opened:
                opened.write(bytes(file.stat().st_size))
        loaded["party_1"]["model"]["weight"].add_(1)
        assert loaded["party_1"]["model"]["weight"].unique().tolist() == [2.0]

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            ({"optimizer": {"state": {0: 1.0}}}, "server/optimizer/state: key 0 is a int"),
            ({"betas": [1, (0.9, 0.999)]}, "server/betas/1: .* not tuple"),
            ({"a": {"b": {1, 2}}}, "server/a/b: .* not set"),
            ({"model": [torch.eye(2).to_sparse()]}, "server/model/0: a tensor of torch.float32 and torch.sparse"),
            ({"signal": torch.zeros(2, dtype=torch.complex64)}, "server/signal: a tensor of torch.complex64"),
        ],
    )
    def test_what_would_not_come_back_equal_is_refused_by_path(
        self, tmp_path: Path, state: State, message: str
    ) -> None:
        store = CheckpointStore(tmp_path)
        store.save(1, content(1))
        with pytest.raises(TypeError, match=message):
            store.save(2, {"server": state})
        assert sorted(path.name for path in tmp_path.iterdir()) == ["round_000001"]

    @pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "manifest", "a b", "a\n"])
    def test_a_section_name_that_is_no_file_name_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValueError, match="cannot name a file"):
            CheckpointStore(tmp_path).save(1, {name: {}})


class TestStore:
    def test_no_checkpoint_at_all(self, tmp_path: Path) -> None:
        store = CheckpointStore(tmp_path / "run" / "checkpoints")
        assert store.rounds() == []
        assert store.load_latest() is None
        refuses("", lambda: store.load(3), "checkpoint")

    def test_layout_and_manifest(self, tmp_path: Path) -> None:
        folder = CheckpointStore(tmp_path / "run" / "checkpoints").save(12, content(12))
        assert folder == tmp_path / "run" / "checkpoints" / "round_000012"
        assert sorted(path.name for path in folder.iterdir()) == sorted([*TREE_FILES, "manifest.json"])
        manifest = json.loads((folder / "manifest.json").read_text())
        assert (manifest["format"], manifest["round"]) == (1, 12)
        assert {name: entry["size"] for name, entry in manifest["files"].items()} == {
            name: (folder / name).stat().st_size for name in TREE_FILES
        }

    def test_the_newest_are_kept(self, tmp_path: Path) -> None:
        store = CheckpointStore(tmp_path, keep=2)
        for round_index in (0, 5, 10, 1_234_567):
            store.save(round_index, content(round_index))
        assert store.rounds() == [10, 1_234_567]
        assert len(list(tmp_path.iterdir())) == 2

    def test_keep_counts_up_to_the_saved_round_and_leaves_later_ones(self, tmp_path: Path) -> None:
        for round_index in (8, 9):
            CheckpointStore(tmp_path).save(round_index, content(round_index))
        CheckpointStore(tmp_path, keep=1).save(3, content(3))
        assert CheckpointStore(tmp_path).rounds() == [3, 8, 9]

    def test_keeping_none_is_refused(self, tmp_path: Path) -> None:
        refuses("keep", lambda: CheckpointStore(tmp_path, keep=0), "keep")

    def test_a_saved_round_is_replaced(self, tmp_path: Path) -> None:
        store = CheckpointStore(tmp_path)
        for version in (0, 1):
            store.save(4, content(4, version))
        assert_same(store.load(4), content(4, 1))
        assert [path.name for path in tmp_path.iterdir()] == ["round_000004"]

    def test_one_section_at_a_time(self, tmp_path: Path) -> None:
        """A section is on the disk before the next one is asked for."""

        def fetch(name: str) -> State:
            written = {path.name for path in (tmp_path / ".partial-round_000001").iterdir()}
            assert written == set(TREE_FILES[: 2 * SECTIONS.index(name)])
            return content(1)[name]

        CheckpointStore(tmp_path).save(1, Lazy(fetch))

    def test_everything_is_synced_before_the_commit_and_the_commit_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a power loss needs: files, then their folder, then the rename, then the parent."""
        synced: list[int] = []
        rename, fsync = Path.rename, os.fsync

        def recording_fsync(descriptor: int) -> None:
            synced.append(os.fstat(descriptor).st_ino)
            fsync(descriptor)

        def checking_rename(self: Path, target: Path) -> Path:
            needed = [path.stat().st_ino for path in self.iterdir()]
            assert (self / "manifest.json").stat().st_ino == synced[-2]
            assert {*needed, self.stat().st_ino} <= set(synced)
            synced.clear()
            return rename(self, target)

        monkeypatch.setattr(os, "fsync", recording_fsync)
        monkeypatch.setattr(Path, "rename", checking_rename)
        CheckpointStore(tmp_path).save(1, content(1))
        assert tmp_path.stat().st_ino in synced


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


class TestDamage:
    @pytest.fixture
    def store(self, tmp_path: Path) -> CheckpointStore:
        store = CheckpointStore(tmp_path)
        for round_index in (10, 12):
            store.save(round_index, content(round_index))
        return store

    @pytest.mark.parametrize("file", TREE_FILES)
    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            (truncate, r"\d+ bytes instead of \d+"),
            (flip_a_bit, "does not match its sha256"),
            (Path.unlink, "No such file"),
        ],
    )
    def test_falls_back_to_the_one_before_and_says_so(
        self, store: CheckpointStore, file: str, damage: Callable[[Path], None], reason: str
    ) -> None:
        damage(store.directory / "round_000012" / file)
        with pytest.raises(CorruptCheckpoint, match=reason):
            store.load(12)
        with pytest.warns(UserWarning, match=reason) as caught:
            latest = store.load_latest()
        assert latest is not None
        assert latest[0] == 10
        assert_same(latest[1], content(10))
        (line,) = [str(warning.message) for warning in caught]
        assert "round 12 is corrupt" in line
        assert f"round_000012/{file}" in line
        assert line.endswith("using round 10 instead")
        assert "\n" not in line

    def test_a_flipped_bit_in_every_byte_of_the_manifest(self, store: CheckpointStore) -> None:
        path = store.directory / "round_000012" / "manifest.json"
        intact = path.read_bytes()
        for position, byte in enumerate(intact):
            if byte not in b" \n":
                damaged = bytearray(intact)
                damaged[position] ^= 1 << position % 7
                path.write_bytes(damaged)
                with pytest.raises(CorruptCheckpoint, match="round_000012"):
                    store.load(12)

    def test_none_left(self, store: CheckpointStore) -> None:
        for round_index in (10, 12):
            truncate(store.directory / f"round_{round_index:06d}" / "loop.json")
        with pytest.raises(CorruptCheckpoint, match=r"no usable.*round 12 is corrupt.*round 10 is corrupt"):
            store.load_latest()

    def test_a_folder_that_lost_its_manifest_is_reported(self, store: CheckpointStore) -> None:
        # Nothing of ours leaves one behind: a folder gets its name when its manifest is there.
        (store.directory / "round_000012" / "manifest.json").unlink()
        with pytest.warns(UserWarning, match=r"round 12 is corrupt .*manifest.json.*using round 10 instead"):
            assert_same(store.load_latest(), (10, content(10)))
        store.save(12, content(12, 1))
        assert_same(store.load(12), content(12, 1))

    def test_training_on_replaces_the_corrupt_one(self, store: CheckpointStore) -> None:
        truncate(store.directory / "round_000012" / "loop.json")
        store.save(11, content(11))
        assert store.rounds() == [10, 11, 12]
        store.save(12, content(12))
        assert store.rounds() == [11, 12]
        assert_same(store.load_latest(), (12, content(12)))


def small_disk(free: int, error: int) -> Callable[[Path, str], IO[bytes]]:
    """A Path.open whose written files share `free` bytes: beyond, a write takes what fits, then none."""

    class File(io.FileIO):
        def write(self, data: Any, /) -> int:
            nonlocal free
            if free == 0:
                raise OSError(error, os.strerror(error))
            written = super().write(memoryview(data)[:free])
            free -= written
            return written

    def opened(path: Path, mode: str) -> IO[bytes]:
        return io.BufferedWriter(File(path, "w")) if mode == "wb" else io.open(path, mode)  # noqa: UP020

    return opened


class TestFullDisk:
    @pytest.fixture
    def store(self, tmp_path: Path) -> CheckpointStore:
        store = CheckpointStore(tmp_path, keep=1)
        store.save(10, content(10))
        return store

    def assert_refused_and_intact(self, store: CheckpointStore, round_index: int, error: int) -> None:
        with pytest.raises(CheckpointWriteError) as caught:
            store.save(round_index, content(round_index, 1))
        message = str(caught.value)
        for part in (f"round {round_index} could not", os.strerror(error), "saved: rounds [10]", "--resume"):
            assert part in message
        assert "\n" not in message
        assert [path.name.removeprefix(".replaced-") for path in store.directory.iterdir()] == ["round_000010"]
        assert_same(store.load_latest(), (10, content(10)))

    @pytest.mark.parametrize("round_index", [10, 12])
    @pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
    def test_a_write_fails(
        self, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, error: int, round_index: int
    ) -> None:
        size = sum(path.stat().st_size for path in (store.directory / "round_000010").iterdir())
        for free in [*range(0, size, 400), size - 1]:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "open", small_disk(free, error))
                self.assert_refused_and_intact(store, round_index, error)

    @pytest.mark.parametrize(
        ("owner", "name", "round_index", "last"),
        [
            (os, "fsync", 12, 5),  # four files, the manifest, their folder
            (Path, "rename", 10, 1),  # the old one steps aside, the new one takes the name
            (Path, "mkdir", 12, 1),
        ],
    )
    def test_from_some_call_on_all_fail(
        self, store: CheckpointStore, owner: Any, name: str, round_index: int, last: int
    ) -> None:
        original, full = getattr(owner, name), Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        for passing in range(last + 1):
            results = itertools.chain([original] * passing, itertools.repeat(full))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, lambda *args, results=results, **options: next(results)(*args, **options))
                self.assert_refused_and_intact(store, round_index, errno.ENOSPC)
        store.save(12, content(12))
        assert [path.name for path in store.directory.iterdir()] == ["round_000012"]

    def test_nothing_saved_yet(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Path, "open", small_disk(100, errno.ENOSPC))
        with pytest.raises(CheckpointWriteError, match=r"saved: rounds \[\]"):
            CheckpointStore(tmp_path).save(1, content(1))
        assert list(tmp_path.iterdir()) == []

    def test_another_error_keeps_its_type_and_leaves_nothing(self, store: CheckpointStore) -> None:
        def fetch(name: str) -> State:
            if name == "party_1":
                raise ConnectionResetError("party_1 is lost")
            return content(12)[name]

        with pytest.raises(ConnectionResetError, match="party_1 is lost"):
            store.save(12, Lazy(fetch))
        assert [path.name for path in store.directory.iterdir()] == ["round_000010"]


class TestWriteAtomically:
    @pytest.mark.parametrize("new", ["name: größer\r\n", b"\x00\xff", ""])
    def test_creates_and_replaces(self, tmp_path: Path, new: str | bytes) -> None:
        path = tmp_path / "summary.json"
        write_atomically(path, "old, and longer than the new one")
        write_atomically(path, new)
        assert path.read_bytes() == (new.encode() if isinstance(new, str) else new)
        assert list(tmp_path.iterdir()) == [path]

    def test_a_full_disk_leaves_the_old(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "summary.json"
        write_atomically(path, "old")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", small_disk(3, errno.ENOSPC))
            with pytest.raises(OSError, match="No space left"):
                write_atomically(path, "new and long")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]
