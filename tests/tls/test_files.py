import os
import ssl
import stat
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from refusals import refused, refuses

from vfl.parties.network.tls.certificates import SERVER, Authority, CertificateSubject, new_key
from vfl.parties.network.tls.files import ISSUED, load_key, load_tls_files
from vfl.parties.network.tls.folders import describe, issue, make_authority, request_certificate, sign_request


def load(files, owner: str = "party_1"):
    return load_tls_files(files.ca, files.certificate, files.key, owner)


@pytest.mark.parametrize("owner", ["party_1", SERVER])
def test_good_files_come_as_they_are(owner, credentials):
    files = credentials(owner)
    loaded = load(files, owner)
    assert loaded.ca == files.ca.read_bytes()
    assert loaded.certificate == files.certificate.read_bytes()
    assert loaded.key == files.key.read_bytes()
    assert "PRIVATE" not in repr(loaded)


def remove(path: Path, _credentials):
    path.unlink()


def make_folder(path: Path, _credentials):
    path.unlink()
    path.mkdir()


def encrypt(path: Path, _credentials):
    key = load_key("", path)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))


def open_to_group(path: Path, _credentials):
    path.chmod(0o640)


def holding(data: bytes):
    return lambda path, _credentials: path.write_bytes(data)


def from_another(file: str, **how):
    return lambda path, credentials: path.write_bytes(getattr(credentials("party_1", **how), file).read_bytes())


OTHER = Authority.create("other", 200)
SPOILT = {
    "no ca": ("ca", remove, "ca", "No such file"),
    "no certificate": ("certificate", remove, "certificate", "No such file"),
    "no key": ("key", remove, "key", "No such file"),
    "folder as key": ("key", make_folder, "key", "Is a directory"),
    "noise as ca": ("ca", holding(b"\0no"), "ca", "no certificate in PEM"),
    "noise as certificate": ("certificate", holding(b""), "certificate", "no certificate in PEM"),
    "noise as key": ("key", holding(b"x"), "key", "no private key in PEM"),
    "encrypted key": ("key", encrypt, "key", "is encrypted"),
    "key that others read": ("key", open_to_group, "key", "mode 0640); chmod 600"),
    "another's key": ("key", from_another("key"), "key", "is not the key of"),
    "another authority": ("ca", from_another("ca", signer=OTHER), "certificate", "is not signed by the authority in"),
    "certificate as authority": ("ca", from_another("certificate"), "certificate", "is not signed by the authority in"),
}
"""Name: the file that is spoilt, how, the setting that the error names, and what it says."""


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_file_is_one_line_that_names_it(case, credentials):
    file, spoil, setting, reason = SPOILT[case]
    files = credentials("party_1")
    spoil(getattr(files, file), credentials)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        load(files)
    assert str(error.value).startswith(f"network.tls.{setting}: {files.ca.parent}/{setting}.pem ")
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("name", "how", "owner", "reason"),
    [
        ("party_2", {}, "party_1", "names 'party_2'; this is 'party_1'"),
        ("party_1", {"age_days": 50, "days": 40}, "party_1", "expired on "),
        ("party_1", {"age_days": -2}, "party_1", "is this machine's clock right?"),
    ],
)
def test_a_certificate_that_does_not_serve_is_refused(name, how, owner, reason, credentials):
    refuses("network.tls.certificate", lambda: load(credentials(name, **how), owner), reason)


def test_a_certificate_for_the_other_side_of_a_connection_is_refused(credentials, authority, monkeypatch):
    files = credentials("party_1")
    with monkeypatch.context() as patch:
        patch.setattr(
            "vfl.parties.network.tls.certificates.SERVER", "party_1"
        )  # usage of a server under a party's name
        wrong = authority.certify(
            CertificateSubject("party_1", ("localhost",)), load_key("", files.key).public_key(), 100
        )
    files.certificate.write_bytes(wrong.public_bytes(Encoding.PEM))
    refuses("network.tls.certificate", lambda: load(files), "extended")


def test_a_certificate_without_the_alternative_name_is_refused(credentials, authority, monkeypatch):
    files = credentials("party_1")
    monkeypatch.setattr(CertificateSubject, "alternative_names", CertificateSubject("party_9").alternative_names)
    wrong = authority.certify(CertificateSubject("party_1"), load_key("", files.key).public_key(), 100)
    files.certificate.write_bytes(wrong.public_bytes(Encoding.PEM))
    refuses("network.tls.certificate", lambda: load(files), "'party_1'")


def test_an_expired_authority_is_named(credentials, authority, monkeypatch):
    files = credentials("party_1")
    monkeypatch.setattr("vfl.parties.network.tls.certificates.new_key", lambda: authority.key)
    expired = Authority.create("tests", 30, datetime.now(UTC) - timedelta(days=31))
    files.ca.write_bytes(expired.certificate.public_bytes(Encoding.PEM))
    refuses("network.tls.ca", lambda: load(files), "ca.pem")


def test_two_authorities_in_one_file_carry_over_a_change_of_authority(credentials):
    old, new = credentials("party_1"), credentials("party_1", signer=Authority.create("new", 200))
    both = old.ca.read_bytes() + new.ca.read_bytes()
    for files in (old, new):
        files.ca.write_bytes(both)
        assert load(files).ca == both


def test_a_near_end_is_warned_of(credentials):
    files = credentials("party_1", days=13)
    with pytest.warns(UserWarning, match=r"network\.tls\.certificate: .* expires on .*; renew it in time"):
        load(files)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(credentials("party_1", days=15))


# folders


def modes(folder: Path) -> dict[str, str]:
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): f"{stat.S_IMODE(path.stat().st_mode):04o}" for path in paths}


def test_private_files_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        make_authority(tmp_path / "keys", "tests", 100)
        issue(tmp_path / "keys", [CertificateSubject("party_1")], 30)
        request_certificate(tmp_path / "mine", CertificateSubject("party_2"))
    finally:
        os.umask(before)
    found = modes(tmp_path / "keys") | {f"mine/{name}": mode for name, mode in modes(tmp_path / "mine").items()}
    assert found == {
        ".": "0700",
        "ca.pem": "0644",
        "ca-key.pem": "0600",
        "issued.txt": "0644",
        "party_1": "0700",
        "party_1/ca.pem": "0644",
        "party_1/certificate.pem": "0644",
        "party_1/key.pem": "0600",
        "mine/.": "0700",
        "mine/key.pem": "0600",
        "mine/request.pem": "0644",
    }


def content(folder: Path) -> dict[str, bytes]:
    """Of all files but the record of what was signed, which may name more than was written."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ISSUED)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_what_is_there_is_kept_unless_overwriting_is_asked_for(tmp_path):
    keys = tmp_path / "keys"
    make_authority(keys, "tests", 100)
    issue(keys, [CertificateSubject("party_2")], 30)
    before = content(keys)
    refuses("", lambda: make_authority(keys, "tests", 100), "ca-key.pem")
    with refused("", "party_2/key.pem"):
        issue(keys, [CertificateSubject("party_1"), CertificateSubject("party_2")], 30)
    assert content(keys) == before  # party_1's neither
    issue(keys, [CertificateSubject("party_1"), CertificateSubject("party_2")], 30, overwrite=True)
    after = content(keys)
    assert after.keys() == before.keys() | {f"party_1/{name}.pem" for name in ("ca", "certificate", "key")}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"party_2/certificate.pem", "party_2/key.pem"}


def test_a_full_disk_leaves_keys_as_they_were(tmp_path, monkeypatch):
    keys = tmp_path / "keys"
    make_authority(keys, "tests", 100)
    issue(keys, [CertificateSubject("party_1")], 30)
    before = content(keys)

    def full(descriptor: int) -> None:
        if sum(path.name.startswith(".partial") for path in (keys / "party_1").iterdir()) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("vfl.runs.atomic.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        issue(keys, [CertificateSubject("party_1")], 30, overwrite=True)
    assert content(keys) == before


def test_a_key_that_never_travelled_works_as_one_that_did(tmp_path):
    keys, mine = tmp_path / "keys", tmp_path / "mine"
    make_authority(keys, "tests", 100)
    request_certificate(mine, CertificateSubject("party_1"))
    key = (mine / "key.pem").read_bytes()
    sent = sign_request(keys, mine / "request.pem", CertificateSubject("party_1"), 30)
    assert sorted(path.name for path in sent.iterdir()) == ["ca.pem", "certificate.pem"]
    assert all(key not in data for data in content(keys).values())
    for name in ("ca.pem", "certificate.pem"):
        (mine / name).write_bytes((sent / name).read_bytes())
    assert "belong together" in describe(mine)[-1]
    request_certificate(mine, CertificateSubject("party_1"))  # to renew: the key stays
    assert (mine / "key.pem").read_bytes() == key
    request_certificate(mine, CertificateSubject("party_1"), overwrite=True)
    assert (mine / "key.pem").read_bytes() != key
    refuses("network.tls.key", lambda: describe(mine))


def test_another_authoritys_key_signs_nothing(tmp_path):
    for name in ("one", "two"):
        make_authority(tmp_path / name, name, 100)
    (tmp_path / "one" / "ca-key.pem").write_bytes((tmp_path / "two" / "ca-key.pem").read_bytes())
    refuses("KEYS", lambda: issue(tmp_path / "one", [CertificateSubject("party_1")], 30), "ca-key.pem")
    refuses("KEYS", lambda: issue(tmp_path / "three", [CertificateSubject("party_1")], 30), "ca.pem")


def test_openssl_reads_the_folders(tmp_path):
    make_authority(tmp_path, "tests", 100)
    for folder in issue(
        tmp_path, [CertificateSubject("party_1"), CertificateSubject(SERVER, ("localhost", "::1"))], 30
    ):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(folder / "ca.pem")
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        assert context.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}


def test_new_keys_differ():
    keys = {new_key().private_numbers().private_value for _ in range(20)}
    assert len(keys) == 20
