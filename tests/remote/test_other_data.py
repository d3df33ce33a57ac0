"""A party whose file or configuration is another than before: refused in words of its own command."""

import pytest
import torch
from refusals import refused
from safetensors import safe_open
from safetensors.torch import save_file

from vfl.config import load_config
from vfl.core.party import SECTION
from vfl.parties.network.party.party_process import load_holding, restorer
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run_folder import check_folder
from vfl.runs.torchrun_group import SingleProcess

PARTY = "party_1"


@pytest.fixture(scope="module")
def federation(trained_with):
    return trained_with(training={"rounds": 1}, data={"partition": {"columns": 1}})


def test_a_partys_changed_data_are_refused_without_an_option_that_it_lacks(federation):
    config = load_config(federation.folder / f"{PARTY}.yaml")
    folder, path = federation.folder / PARTY, config.data.file
    assert path is not None
    store = CheckpointStore(folder / "checkpoints")
    state = store.load(store.rounds()[-1])[SECTION]
    restore = restorer(config, PARTY, load_holding(config, PARTY), SingleProcess(), folder)
    assert restore(state).name == PARTY
    before = path.read_bytes()
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    tensors["train.features"][3] += torch.ones((), dtype=tensors["train.features"].dtype)
    save_file(tensors, path, metadata)
    try:
        restore = restorer(config, PARTY, load_holding(config, PARTY), SingleProcess(), folder)
        with refused("--run-dir", f"{PARTY}'s features") as error:
            restore(state)
    finally:
        path.write_bytes(before)
    assert "--resume" not in str(error.value)


def test_a_partys_changed_configuration_is_refused_without_an_option_that_it_lacks(federation):
    config = load_config(federation.folder / f"{PARTY}.yaml", ["seed=91"])
    with refused("--run-dir", "seed", "91") as error:
        check_folder(federation.folder / PARTY, config)
    assert "--resume" not in str(error.value)
