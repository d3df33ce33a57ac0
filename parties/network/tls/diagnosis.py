"""Diagnosis of failed connections, as gRPC says "unavailable" of a closed port and of a refused certificate alike.

The same port is tried step by step with Python's own sockets and TLS. In TLS 1.3 a client learns that its certificate
is refused only after its own side of the handshake has succeeded: gRPC then hangs up, and greets (with the SETTINGS
frame that begins HTTP/2, RFC 9113) if it does not.
"""

import os
import socket
import ssl
import time
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

from cryptography import x509

from vfl.parties.network.tls.certificates import SERVER, common_name
from vfl.parties.network.tls.files import TlsFiles, verifying_context

STEP_LIMIT_S = 5.0
"""Limit of every step: looking up, connecting, shaking hands, the first bytes."""
AGAIN_S = 1.0
"""Seconds after which a refusal is repeated to count: a server that is starting or stopping seems to refuse."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""First bytes of an HTTP/2 client, with an empty SETTINGS frame."""
_FRAME_HEADER_BYTES, _TYPE_AT, _SETTINGS = 9, 3, 4
_TLS_ALERT = 0x15
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""OpenSSL's reasons if the bytes received are not TLS."""


class Symptom(Enum):
    """Kinds of findings."""

    ANSWERS = "answers"
    """The server is there and answers."""
    NO_HOST = "no such host"
    CLOSED = "closed port"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    """The connection was accepted, and then nothing was sent."""
    NOT_TLS = "no TLS"
    NOT_GRPC = "no gRPC"
    OLD_TLS = "no TLS 1.3"
    WANTS_TLS = "TLS wanted"
    OURS_EXPIRED = "own certificate expired"
    SERVER_EXPIRED = "server's certificate expired"
    SERVER_TOO_NEW = "server's certificate not yet valid"
    WRONG_NAME = "wrong name"
    UNKNOWN_AUTHORITY = "unknown authority"
    REFUSED = "refused certificate"

    @property
    def may_pass(self) -> bool:
        """Return whether dialling again may help: the server is not there yet, or the network is down."""
        return self in (Symptom.ANSWERS, Symptom.NO_HOST, Symptom.CLOSED, Symptom.UNREACHABLE, Symptom.SILENT)


class Diagnosis(NamedTuple):
    """A finding, with one line about the fix."""

    kind: Symptom
    text: str


class _Stopped(Exception):  # noqa: N818 - how a step ends the search, never seen outside
    """A failed step, which ends the search: its `Diagnosis` in two parts."""


def explain(address: str, tls: TlsFiles | None) -> str | None:
    """Return why dialling ``address`` again would not help; None if it may.

    Takes about a second if it does not help, otherwise as long as the network takes to answer.
    """
    first = probe(address, tls)
    if first.kind.may_pass:
        return None
    time.sleep(AGAIN_S)
    second = probe(address, tls)
    return second.text if second.kind is first.kind else None


def probe(address: str, tls: TlsFiles | None) -> Diagnosis:
    """Try step by step to reach the server at ``address`` (host:port) with these credentials; None is plaintext."""
    try:
        if tls is not None:
            _check_own(tls)
        with _connect(address) as connection:
            if tls is None:
                _greet_plainly(address, connection)
            else:
                with _shake_hands(address, connection, tls) as secured:
                    _hear_greeting(address, secured, tls)
    except _Stopped as stopped:
        return Diagnosis(*stopped.args)
    return Diagnosis(Symptom.ANSWERS, f"a gRPC server answers at {address}")


def _check_own(tls: TlsFiles) -> None:
    until = x509.load_pem_x509_certificate(tls.certificate).not_valid_after_utc
    if datetime.now(UTC) > until:
        text = f"network.tls.certificate: expired on {until:%F %R} UTC; have a new one made by lvfl certs"
        raise _Stopped(Symptom.OURS_EXPIRED, text)


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return socket.create_connection((host.strip("[]"), int(port)), STEP_LIMIT_S)
    except socket.gaierror as error:
        text = f"the host name {host!r} is not known ({error.strerror}); check network.server and the name service"
        raise _Stopped(Symptom.NO_HOST, text) from None
    except ConnectionRefusedError:
        text = f"nobody listens at {address}; start lvfl server there, or check the port in network.server"
        raise _Stopped(Symptom.CLOSED, text) from None
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror
        text = f"{address} cannot be reached ({why}); check the host, the network, and the firewall before the server"
        raise _Stopped(Symptom.UNREACHABLE, text) from None


def _shake_hands(address: str, connection: socket.socket, tls: TlsFiles) -> ssl.SSLSocket:
    try:
        return _context(tls).wrap_socket(connection, server_hostname=SERVER)
    except ssl.SSLCertVerificationError as error:
        raise _Stopped(*_judge(address, error)) from None
    except ssl.SSLError as error:
        reason = error.reason or ""
        if any(each in reason for each in _NOT_TLS):
            text = f"what listens at {address} speaks no TLS: a server started with --insecure, or something else"
            raise _Stopped(Symptom.NOT_TLS, text) from None
        if "VERSION" in reason:
            text = f"what listens at {address} speaks no TLS 1.3: it is not our server"
            raise _Stopped(Symptom.OLD_TLS, text) from None
        raise _Stopped(Symptom.SILENT, f"{address} breaks the handshake off ({reason or error}); try again") from None
    except OSError as error:
        raise _Stopped(Symptom.SILENT, _silent(address, error)) from None


def _context(tls: TlsFiles) -> ssl.SSLContext:
    context = verifying_context(tls)
    with os.fdopen(os.memfd_create("identity"), "wb") as memory:  # Python's ssl reads keys from files only: on no disk
        memory.write(tls.certificate + b"\n" + tls.key)
        memory.flush()
        context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}")
    return context


_JUDGED = {
    9: (Symptom.SERVER_TOO_NEW, "is not valid yet; check the clocks of both machines"),
    10: (Symptom.SERVER_EXPIRED, "is expired; its operator renews it (lvfl certs issue --overwrite)"),
    62: (Symptom.WRONG_NAME, f"does not name {SERVER!r}: another service, or check network.server"),
    26: (Symptom.WRONG_NAME, "is not a server's (extended key usage): somebody else answers there"),
}
"""What is wrong with a server's certificate, by OpenSSL's X509_V_ERR_* codes."""


def _judge(address: str, error: ssl.SSLCertVerificationError) -> tuple[Symptom, str]:
    unknown = f"is not signed by the authority in network.tls.ca ({error.verify_message}); compare both sides' ca.pem"
    kind, text = _JUDGED.get(error.verify_code, (Symptom.UNKNOWN_AUTHORITY, f"{unknown} (lvfl certs show)"))
    return kind, f"the certificate of the server at {address} {text}"


def _hear_greeting(address: str, secured: ssl.SSLSocket, tls: TlsFiles) -> None:
    if secured.selected_alpn_protocol() != "h2":
        raise _Stopped(Symptom.NOT_GRPC, f"what listens at {address} speaks TLS but no gRPC; check network.server")
    try:
        greeting = _receive(secured)
    except TimeoutError as error:
        raise _Stopped(Symptom.SILENT, _silent(address, error)) from None
    except OSError:  # an alert, or a reset
        greeting = b""
    if not greeting:
        issuer = common_name(x509.load_pem_x509_certificate(tls.certificate).issuer)
        text = (
            f"the server at {address} refuses this certificate, which {issuer!r} signed: the server's network.tls.ca "
            "must be the same authority's, and its clock right; compare both sides' ca.pem (lvfl certs show)"
        )
        raise _Stopped(Symptom.REFUSED, text)
    _check_settings(address, greeting)


def _greet_plainly(address: str, connection: socket.socket) -> None:
    try:
        connection.sendall(_PREFACE)
        greeting = _receive(connection)
    except OSError as error:
        raise _Stopped(Symptom.SILENT, _silent(address, error)) from None
    if greeting[:1] in (b"", bytes((_TLS_ALERT,))):
        text = f"the server at {address} takes no plaintext; leave --insecure out and give network.tls"
        raise _Stopped(Symptom.WANTS_TLS, text)
    _check_settings(address, greeting)


def _receive(connection: socket.socket) -> bytes:
    """Return the header of the first frame, or the bytes before the connection ended."""
    received = b""
    while len(received) < _FRAME_HEADER_BYTES and (more := connection.recv(_FRAME_HEADER_BYTES - len(received))):
        received += more
    return received


def _check_settings(address: str, greeting: bytes) -> None:
    if greeting[_TYPE_AT : _TYPE_AT + 1] != bytes((_SETTINGS,)):
        raise _Stopped(Symptom.NOT_GRPC, f"what listens at {address} speaks no gRPC; check network.server")


def _silent(address: str, error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"{address} takes the connection and stays silent for {STEP_LIMIT_S:g} s; the server may be frozen"
    return f"{address} drops the connection ({error.strerror or error}); try again, or check what is in between"
