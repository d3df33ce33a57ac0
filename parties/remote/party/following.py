"""A party's processes under torchrun: the first one dials and passes orders on to the others."""

import signal
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from parties.feature_party import FeatureParty
from parties.remote.party.worker import PartyWorker
from vfl.config import ConfigError
from vfl.errors import PeerLost
from vfl.runs.checkpoint import ReadOnlyStore, State
from vfl.runs.workers import Alone, Workers
from vfl.vertical.team import Single, Team
from vfl.wire.envelope import Envelope, kind_of
from vfl.wire.messages import Kind, Message, unpack
from vfl.wire.parcel import Parcel

TRAINING = frozenset({Kind.START_ROUND, Kind.EMBED, Kind.UPDATE, Kind.END_ROUND})
"""Requests that all processes answer; to look at the model takes one."""
_LENGTH = struct.Struct("<I")


class Follower(PartyWorker):
    """Carries out orders that the first process has checked."""

    def _admit(self, parcel: Parcel) -> Message | None:
        """Leave it to the first process whether it is due: not every order comes here."""
        return unpack(parcel.content) if kind_of(parcel.envelope) == "request" else None


def team_of(workers: Alone) -> Single:
    """Return how the processes share a batch."""
    return Team(workers) if isinstance(workers, Workers) else Single()


def must_hold(workers: Alone, held: str) -> None:
    """Raise ConfigError where this process holds other data or settings than the first one."""
    if workers.from_first(held) != held:
        raise ConfigError("torchrun: the party's processes differ; give all the same files and settings")


def pass_on(workers: Alone, order: Parcel, request: Message | None) -> None:
    """Let the other processes carry out an order, too, if it is theirs. Raises PeerLost."""
    if kind_of(order.envelope) == "restore" or (request is not None and request.kind in TRAINING):
        envelope = order.envelope.SerializeToString()
        workers.say(_LENGTH.pack(len(envelope)), envelope, order.content)


def follow(workers: Workers, restore: Callable[[State | None], FeatureParty], run_dir: Path) -> None:
    """Carry out what the first process passes on, until it has nothing more. Raises PeerLost where it is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # torchrun tells all; the first one says when it is over
    follower = Follower("", restore, ReadOnlyStore(run_dir / "checkpoints"))
    while order := workers.hear():
        start = _LENGTH.size + _LENGTH.unpack_from(order)[0]
        follower.answer(Parcel(Envelope.FromString(order[_LENGTH.size : start]), order[start:]))


@contextmanager
def leading(workers: Alone) -> Generator[None]:
    """Let the other processes go at the end."""
    try:
        yield
    finally:
        with suppress(PeerLost):
            workers.say()
