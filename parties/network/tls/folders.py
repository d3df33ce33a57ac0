"""Folders of an authority and of the owners that it certifies, for ``lvfl certs``."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from vfl.parties.network.tls.certificates import (
    Authority,
    CertificateSubject,
    alternative_names,
    common_name,
    fingerprint,
    is_authority,
    key_pem,
    make_request,
    new_key,
    serial,
)
from vfl.parties.network.tls.files import (
    CA,
    CA_KEY,
    CERTIFICATE,
    ISSUED,
    KEY,
    PRIVATE,
    PUBLIC,
    REQUEST,
    check_signed,
    is_request,
    load_authority,
    load_certificate,
    load_key,
    load_request,
    load_tls_files,
)
from vfl.parties.network.tls.lists import deny, write_serial
from vfl.runs.atomic import check_absent, write_durably, write_together

Content = tuple[bytes, int]
"""Bytes and permissions of a file."""


def make_authority(keys: Path, name: str, days: int, *, overwrite: bool = False) -> None:
    """Create an authority in the folder ``keys``.

    Raises ValueError, one line, if there is one already (unless ``overwrite``), or for a bad name or days.
    """
    authority = Authority.create(name, days)
    content = {CA_KEY: (key_pem(authority.key), PRIVATE), CA: (_pem(authority.certificate), PUBLIC)}
    _write(keys, content, overwrite=overwrite)


def issue(keys: Path, owners: Sequence[CertificateSubject], days: int, *, overwrite: bool = False) -> list[Path]:
    """Create a key and a certificate for every owner and return their folders, ``keys``/NAME.

    Raises ValueError, one line, before anything is written: no authority, files that exist (unless ``overwrite``), days
    beyond the authority's own.
    """
    authority = load_authority(keys)
    folders = {keys / owner.name: _new_credentials(authority, owner, days) for owner in owners}
    if not overwrite:
        for folder, content in folders.items():
            check_absent(folder, content)
    for folder, content in folders.items():
        _hand_out(folder, content, overwrite=overwrite)
    return list(folders)


def request_certificate(
    folder: Path, owner: CertificateSubject, *, overwrite: bool = False
) -> x509.CertificateSigningRequest:
    """Write a request to certify the key in the owner's ``folder``; a new key if it has none, or with ``overwrite``.

    Raises ValueError, one line, for a key that cannot be used.
    """
    content: dict[str, Content] = {}
    if overwrite or not (folder / KEY).exists():
        key = new_key()
        content[KEY] = (key_pem(key), PRIVATE)
    else:
        key = load_key("FOLDER", folder / KEY)
    request = make_request(owner, key)
    content[REQUEST] = (request.public_bytes(Encoding.PEM), PUBLIC)
    _write(folder, content, overwrite=True)  # the only key that this replaces is one that was asked to be
    return request


def sign_request(keys: Path, path: Path, owner: CertificateSubject, days: int, *, overwrite: bool = False) -> Path:
    """Certify a request's key and return the folder to send to its owner: ``keys``/NAME with two certificates.

    Raises ValueError, one line, as `Authority.sign_request`, and for a certificate that exists (unless ``overwrite``).
    """
    authority = load_authority(keys)
    certificate = authority.sign_request(load_request("REQUEST", path), owner, days)
    folder = keys / owner.name
    content = {CERTIFICATE: (_pem(certificate), PUBLIC), CA: (_pem(authority.certificate), PUBLIC)}
    _hand_out(folder, content, overwrite=overwrite)
    return folder


def revoke(keys: Path, name: str, deny_list: Path) -> tuple[list[str], list[str]]:
    """Add the serial numbers of all certificates of an owner to a deny list; return all of them, and the new ones.

    These are the ones in ``issued.txt`` in the authority's folder ``keys``, including replaced certificates, and the
    one in ``keys``/NAME. Raises ValueError, one line, for an owner without any, and for a file that is not a deny list.
    """
    CertificateSubject(name)
    issued, own = keys / ISSUED, keys / name / CERTIFICATE
    lines = _issued(issued) if issued.exists() else []
    serials = {line[0]: f"{name}, until {line[2]}" for line in lines if line[1] == name}
    if own.exists():
        certificate = load_certificate("KEYS", own)
        serials[serial(certificate)] = f"{name}, until {certificate.not_valid_after_utc:%F}"
    if not serials:
        known = ", ".join(sorted({line[1] for line in lines})) or "nobody"
        raise ValueError(f"NAME: {keys} holds no certificate of {name!r}, but of {known}; give the authority's folder")
    return list(serials), deny(deny_list, serials)


def _issued(path: Path) -> list[list[str]]:
    """Return the words of each line of a list of certificates. Raises ValueError for a line that names none."""
    lines = {number: line.split() for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)}
    for number, words in lines.items():
        if len(words) not in (0, 3):
            raise ValueError(f"KEYS: {path}, line {number}: is not 'SERIAL OWNER LAST-DAY'; mend it, or remove it")
    return [words for words in lines.values() if words]


def describe(path: Path) -> list[str]:
    """Return lines about a PEM file or an owner's folder. Raises ValueError for an unusable one."""
    if path.is_dir():
        return _describe_folder(path)
    if is_request("PATH", path):
        request = load_request("PATH", path)
        return [f"request of {_named(request)}", f"fingerprint {fingerprint(request.public_key())}"]
    return _describe_certificate(load_certificate("PATH", path))


def _describe_folder(folder: Path) -> list[str]:
    if (folder / CA_KEY).exists():
        return _describe_certificate(load_authority(folder).certificate)
    if (folder / REQUEST).exists() and not (folder / CERTIFICATE).exists():
        return describe(folder / REQUEST)
    certificate = load_certificate("PATH", folder / CERTIFICATE)
    if not (folder / KEY).exists():  # signed from a request: the key has never left its owner
        check_signed(folder / CA, folder / CERTIFICATE)
        remark = "certificate and authority belong together; there is no key here (its owner has it)"
        return [*_describe_certificate(certificate), remark]
    load_tls_files(folder / CA, folder / CERTIFICATE, folder / KEY, common_name(certificate.subject))
    return [*_describe_certificate(certificate), "key, certificate and authority belong together"]


def _describe_certificate(certificate: x509.Certificate) -> list[str]:
    until = certificate.not_valid_after_utc
    left = (until - datetime.now(UTC)).days
    validity = f"until {until:%F %R} UTC (days left: {left})" if left >= 0 else f"expired on {until:%F %R} UTC"
    if is_authority(certificate):
        what = f"authority {common_name(certificate.subject)!r}"
    else:
        what = f"certificate of {_named(certificate)}, signed by {common_name(certificate.issuer)!r}"
    return [
        f"{what}, {validity}",
        f"fingerprint {fingerprint(certificate.public_key())}",
        f"serial {write_serial(serial(certificate))}",
    ]


def _named(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    name = common_name(certificate.subject)
    hosts = ", ".join(sorted(alternative_names(certificate) - {name}))
    return f"{name!r} at {hosts}" if hosts else repr(name)


def _new_credentials(authority: Authority, owner: CertificateSubject, days: int) -> dict[str, Content]:
    key = new_key()
    certificate = authority.certify(owner, key.public_key(), days)
    return {
        KEY: (key_pem(key), PRIVATE),
        CERTIFICATE: (_pem(certificate), PUBLIC),
        CA: (_pem(authority.certificate), PUBLIC),
    }


def _hand_out(folder: Path, content: Mapping[str, Content], *, overwrite: bool) -> None:
    """Write an owner's files, after recording the serial number: only recorded ones can be revoked later."""
    if not overwrite:
        check_absent(folder, content)
    certificate = x509.load_pem_x509_certificate(content[CERTIFICATE][0])
    issued = folder.parent / ISSUED
    before = issued.read_bytes() if issued.exists() else b""
    line = f"{serial(certificate)} {common_name(certificate.subject)} {certificate.not_valid_after_utc:%F}\n"
    _write(folder.parent, {ISSUED: (before + line.encode(), PUBLIC)}, overwrite=True)
    _write(folder, content, overwrite=overwrite)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _write(folder: Path, content: Mapping[str, Content], *, overwrite: bool) -> None:
    writers = {name: partial(write_durably, chunks=[data], mode=mode) for name, (data, mode) in content.items()}
    write_together(folder, writers, overwrite=overwrite)
