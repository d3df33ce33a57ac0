"""The PEM files of certificates and keys: written completely or not at all, and checked before they are used.

KEYS/                 (0700)
    ca.pem            the authority's certificate: public
    ca-key.pem        (0600) its key: its holder can admit anybody
    issued.txt        a line for every certificate that the authority has signed: serial number, owner, last day
    deny.txt          serial numbers of those that count no more, once one is revoked
    OWNER/            (0700) what one owner needs, OWNER being server or a party's name
        ca.pem
        certificate.pem
        key.pem       (0600)
        request.pem   only where the owner made its key itself
"""

import asyncio
import ssl
import stat
import warnings
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from vfl.parties.network.tls.certificates import (
    SERVER,
    Authority,
    alternative_names,
    common_name,
    is_authority,
    issued_by,
    may_be,
)
from vfl.runs.atomic import FIX_MODE, is_open_to_others

CA = "ca.pem"
CA_KEY = "ca-key.pem"
CERTIFICATE = "certificate.pem"
KEY = "key.pem"
REQUEST = "request.pem"
ISSUED = "issued.txt"
DENY = "deny.txt"

PRIVATE, PUBLIC = 0o600, 0o644
"""Permissions of the files."""
WARN_DAYS = 14
"""Days before a certificate's end from which it is warned of: a connection that breaks afterwards cannot be
reopened."""
MAX_PEM_BYTES = 1 << 20


@dataclass(frozen=True)
class TlsFiles:
    """One owner's TLS credentials, as PEM, checked by ``load_tls_files``."""

    ca: bytes
    """Certificates of the authorities that the owner trusts."""
    certificate: bytes
    key: bytes = field(repr=False)

    def trusting(self, certificate: bytes) -> "TlsFiles":
        """Return the same identity, trusting only one certificate."""
        return replace(self, ca=certificate)


def load_tls_files(ca: Path, certificate: Path, key: Path, owner: str) -> TlsFiles:
    """Read an owner's files and check all that can be checked without a connection.

    Other users cannot read the key. It belongs to the certificate; the certificate is signed by the authority,
    names ``owner`` (a party, or ``server``), serves for its side of a connection, and is valid now. Raises ValueError,
    one line that names the setting, the file and the fix. Warns of a near expiry.
    """
    ca_pem, certificate_pem = _read("network.tls.ca", ca), _read("network.tls.certificate", certificate)
    key_pem = _read_private("network.tls.key", key)
    authorities = _certificates("network.tls.ca", ca, ca_pem)
    subject = _certificates("network.tls.certificate", certificate, certificate_pem)[0]
    if _private_key("network.tls.key", key, key_pem).public_key() != subject.public_key():
        raise ValueError(
            f"network.tls.key: {key} is not the key of {certificate} (network.tls.certificate); take both of one owner"
        )
    _check_owner(certificate, subject, owner)
    _check_signed(ca, authorities, certificate, subject)
    return TlsFiles(ca_pem, certificate_pem, key_pem)


def check_signed(ca: Path, certificate: Path) -> None:
    """Check without the key that the authority signed the certificate, and that both are valid now.

    Raises ValueError, one line. Warns of a near expiry.
    """
    authorities = _certificates("network.tls.ca", ca, _read("network.tls.ca", ca))
    _check_signed(ca, authorities, certificate, load_certificate("network.tls.certificate", certificate))


def _check_signed(ca: Path, authorities: list[x509.Certificate], certificate: Path, subject: x509.Certificate) -> None:
    signers = [each for each in authorities if is_authority(each) and issued_by(subject, each)]
    if not signers:
        raise ValueError(
            f"network.tls.certificate: {certificate} is not signed by the authority in {ca} (network.tls.ca); "
            "take both files from the same authority"
        )
    check_period("network.tls.certificate", certificate, subject)
    check_period("network.tls.ca", ca, signers[0])


def check_period(field_name: str, path: Path, certificate: x509.Certificate) -> None:
    """Raise ValueError for a certificate that is not valid now; warn of one that ends within ``WARN_DAYS``."""
    now = datetime.now(UTC)
    begin, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        raise ValueError(f"{field_name}: {path} is valid from {begin:%F %R} UTC only; is this machine's clock right?")
    if now > until:
        raise ValueError(f"{field_name}: {path} expired on {until:%F %R} UTC; have a new one made by lvfl certs")
    if (until - now).days < WARN_DAYS:
        warnings.warn(f"{field_name}: {path} expires on {until:%F %R} UTC; renew it in time", stacklevel=3)


def load_authority(keys: Path) -> Authority:
    """Read the authority of a KEYS folder. Raises ValueError, one line, for missing or mismatched files."""
    path, key_path = keys / CA, keys / CA_KEY
    certificate = _certificates("KEYS", path, _read("KEYS", path))[0]
    key = load_key("KEYS", key_path)
    if not is_authority(certificate) or key.public_key() != certificate.public_key():
        raise ValueError(f"KEYS: {key_path} is not the key of an authority in {path}")
    check_period("KEYS", path, certificate)
    return Authority(certificate, key)


def load_key(field_name: str, path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key of the kind that this software makes. Raises ValueError, one line."""
    key = _private_key(field_name, path, _read_private(field_name, path))
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{field_name}: {path} is not a key on an elliptic curve; make one by lvfl certs")
    return key


def load_certificate(field_name: str, path: Path) -> x509.Certificate:
    """Read the first certificate of a file. Raises ValueError, one line."""
    return _certificates(field_name, path, _read(field_name, path))[0]


def is_request(field_name: str, path: Path) -> bool:
    """Return whether a PEM file holds a request. Raises ValueError for one that cannot be read."""
    return b"CERTIFICATE REQUEST-" in _read(field_name, path)


def load_request(field_name: str, path: Path) -> x509.CertificateSigningRequest:
    """Read a certificate request. Raises ValueError, one line."""
    try:
        return x509.load_pem_x509_csr(_read(field_name, path))
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{field_name}: {path} holds no certificate request in PEM") from None


def _read(field_name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_PEM_BYTES)
    except OSError as error:
        raise ValueError(f"{field_name}: {path} cannot be read ({error.strerror})") from None


def _read_private(field_name: str, path: Path) -> bytes:
    content = _read(field_name, path)
    status = path.stat()
    if is_open_to_others(status):
        mode = stat.S_IMODE(status.st_mode)
        raise ValueError(f"{field_name}: {path} is open to other users (mode {mode:04o}); {FIX_MODE}")
    return content


def _certificates(field_name: str, path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ValueError(f"{field_name}: {path} holds no certificate in PEM") from None


def _private_key(field_name: str, path: Path, pem: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, password=None)
    except TypeError:
        raise ValueError(f"{field_name}: {path} is encrypted; store it without a passphrase, mode 0600") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{field_name}: {path} holds no private key in PEM") from None


def _check_owner(path: Path, subject: x509.Certificate, owner: str) -> None:
    try:
        name = common_name(subject.subject)
    except ValueError as error:
        raise ValueError(f"network.tls.certificate: {path} {error}") from None
    if name != owner:
        raise ValueError(f"network.tls.certificate: {path} names {name!r}; this is {owner!r}, which needs its own")
    if owner not in alternative_names(subject):
        raise ValueError(
            f"network.tls.certificate: {path} does not have {owner!r} among its alternative names, "
            "which the other side checks; have a new one made by lvfl certs"
        )
    if not may_be(subject, owner):
        raise ValueError(
            f"network.tls.certificate: {path} does not serve for {owner!r}'s side of a connection "
            "(extended key usage); have a new one made by lvfl certs"
        )


LOOK_LIMIT_S = 10.0


def verifying_context(tls: TlsFiles) -> ssl.SSLContext:
    """Return a TLS 1.3 context that accepts a server signed by one of our authorities, without an own identity."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=tls.ca.decode())
    return context


async def fetch_certificate(address: str, tls: TlsFiles) -> bytes:
    """Return the certificate, as PEM, of the server at ``address``, which must be signed by ``tls.ca``.

    Raises OSError if no server, or another one, answers; TimeoutError after ``LOOK_LIMIT_S``.
    """
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(LOOK_LIMIT_S):
        _, writer = await asyncio.open_connection(
            host.strip("[]"), int(port), ssl=verifying_context(tls), server_hostname=SERVER
        )
    der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(der).encode()
