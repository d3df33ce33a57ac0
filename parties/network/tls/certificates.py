"""X.509 certificates of one federation: its authority, the head server and the parties.

An owner's name is its identity: the common name and the first alternative name, which the other side checks whatever
address it dialled. Only the name decides the use of a certificate: the server's may only answer connections, a party's
may only open them, so no party can pose as the server to another one. RFC 5280 names the fields.
"""

import ipaddress
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

E = TypeVar("E", bound=x509.ExtensionType)
SERVER = "server"
"""The head server's name; every other owner is a party."""

CLOCK_TOLERANCE = timedelta(hours=1)
"""Time before their creation from which certificates are valid, for machines whose clocks are behind."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*")


@dataclass(frozen=True)
class CertificateSubject:
    """Owner of a certificate. Raises ValueError for invalid names and hosts."""

    name: str
    hosts: tuple[str, ...] = ()
    """Host names and IP addresses of the server, for clients that check the address that they dial."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"NAME: {self.name!r} cannot name an owner: up to 63 letters, digits and _.-")
        if self.name != SERVER and self.hosts:
            raise ValueError(f"--host: only the server is dialled, {self.name} is a party; leave it out")
        for host in self.hosts:
            if not _HOST.fullmatch(host) and _address(host) is None:
                raise ValueError(f"--host: {host!r} is neither a host name nor an IP address (without port)")

    @property
    def alternative_names(self) -> x509.SubjectAlternativeName:
        """Return the name, then the hosts."""
        hosts = [_address(host) or x509.DNSName(host) for host in self.hosts]
        return x509.SubjectAlternativeName([x509.DNSName(self.name), *hosts])

    @property
    def usage(self) -> x509.ExtendedKeyUsage:
        """Return the side of a connection that the owner may take."""
        return x509.ExtendedKeyUsage([_side(self.name)])


@dataclass(frozen=True)
class Authority:
    """A federation's certificate authority (CA): whoever it signs is a member."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls, name: str, days: int, now: datetime | None = None) -> "Authority":
        """Create a self-signed authority, valid for ``days`` from ``now`` (the present).

        Raises ValueError for an invalid number of days.
        """
        if not name.strip() or len(name) > 64:
            raise ValueError(f"--name: {name!r} cannot name an authority: 1 to 64 characters")
        key = new_key()
        builder = (
            _builder(_named(name), key.public_key(), days, now)
            .issuer_name(_named(name))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    def certify(
        self, owner: CertificateSubject, public_key: CertificatePublicKeyTypes, days: int, now: datetime | None = None
    ) -> x509.Certificate:
        """Return a certificate that ``public_key`` is ``owner``'s, valid for ``days`` from ``now`` (the present).

        Raises ValueError if it would outlive the authority's own.
        """
        builder = _builder(_named(owner.name), public_key, days, now)
        begin, until = now or datetime.now(UTC), self.certificate.not_valid_after_utc
        if begin + timedelta(days=days) > until:
            left = (until - begin).days
            fix = f"give at most {left}" if left > 0 else "make a new authority"
            raise ValueError(f"--days: {days} is past the end of the authority's own certificate ({until:%F}); {fix}")
        builder = (
            builder.issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(owner.usage, critical=False)
            .add_extension(owner.alternative_names, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())

    def sign_request(
        self, request: x509.CertificateSigningRequest, owner: CertificateSubject, days: int, now: datetime | None = None
    ) -> x509.Certificate:
        """Certify the key of a request that must ask for exactly ``owner``; nothing else in it is used.

        Raises ValueError for a request that is damaged, has a weak key or asks for another name or other hosts.
        """
        if why := _weakness(request.public_key()):
            raise ValueError(f"REQUEST: its key is {why}; make one by lvfl certs request")
        if not request.is_signature_valid:
            raise ValueError("REQUEST: is not signed with the key it names: damaged, or not from the owner of that key")
        requested = common_name(request.subject)
        if requested != owner.name:
            raise ValueError(f"REQUEST: is for {requested!r}, not for {owner.name!r}")
        asked_names, names = alternative_names(request), _values(owner.alternative_names)
        if asked_names != names:
            raise ValueError(f"REQUEST: is for {_listed(asked_names)}, not for {_listed(names)} (--host)")
        return self.certify(owner, request.public_key(), days, now)


def _weakness(key: CertificatePublicKeyTypes) -> str:
    """Return why a key is too weak to be certified, "" if it is not."""
    if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        return ""
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"on {key.curve.name}, weaker than P-256" if key.key_size < 256 else ""
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA of {key.key_size} bits, fewer than 2048" if key.key_size < 2048 else ""
    return "neither on an elliptic curve nor RSA"


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a fresh private key on NIST P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def make_request(owner: CertificateSubject, key: ec.EllipticCurvePrivateKey) -> x509.CertificateSigningRequest:
    """Return a request (PKCS 10) to certify ``key`` as ``owner``'s."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_named(owner.name))
    return builder.add_extension(owner.alternative_names, critical=False).sign(key, hashes.SHA256())


@dataclass(frozen=True)
class Peer:
    """The other end of a connection by its certificate; on a plaintext one, only the name that it gives itself."""

    name: str
    serial: str = ""
    """Serial number of the certificate, hexadecimal."""
    fingerprint: str = ""
    """Fingerprint of the public key, as ``lvfl certs show`` prints it."""


def peer(certificate_pem: bytes) -> Peer:
    """Return the owner of a certificate. Raises ValueError for a malformed certificate or one without a single name."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return Peer(common_name(certificate.subject), serial(certificate), fingerprint(certificate.public_key()))


def serial(certificate: x509.Certificate) -> str:
    """Return a certificate's serial number, hexadecimal."""
    return f"{certificate.serial_number:x}"


def common_name(subject: x509.Name) -> str:
    """Return the only common name of a subject. Raises ValueError for none or several."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise ValueError(f"has {len(names)} common names instead of 1")
    return str(names[0].value)


def alternative_names(certificate: x509.Certificate | x509.CertificateSigningRequest) -> set[str]:
    """Return the names, host names and IP addresses of a certificate."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    return set() if names is None else _values(names)


def may_be(certificate: x509.Certificate, owner: str) -> bool:
    """Return whether the certificate's usage allows the side of a connection that ``owner`` is on."""
    usage = _extension(certificate, x509.ExtendedKeyUsage)
    if usage is None:
        return True  # RFC 5280: no restriction
    return _side(owner) in usage or ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in usage


def _side(owner: str) -> x509.ObjectIdentifier:
    return ExtendedKeyUsageOID.SERVER_AUTH if owner == SERVER else ExtendedKeyUsageOID.CLIENT_AUTH


def _extension(signed: x509.Certificate | x509.CertificateSigningRequest, kind: type[E]) -> E | None:
    try:
        return signed.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return whether ``issuer``'s key signed the certificate."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether a certificate may sign others."""
    constraints = _extension(certificate, x509.BasicConstraints)
    return constraints is not None and constraints.ca


def fingerprint(public_key: CertificatePublicKeyTypes) -> str:
    """Return the sha256 of a public key in groups that two people can read to each other."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    digits = digest.finalize().hex()
    return " ".join(digits[start : start + 8] for start in range(0, len(digits), 8))


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key as unencrypted PKCS 8, the only form that gRPC reads."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _builder(
    subject: x509.Name, public_key: CertificatePublicKeyTypes, days: int, now: datetime | None
) -> x509.CertificateBuilder:
    if not 1 <= days <= 36_500:
        raise ValueError(f"--days: must be 1 to 36500, got {days}")
    begin = now or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - CLOCK_TOLERANCE)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _values(names: x509.SubjectAlternativeName) -> set[str]:
    addresses = (str(address) for address in names.get_values_for_type(x509.IPAddress))
    return {*names.get_values_for_type(x509.DNSName), *addresses}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "no name"


def _address(host: str) -> x509.IPAddress | None:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return None
