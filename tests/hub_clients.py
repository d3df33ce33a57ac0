"""Who speaks to a listening hub: certificates of an authority, and messages on a stream of their own."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from vfl.messages.messages import Kind, Message
from vfl.parties.network.tls.certificates import Authority, CertificateSubject, key_pem, new_key
from vfl.parties.network.tls.files import TlsFiles
from vfl.parties.network.transport.rpc import error_text, grpc, is_end, open_channel, open_stream
from vfl.parties.network.wire.frame import unpack
from vfl.parties.network.wire.session import Refusal

LIMIT_S = 60.0


def made(
    authority: Authority, name: str, *, hosts: tuple[str, ...] = (), age_days: int = 0, days: int = 100
) -> TlsFiles:
    """Return a new key with the certificate of an owner, and the authority's."""
    key = new_key()
    begin = datetime.now(UTC) - timedelta(days=age_days)
    certificate = authority.certify(CertificateSubject(name, hosts), key.public_key(), days, begin)
    pems = [each.public_bytes(Encoding.PEM) for each in (authority.certificate, certificate)]
    return TlsFiles(pems[0], pems[1], key_pem(key))


def write(tls: TlsFiles, folder: Path) -> dict[str, Path]:
    """Write the files of an owner into a folder; return their paths."""
    folder.mkdir(exist_ok=True)
    paths = {name: folder / f"{name}.pem" for name in ("ca", "certificate", "key")}
    for name, path in paths.items():
        path.write_bytes(getattr(tls, name))
    paths["key"].chmod(0o600)
    return paths


def talk(address: str, tls: TlsFiles | None, *messages: bytes, answers: int = 1) -> list[Message | str]:
    """Send messages on one stream and return so many answers but heartbeats; gRPC's words where there are none."""

    async def converse() -> list[Message | str]:
        opened = open_channel(address, tls)
        heard: list[Message | str] = []
        try:
            call = open_stream(opened)
            for each in messages:
                await call.write(each)
            while len(heard) < answers:
                data = await asyncio.wait_for(call.read(), LIMIT_S)
                if is_end(data):
                    return [*heard, "end"]
                if (message := unpack(data)).kind is not Kind.HEARTBEAT:
                    heard.append(message)
        except grpc.aio.AioRpcError as error:
            heard.append(error_text(error))
        finally:
            await opened.close()
        return heard

    return asyncio.run(converse())


def reason_of(answer: Message | str) -> str:
    """Return the reason of a refusal."""
    assert isinstance(answer, Message), answer
    return Refusal.of(answer).reason
