"""State that clients keep between their rounds, created when first needed, in memory or on disk."""

from pathlib import Path

from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType] - a bare PathLike in its stub

from vfl.horizontal.algorithm import Vectors
from vfl.horizontal.local import client_name, client_number
from vfl.runs.atomic import sync_directory
from vfl.runs.checkpoint import State
from vfl.runs.tensor_file import write_tensors


class InMemory:
    """States in memory; every checkpoint contains all of them."""

    def __init__(self) -> None:
        self._states: dict[int, Vectors] = {}

    def get(self, client: int) -> Vectors:
        """Return a client's state, not to be changed; empty for one that has none yet."""
        return self._states.get(client, {})

    def put(self, client: int, state: Vectors, round_index: int) -> None:
        """Keep a client's state of a round; an empty one is not kept."""
        if state:
            self._states[client] = state

    def state_dict(self) -> State:
        """Return all states."""
        return {client_name(client): dict(state) for client, state in self._states.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue from all states."""
        self._states = {client_number(name): dict(vectors) for name, vectors in state.items()}


class OnDisk:
    """One file per client and version in a folder; a checkpoint records only the valid versions.

    A file is written once and never changed, so that every committed checkpoint stays valid; it is removed when neither
    the present state nor any of the last ``keep`` checkpoints refers to it. Files left by a killed or resumed run go
    when as many new checkpoints have been made.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self._versions: dict[int, int] = {}
        self._saved: list[dict[int, int]] = []

    def get(self, client: int) -> Vectors:
        """Read a client's state."""
        if client not in self._versions:
            return {}
        return dict(load_file(self._path(client, self._versions[client])))

    def put(self, client: int, state: Vectors, round_index: int) -> None:
        """Write a client's state, durably."""
        if not state:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        replaced = self._versions.get(client)
        # A resumed run may write a version over that of the rounds it repeats: no checkpoint refers to it.
        write_tensors(self._path(client, round_index), state)
        self._versions[client] = round_index
        if replaced is not None and replaced != round_index:
            self._remove_unless_saved(client, replaced)

    def state_dict(self) -> State:
        """Return the present version of every client, and forget the oldest checkpoint's."""
        self._saved.append(dict(self._versions))
        if self._versions:
            sync_directory(self.folder)
        # One more than `keep`: the checkpoint that is being saved is not committed yet, and may fail.
        if len(self._saved) > self.keep + 1:
            self._saved.pop(0)
            self._remove_unneeded()
        return {client_name(client): version for client, version in self._versions.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue from the versions of a checkpoint."""
        self._versions = {client_number(name): version for name, version in state.items()}
        # Files of older checkpoints stay: the folder is swept only after `keep` + 1 more, when those are gone.
        self._saved = [dict(self._versions)]

    def _remove_unneeded(self) -> None:
        needed_paths = {
            self._path(client, version)
            for versions in [*self._saved, self._versions]
            for client, version in versions.items()
        }
        for path in self.folder.glob("*.safetensors"):
            if path not in needed_paths:
                path.unlink()

    def _remove_unless_saved(self, client: int, version: int) -> None:
        if all(versions.get(client) != version for versions in [*self._saved, self._versions]):
            self._path(client, version).unlink(missing_ok=True)

    def _path(self, client: int, version: int) -> Path:
        return self.folder / f"{client_name(client)}-round_{version:06d}.safetensors"


ClientStates = InMemory | OnDisk
"""The states of all clients, by number."""
