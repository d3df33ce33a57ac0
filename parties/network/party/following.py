"""A party's processes under torchrun: the first one dials and passes orders on to the others."""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from vfl.base.errors import PeerLost
from vfl.config import ConfigError, ExperimentConfig
from vfl.core.party import FeatureParty
from vfl.core.team import Team
from vfl.messages.messages import Kind, Message
from vfl.parties.network.admission import check_party
from vfl.parties.network.party.training_session import PartyWorker
from vfl.parties.network.wire.frame import pack, unpack
from vfl.runs.checkpoint import ReadOnlyStore, State
from vfl.runs.torchrun_group import SingleProcess, Workers

TRAINING = frozenset({Kind.RESTORE, Kind.START_ROUND, Kind.EMBED, Kind.UPDATE, Kind.END_ROUND, Kind.TRAIN_ALONE})
"""Orders that all processes carry out; to look at the model takes one."""


TEAM_WAIT_S = 1800.0
"""Seconds that a party's process waits for the others before it considers them lost."""


def check_team(name: str, config: ExperimentConfig, processes: int) -> float:
    """Return the seconds that a party's processes wait for each other. Raises ConfigError as ``check_party``."""
    check_party(config, name)
    return TEAM_WAIT_S


class Follower(PartyWorker):
    """Carries out orders that the first process has checked."""

    def _admit(self, order: Message) -> None:
        """Return the order's message unchecked: the first process has checked it, and not every order comes here."""


def team_of(workers: SingleProcess) -> Team | None:
    """Return the team in which the processes share a batch."""
    return Team(workers) if isinstance(workers, Workers) else None


def must_hold(workers: SingleProcess, held: str) -> None:
    """Raise ConfigError if this process holds other data or settings than the first one."""
    if workers.from_first(held) != held:
        raise ConfigError("torchrun: the party's processes differ; give all the same files and settings")


def pass_on(workers: SingleProcess, order: Message) -> None:
    """Pass an order to the other processes if they take part in it. Raises PeerLost."""
    if order.kind in TRAINING:
        workers.say(pack(order))


def follow(
    workers: Workers,
    restore: Callable[[State | None], FeatureParty],
    run_dir: Path,
    start: Callable[[str], State | None],
) -> None:
    """Carry out orders from the first process until it sends no more. Raises PeerLost if it is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # torchrun signals all; the first one decides when it is over
    follower = Follower("", restore, ReadOnlyStore(run_dir / "checkpoints"), start)
    while order := workers.hear():
        follower.answer(unpack(order))


@contextmanager
def leading(workers: SingleProcess) -> Generator[None]:
    """Release the other processes at the end."""
    try:
        yield
    finally:
        with suppress(PeerLost):
            workers.say()
