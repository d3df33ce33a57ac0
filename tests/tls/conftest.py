"""Certificates for tests: one authority per session, and every way in which an owner's files can be wrong."""

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from vfl.parties.network.tls.certificates import SERVER, Authority, CertificateSubject, key_pem, new_key

HOSTS = ("localhost", "127.0.0.1")


class Credentials:
    """PEM files of one owner in a folder, and OpenSSL contexts that use them."""

    def __init__(
        self, folder: Path, authority: Authority, owner: CertificateSubject, *, days: int = 100, age_days: int = 0
    ) -> None:
        folder.mkdir(parents=True)
        self.ca, self.certificate, self.key = folder / "ca.pem", folder / "certificate.pem", folder / "key.pem"
        key = new_key()
        made = authority.certify(owner, key.public_key(), days, datetime.now(UTC) - timedelta(days=age_days))
        self.ca.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
        self.certificate.write_bytes(made.public_bytes(Encoding.PEM))
        self.key.write_bytes(key_pem(key))
        self.key.chmod(0o600)

    def context(self, side: ssl._SSLMethod) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.certificate, self.key)
        return context


def old_authority(name: str = "tests") -> Authority:
    """An authority made long ago, so that it can have signed certificates that are expired now."""
    return Authority.create(name, 2000, datetime.now(UTC) - timedelta(days=1000))


@pytest.fixture(scope="session")
def authority() -> Authority:
    return old_authority()


@pytest.fixture
def credentials(tmp_path: Path, authority: Authority) -> Callable[..., Credentials]:
    """Make an owner's files; ``signer`` is another authority, ``age_days`` and ``days`` shift the validity."""
    made = 0

    def make(name: str, *, signer: Authority = authority, days: int = 100, age_days: int = 0) -> Credentials:
        nonlocal made
        made += 1
        owner = CertificateSubject(name, HOSTS if name == SERVER else ())
        return Credentials(tmp_path / f"{made}_{name}", signer, owner, days=days, age_days=age_days)

    return make
