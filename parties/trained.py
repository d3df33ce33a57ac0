"""A trained split model, rebuilt in this process from the last checkpoint of its run."""

from pathlib import Path

from parties.feature_party import FeatureParty
from parties.head_server import HeadServer
from parties.local import LocalLink, build_in_process
from vfl.checkpoint import CheckpointStore
from vfl.config import ConfigError, load_config
from vfl.runtime import start_runtime


def load_trained(run_dir: Path) -> HeadServer:
    """Return the head server with all its parties, weights as at the end of the run.

    Raises ConfigError for a folder without a vertical run or without checkpoints, CorruptCheckpoint where the last
    one is damaged (an older one would be another model), ValueError where the data has changed.
    """
    saved = run_dir / "config.yaml"
    if not saved.exists():
        raise ConfigError(f"{run_dir}: holds no run; name a folder of scripts/train.py")
    config = load_config(saved)
    if config.mode != "vertical":
        raise ConfigError(f"{run_dir}: mode is {config.mode}; only a vertical run has a split model")
    checkpoints = CheckpointStore(run_dir / "checkpoints")
    rounds = checkpoints.rounds()
    if not rounds:
        raise ConfigError(f"{run_dir}: has no checkpoint (a sweep keeps them with --keep-checkpoints); train it again")
    sections = checkpoints.load(rounds[-1])
    del sections["loop"]
    server = build_in_process(config, start_runtime(config))
    server.load_state_dict(sections)
    return server


def parties_of(server: HeadServer) -> list[FeatureParty]:
    """Return the parties of a server that were built in this process, in evaluation mode."""
    parties: list[FeatureParty] = []
    for link in server.links:
        assert isinstance(link, LocalLink)
        link.party.model.eval()
        parties.append(link.party)
    return parties
