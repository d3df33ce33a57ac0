"""Agreement between a party and the server before the party is let in; every difference names both sides' values."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, cast

from pydantic import AfterValidator, Field, PlainValidator

from vfl.base.errors import plain
from vfl.config import ConfigError, ExperimentConfig
from vfl.config.schedules import Schedule, parse_ratio_schedule, parse_resolution_schedule, schedule_of
from vfl.config.settings import AsItIs, Positive, Section
from vfl.messages.messages import Kind, Message, MessageError
from vfl.parties.network.wire.session import Hello

SERVED = "serving.keys"
"""The setting that both sides share only where scores are served."""


class JoinRefused(ValueError):  # noqa: N818 - says what happened
    """The party is not let in. ``again``: the reason may pass."""

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


@dataclass(frozen=True)
class DataDigests:
    """sha256 of data that must be the same on both sides: the order of the samples and, if shared, the labels."""

    train_ids: str = ""
    test_ids: str = ""
    labels: str = ""
    """Digest of the training labels; "" if the party holds none."""


def _by_round(schedule: Schedule) -> Schedule:
    return schedule if isinstance(schedule, dict) else {0: schedule}


Ratios = Annotated[Schedule, PlainValidator(parse_ratio_schedule), AfterValidator(_by_round), AsItIs]


Resolutions = Annotated[Schedule, PlainValidator(parse_resolution_schedule), AfterValidator(_by_round), AsItIs]
Count = Annotated[Positive, Field(lt=1 << 32)]


class Terms(Section):
    """The server's plan for training with one party, as offered in its welcome."""

    rounds: Count
    alpha: Ratios
    beta: Ratios
    resolution: Resolutions | None = None
    """None: always full images, as before there were others."""
    evaluation_rows: Count
    """Number of test samples; each is evaluated at most a few times in a round (``PASSES_IN_ROUND``)."""

    @classmethod
    def of(cls, config: ExperimentConfig, party: str, evaluation_rows: int) -> Self:
        """Return the terms in an owner's own configuration."""
        ratios = config.lightweighting
        resolution = ratios.resolution_of(party)
        return cls(
            rounds=config.training.rounds,
            alpha=ratios.most_alpha(party),
            beta=schedule_of(ratios.beta, party),
            resolution=resolution if ratios.sizes_of(party) else None,
            evaluation_rows=evaluation_rows,
        )

    @classmethod
    def read(cls, received: str) -> Self:
        """Read terms from the server. Raises MessageError for malformed ones."""
        try:
            return cls.model_validate(json.loads(received))
        except (ValueError, RecursionError, OverflowError) as error:
            raise MessageError(f"the server's terms cannot be read ({plain(str(error), 120)})") from None

    def text(self) -> str:
        """Return the terms as JSON."""
        return json.dumps(self.model_dump(exclude_none=True), sort_keys=True)

    def values_of(self, schedule: Schedule) -> list[float]:
        """Return all values that a schedule has in the rounds to train."""
        assert isinstance(schedule, dict), "as read"
        # Before a schedule's first round a ratio is 0.
        return [value for start, value in ({0: 0.0} | schedule).items() if start < self.rounds]


@dataclass(frozen=True)
class Expected:
    """The server's requirements of one party, and its offer."""

    embedding_width: int
    agreement: str
    data: DataDigests
    terms: str = ""
    """Terms as JSON; "" if nothing is offered."""


def fingerprint(agreed: str, terms: Terms) -> str:
    """Return a short identifier of everything agreed with a server: half a sha256, hexadecimal."""
    return hashlib.sha256(f"{agreed}\n{terms.text()}".encode()).hexdigest()[:32]


def check_party(config: ExperimentConfig, name: str) -> None:
    """Raise ConfigError for a party that is not in the experiment."""
    check_owner(config, name)
    if name not in config.parties:
        raise ConfigError(f"--party: {name} has only labels and no model; it runs lvfl server, and lvfl align")


def check_owner(config: ExperimentConfig, name: str) -> None:
    """Raise ConfigError for an owner that is not in the experiment."""
    if name not in config.owners:
        where = "data.tables" if config.data.dataset.kind == "tables" else "data.partition"
        raise ConfigError(f"--party: {where} knows {', '.join(config.owners)}, not {name!r}")


def check_identity(first: Message, identity: str | None, names: tuple[str, ...]) -> Hello:
    """Return the hello with which a stream begins.

    Raises JoinRefused if it is something else, or does not come from the owner of the certificate.
    """
    if first.kind is not Kind.HELLO:
        raise JoinRefused(f"a stream begins with HELLO, not with {first.kind.name}")
    try:
        hello = Hello.of(first)
    except MessageError as error:
        raise JoinRefused(str(error)) from None
    party = hello.party
    if party not in names:
        raise JoinRefused(f"the server expects {', '.join(names)}, not {party!r}; check --party and data.partition")
    if identity is not None and identity != party:
        raise JoinRefused(f"the certificate is of {identity!r}, the hello says {party!r}; use {party}'s certificate")
    return hello


def check_hello(hello: Hello, expected: Expected) -> None:
    """Raise JoinRefused, naming both sides' values, if the party would train something else."""
    differences = _different_settings(expected.agreement, hello.agreement)
    if hello.embedding_width != expected.embedding_width:
        differences.append(f"embedding_size (server {expected.embedding_width}, party {hello.embedding_width})")
    for what, ours, theirs in (
        ("ids of the training samples", expected.data.train_ids, hello.train_ids),
        ("ids of the test samples", expected.data.test_ids, hello.test_ids),
        ("training labels", expected.data.labels, hello.labels),
    ):
        if ours != theirs:
            differences.append(f"{what} (sha256: server {ours[:12] or 'none'}, party {theirs[:12] or 'none'})")
    if differences:
        raise JoinRefused(f"{hello.party} and the server differ in {'; '.join(differences)}; give both the same")


def _different_settings(ours: str, theirs: str) -> list[str]:
    server: dict[str, Any] = json.loads(ours)
    try:
        received = json.loads(theirs)
    except (ValueError, RecursionError):
        raise JoinRefused("the party's settings are not JSON") from None
    if not isinstance(received, dict):
        raise JoinRefused("the party's settings are not a JSON object")
    party = cast(Mapping[str, Any], received)
    if SERVED in server and SERVED not in party:
        raise JoinRefused("the server serves scores, the party does not: start lvfl party with --serve")
    if SERVED in party and SERVED not in server:
        raise JoinRefused("the party serves rows to be scored, the server trains or predicts: start lvfl serve for it")
    return [
        f"{plain(key, 60)} (server {_shown(server.get(key))}, party {_shown(party.get(key))})"
        for key in sorted(server.keys() | party.keys())
        if server.get(key) != party.get(key)
    ]


def _shown(value: Any) -> str:
    return plain(json.dumps(value), 100)
