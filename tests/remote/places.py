"""Places at which a party or the server can be struck: killed, stopped, kept busy."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fork_server import Strike, around


def at(module: str, path: str, *, after: bool = False) -> Callable[[Strike], None]:
    """Return what puts a strike at a function, named from its module on."""

    def put(strike: Strike) -> None:
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        around(owner, name, strike, after=after)

    return put


def at_half_a_tensor_file(strike: Strike) -> None:
    """Strike when half of a checkpoint's tensors are written."""
    import vfl.runs.atomic
    import vfl.runs.tensor_file

    write = vfl.runs.tensor_file.write_tensors

    def write_half(path: Path, *arguments: Any, **options: Any) -> Any:
        written = write(path, *arguments, **options)
        if strike.due():
            os.truncate(path, path.stat().st_size // 2)
            strike.act()
        return written

    vfl.runs.tensor_file.write_tensors = write_half


PLACES: dict[str, Callable[[Strike], None]] = {
    # at a party
    "dials": at("vfl.parties.network.clock_and_threads", "SYSTEM.open_stream"),
    "embeds": at("vfl.core.party", "FeatureParty.embed"),
    "has sent its embedding": at("vfl.core.party", "FeatureParty.embed", after=True),
    "gets its update": at("vfl.core.party", "FeatureParty.update"),
    "trains alone": at("vfl.core.party", "FeatureParty._steps_alone"),
    "iterates": at("vfl.core.label_protocol", "HeadReplica.gradient"),
    "evaluates": at("vfl.core.party", "FeatureParty.evaluate"),
    "has saved, unanswered": at("vfl.parties.network.party.training_session", "PartyWorker._save", after=True),
    "says hello": at("vfl.parties.network.training_terms", "Hello"),
    "says its hello": at("vfl.parties.matching.processes", "Hello"),
    # at the server
    "listens": at("vfl.parties.network.server.hub", "Hub.wait_for"),
    "asks for embeddings": at("vfl.core.exchanges", "Exchanges.run"),
    "has the embeddings": at("vfl.core.label_protocol", "ShareEmbeddings.begin"),
    "trains the head": at("vfl.core.head", "HeadTrainer.step"),
    "commits": lambda strike: around(Path, "rename", strike),
    "writes its summary": at("vfl.runs.run", "write_summary"),
    # at an owner in a match
    "brings its keys": at("vfl.parties.matching.owner", "MatchingOwner._brought"),
    "multiplies": at("vfl.parties.matching.owner", "MatchingOwner._in_parts"),
    "takes its result": at("vfl.parties.matching.owner", "MatchingOwner._take"),
    "has its result, unanswered": at("vfl.parties.matching.owner", "MatchingOwner._take", after=True),
    # at its server
    "joins": at("vfl.parties.matching.server", "_join"),
    "has matched": at("vfl.parties.matching.processes", "describe_to_owners"),
    # at either
    "writes a checkpoint": at_half_a_tensor_file,
}
