"""Settings of ``lvfl serve``: scores by key, while the owners are at work. None changes a score."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vfl.base.errors import WhenAbsent
from vfl.config.network import Address, is_loopback
from vfl.config.settings import Number, Positive, Section

Milliseconds = Annotated[Number, Field(ge=0, le=60_000)]


class ServingConfig(Section):
    """The HTTP service of scores, and the waiting times for parties."""

    listen: Address = "127.0.0.1:8080"
    """Address of the HTTP service. Beyond loopback it needs ``token`` or ``client_ca``."""
    token: Path | None = None
    """File with the clients' bearer token, 16 characters or more; permissions as ``network.tls.key``."""
    certificate: Path | None = None
    """Certificate of the HTTP service; null serves plain HTTP."""
    key: Path | None = None
    """Its private key."""
    client_ca: Path | None = None
    """Authority of clients' certificates. Needs ``certificate``."""
    timeout_ms: Annotated[Milliseconds, Field(gt=0)] = 1000.0
    """Milliseconds for a party's answer, else it is away."""
    cache_s: Annotated[Number, Field(ge=0)] = 0.0
    """Seconds to keep a key's embedding; 0 keeps none."""
    idle_s: Annotated[Positive, Field(le=3600)] = 5
    """Seconds of a client's idle connection; set more than a proxy's own."""
    when_absent: WhenAbsent = "refuse"
    """What stands for a party without a row (docs/serve.md)."""
    key_secret: Path | None = None
    """File with a secret of all owners, 16 characters or more: keys travel as HMAC-SHA256."""

    outcomes: Path | None = None
    """SQLite file of scores, to compare with outcomes (docs/serve.md)."""

    @property
    def keys(self) -> Literal["clear", "hashed"]:
        """Return the form of keys between server and parties, which must be the same on both sides."""
        return "clear" if self.key_secret is None else "hashed"

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate: goes with key; set both or none")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca: needs certificate and key of the service")
        if not is_loopback(self.listen) and self.token is None and self.client_ca is None:
            raise ValueError(
                f"listen: {self.listen} is open to others; set serving.token or serving.client_ca, or take 127.0.0.1"
            )
        return self
