"""Settings of how the processes of one experiment find, trust and wait for each other. None changes a result."""

import ipaddress
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from vfl.config.settings import Count, Fraction, Number, Positive, Probability, Section


def _with_port(address: str) -> str:
    if not re.fullmatch(r"\[?[A-Za-z0-9_.:-]+\]?:[0-9]{1,5}", address):
        raise ValueError(f"{address!r} is no address with a port, such as 127.0.0.1:8080")
    if int(address.rpartition(":")[2]) > 65535:  # gRPC would take the rest of a division by 65536
        raise ValueError(f"{address!r} has a port above 65535")
    return address


def _on_this_machine(value: object) -> object:
    """Return the loopback address of a port that is named without a host."""
    return f"127.0.0.1:{value}" if re.fullmatch("[0-9]{1,5}", str(value)) else value


def is_loopback(address: str) -> bool:
    """Return whether an address HOST:PORT can be reached from this machine only."""
    return is_this_machine(address.rpartition(":")[0].strip("[]"))


def is_this_machine(host: str) -> bool:
    """Return whether a host, without a port and brackets, is this machine for itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


Address = Annotated[str, AfterValidator(_with_port)]
Seconds = Annotated[Number, Field(gt=0, le=10**9)]  # beyond some 10^10 a thread cannot wait
DAY_S = 86_400.0


class TlsConfig(Section):
    """This process's identity, in PEM files as ``lvfl certs`` writes them."""

    ca: Path | None = None
    """Certificate of the authority."""
    certificate: Path | None = None
    """Certificate of this process."""
    key: Path | None = None
    """Private key; readable by its user only, or 0440 of root and a group of this process."""
    deny: Path | None = None
    """File of revoked serial numbers, one a line; read again when it changes."""
    allow: Path | None = None
    """File of key fingerprints, one a line: any other key is refused; read again when it changes."""


class ConsentConfig(Section):
    """Limits to which a party's owner agrees. If null, the server's value must equal the party's own file's, or be
    accepted (``--accept``); lvfl party only."""

    run: str | None = None
    """Id of the only run to take part in."""
    rounds: Positive | None = None
    """Most rounds to train."""
    alpha: Fraction | None = None
    """Largest alpha."""
    beta: Fraction | None = None
    """Smallest beta."""
    resolution: Probability | None = None
    """Smallest resolution."""
    evaluation_rows: Positive | None = None
    """Most test samples evaluated in a round, up to three times each."""
    importance: bool = False
    """Answer ``lvfl compare`` with one column permuted."""
    reasons: Literal["nothing", "itself", "ranks", "amounts"] = "nothing"
    """What the server gets of its columns for reasons (docs/tables.md)."""
    keys: Positive = 10_000_000
    """Most keys in another owner's list, and most samples, of a match."""
    scored_keys: Positive = 60_000
    """Most keys a minute that it answers for in ``lvfl party --serve``."""
    until: date | None = None
    """Last day (UTC) of serving scores."""
    accepted: str | None = None
    """Fingerprint of accepted terms, as the party shows it."""


class NetworkConfig(Section):
    """Addresses, identity and waiting times."""

    server: Address = "127.0.0.1:50051"
    """The server's address that parties dial."""
    listen: Address = "127.0.0.1:50051"
    """The server's own address; 0.0.0.0:50051 for all interfaces."""
    tls: TlsConfig = TlsConfig()
    metrics: Annotated[Address, BeforeValidator(_on_this_machine)] | None = None
    """Port (of 127.0.0.1, or HOST:PORT) for /healthz and /metrics, without a password. Needs the extra serve."""
    use_proxy: bool = False
    """Dial through the environment's HTTP proxy."""
    consent: ConsentConfig = ConsentConfig()
    heartbeat_s: Annotated[Number, Field(ge=0.01, le=DAY_S)] = 5.0
    """Seconds between heartbeats; the server's holds for all."""
    silence_s: Annotated[Number, Field(gt=0, le=DAY_S)] = 30.0
    """A peer silent for this long is lost. Must exceed the time of 1 MiB on the slowest link."""
    wait_s: Seconds = 600.0
    """Seconds that server and party wait for each other (then exit code 3)."""
    on_party_loss: Literal["wait", "drop", "abort"] = "wait"
    """wait: until it is back; drop: train on with its placeholder; abort: exit code 3."""
    max_offences: Count = 3
    """Times a party may come back after a breach or a refusal."""
    max_message_mb: Positive = 64
    """Largest message to send and to accept, in MiB."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.silence_s < 4 * self.heartbeat_s:
            raise ValueError(
                f"silence_s: {self.silence_s:g} is less than four heartbeats of {self.heartbeat_s:g} s; raise it"
            )
        if self.use_proxy and (self.tls.deny or self.tls.allow):
            raise ValueError("use_proxy: lists cannot be checked through a proxy; leave tls.deny and allow out")
        return self
