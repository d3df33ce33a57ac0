"""Certificates, judged by OpenSSL (handshakes in memory) and by cryptography's own path validation."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import verification
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses

from vfl.parties.network.tls.certificates import (
    SERVER,
    Authority,
    CertificateSubject,
    alternative_names,
    fingerprint,
    issued_by,
    make_request,
    new_key,
    peer,
)

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True).filter(lambda name: name != SERVER)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str = SERVER) -> ssl.SSLObject:
    """Shake hands over memory and return the server's end. Raises SSLError where a side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done = [False, False]
    for _ in range(10):
        for index, end in enumerate(ends):
            try:
                if not done[index]:
                    end.do_handshake()
                    done[index] = True
            except ssl.SSLWantReadError:
                pass
    assert done == [True, True]
    return ends[1]


def test_an_owner_is_known_by_its_name(credentials):
    server = credentials(SERVER).context(ssl.PROTOCOL_TLS_SERVER)
    for host in (SERVER, "localhost", "127.0.0.1"):
        end = handshake(credentials("party_1").context(ssl.PROTOCOL_TLS_CLIENT), server, host)
        assert end.version() == "TLSv1.3"
        der = end.getpeercert(binary_form=True)
        assert der is not None
        assert peer(ssl.DER_cert_to_PEM_cert(der).encode()).name == "party_1"


def client_of(name, **how):
    return lambda credentials: (credentials(name, **how), credentials(SERVER), SERVER)


def server_of(name, host=SERVER, **how):
    return lambda credentials: (credentials("party_1"), credentials(name, **how), host)


REFUSED = {
    "party expired": (client_of("party_1", age_days=50, days=40), "certificate has expired"),
    "party not yet valid": (client_of("party_1", age_days=-2), "certificate is not yet valid"),
    "party of another authority": (client_of("party_1", signer=Authority.create("other", 999)), "certificate verify"),
    "server's certificate as a party's": (client_of(SERVER), "unsuitable certificate purpose"),
    "server expired": (server_of(SERVER, age_days=50, days=40), "certificate has expired"),
    "server of another authority": (server_of(SERVER, signer=Authority.create("other", 999)), "certificate verify"),
    "party's certificate as the server's": (server_of("party_2", host="party_2"), "unsuitable certificate purpose"),
    "another name": (server_of(SERVER, host="party_2"), "Hostname mismatch"),
    "another host": (server_of(SERVER, host="example.org"), "Hostname mismatch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tls_refuses(case, credentials):
    how, reason = REFUSED[case]
    client, server, host = how(credentials)
    if "of another authority" in case:
        reference = credentials("party_1")
        for each in (client, server):
            each.ca = reference.ca
    with pytest.raises(ssl.SSLError, match=reason):
        handshake(client.context(ssl.PROTOCOL_TLS_CLIENT), server.context(ssl.PROTOCOL_TLS_SERVER), host)


@pytest.mark.parametrize(("name", "host"), [("party-1", None), (SERVER, "vfl.example.org"), (SERVER, "10.0.0.7")])
def test_path_validation_accepts(name, host, authority):
    owner = CertificateSubject(name, ("vfl.example.org", "10.0.0.7") if host else ())
    made = authority.certify(owner, new_key().public_key(), 30)
    policy = verification.PolicyBuilder().store(verification.Store([authority.certificate]))
    if host is None:
        assert policy.build_client_verifier().verify(made, []).chain == [made, authority.certificate]
    else:
        subject = CertificateSubject(SERVER, (host,)).alternative_names
        assert policy.build_server_verifier(next(iter(subject))).verify(made, []) == [made, authority.certificate]


@given(name=NAMES, days=st.integers(1, 900))
def test_a_name_travels_through_request_and_certificate(authority, name, days):
    key = new_key()
    made = authority.sign_request(make_request(CertificateSubject(name), key), CertificateSubject(name), days)
    assert peer(made.public_bytes(Encoding.PEM)).name == name
    assert alternative_names(made) == {name}
    assert issued_by(made, authority.certificate)
    assert fingerprint(made.public_key()) == fingerprint(key.public_key())
    left = made.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=days, minutes=-5) < left <= timedelta(days=days)


def request_for(common_name: str, *names: x509.GeneralName, authority: bool = False) -> x509.CertificateSigningRequest:
    """A request as somebody else's software may make it."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    return builder.sign(new_key(), hashes.SHA256())


def test_a_request_that_asks_for_more_gets_what_its_owner_is_due(authority):
    request = request_for("party_1", x509.DNSName("party_1"), authority=True)
    made = authority.sign_request(request, CertificateSubject("party_1"), 30)
    plain = authority.certify(CertificateSubject("party_1"), request.public_key(), 30)
    assert list(made.extensions) == list(plain.extensions)
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize(
    ("request_", "owner", "message"),
    [
        (request_for("party_2"), CertificateSubject("party_1"), "for 'party_2', not for 'party_1'"),
        (
            request_for("party_1", x509.DNSName("localhost")),
            CertificateSubject("party_1"),
            "for localhost, not for party_1",
        ),
        (request_for("party_1"), CertificateSubject("party_1"), "for no name, not for party_1"),
        (
            request_for(SERVER, x509.DNSName("a")),
            CertificateSubject(SERVER, ("a", "::1")),
            "for a, not for ::1, a, server ",
        ),
    ],
)
def test_a_request_must_be_for_whom_it_is_signed(authority, request_, owner, message):
    with refused("REQUEST") as error:
        authority.sign_request(request_, owner, 30)
    assert message in str(error.value) + " "


@pytest.mark.parametrize(
    ("make", "weak"),
    [
        (lambda: ec.generate_private_key(ec.SECP224R1()), True),
        (lambda: ec.generate_private_key(ec.SECP192R1()), True),
        (lambda: rsa.generate_private_key(65537, 1024), True),
        (lambda: dsa.generate_private_key(2048), True),
        (lambda: ec.generate_private_key(ec.SECP256R1()), False),
        (lambda: ec.generate_private_key(ec.SECP384R1()), False),
        (lambda: rsa.generate_private_key(65537, 2048), False),
        (ed25519.Ed25519PrivateKey.generate, False),
    ],
)
def test_a_weak_key_is_not_signed(authority, make, weak: bool):
    key = make()
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "party_1")])
    )
    names = x509.SubjectAlternativeName([x509.DNSName("party_1")])
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    request = builder.add_extension(names, critical=False).sign(key, algorithm)
    if weak:
        refuses("REQUEST", lambda: authority.sign_request(request, CertificateSubject("party_1"), 30), "request")
    else:
        assert authority.sign_request(request, CertificateSubject("party_1"), 30).public_key() == key.public_key()


def test_a_request_for_a_key_that_is_not_its_senders_is_refused(authority):
    mine, theirs = (make_request(CertificateSubject("party_1"), new_key()) for _ in range(2))
    der = bytearray(mine.public_bytes(Encoding.DER))
    point = mine.public_key().public_bytes(Encoding.X962, x509_point_format())
    der[der.find(point) : der.find(point) + len(point)] = theirs.public_key().public_bytes(
        Encoding.X962, x509_point_format()
    )
    forged = x509.load_der_x509_csr(bytes(der))
    refuses("REQUEST", lambda: authority.sign_request(forged, CertificateSubject("party_1"), 30), "signed")


def x509_point_format():
    from cryptography.hazmat.primitives.serialization import PublicFormat

    return PublicFormat.UncompressedPoint


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda ca: CertificateSubject("../party_1"), ("NAME", "'../party_1'")),
        (lambda ca: CertificateSubject(""), ("NAME", "''")),
        (lambda ca: CertificateSubject("p" * 64), ("NAME", "owner")),
        (lambda ca: CertificateSubject("party_1", ("localhost",)), ("--host", "dialled")),
        (lambda ca: CertificateSubject(SERVER, ("localhost:50051",)), ("--host", "'localhost:50051'")),
        (lambda ca: CertificateSubject(SERVER, ("a..b",)), ("--host", "'a..b'")),
        (lambda ca: ca.certify(CertificateSubject("party_1"), new_key().public_key(), 0), ("--days", "36500")),
        (lambda ca: ca.certify(CertificateSubject("party_1"), new_key().public_key(), 5000), ("--days", "5000")),
        (lambda ca: Authority.create("", 10), ("--name", "''")),
    ],
)
def test_bad_wishes_are_one_line_that_names_the_option(make, message, authority):
    with refused(*message):
        make(authority)
