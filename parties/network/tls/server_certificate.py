"""The server's certificate, fetched before a party sends anything to it, as gRPC for Python does not show it.

The stream then trusts only this certificate (``TlsFiles.trusting``), so that no other server can take its place.
"""

import asyncio
import ssl

from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.tls.files import TlsFiles

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
