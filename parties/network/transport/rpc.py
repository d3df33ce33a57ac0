"""gRPC with one method, bytes in and bytes out, and mutual TLS 1.3. Only this file knows its options."""
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false
# grpcio brings no types.

import os
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

# Read when gRPC starts. TLS 1.3 has suites of its own; below it only this one is left, which needs a pre-shared key
# that nobody has: earlier versions cannot be negotiated. gRPC for Python has no setting for it.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what matters is said by ours

import grpc
import grpc.aio

from vfl.base.errors import TryLater, plain
from vfl.parties.network.tls.certificates import SERVER, Peer, peer
from vfl.parties.network.tls.files import TlsFiles
from vfl.parties.network.transport.listening import listening
from vfl.parties.network.wire.frame import PIECE_BYTES

_SERVICE = "lvfl.Federation"
_METHOD = "Join"
_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", PIECE_BYTES),
    ("grpc.max_send_message_length", PIECE_BYTES),
    # Heartbeats show whether a peer lives; these only close connections that were cut without a message.
    # A client that pings faster than the server allows is thrown out: no strikes.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.enable_retries", 0),
]
HANDSHAKE_LIMIT_S = 10
"""Seconds from a TCP connection to the end of its handshakes; slower peers are disconnected."""
IDLE_LIMIT_S = 20
"""Seconds after which a connection without an open stream is closed."""
STREAMS_PER_CONNECTION = 2
_SERVER_OPTIONS: list[tuple[str, int | str]] = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),  # or a second server would quietly share the port
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_LIMIT_S * 1000),
    ("grpc.max_connection_idle_ms", IDLE_LIMIT_S * 1000),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
]


class Pipe(Protocol):
    """An open stream, with the methods that both sides have."""

    async def read(self) -> Any:
        """Return the next message as bytes, or the mark that ``is_end`` recognises."""
        ...

    async def write(self, message: bytes) -> None:
        """Send a message; waits while the peer's window is full."""
        ...


class Call(Pipe, Protocol):
    """The dialling side's stream."""

    def cancel(self) -> bool:
        """End the stream at once."""
        ...


Server = grpc.aio.Server
Channel = grpc.aio.Channel
Serve = Callable[[Pipe, Peer | None], Awaitable[None]]
"""Serves a stream, given the peer by its certificate; None on a plaintext connection."""


def is_end(message: Any) -> bool:
    """Return whether ``read`` found the end of the stream."""
    return message is grpc.aio.EOF  # pyright: ignore[reportAttributeAccessIssue]  # made at run time


def error_text(error: BaseException) -> str:
    """Return gRPC's status in one line; its details may be the peer's words."""
    if isinstance(error, grpc.aio.AioRpcError):
        return plain(f"{error.code().name}: {error.details()}")
    return plain(f"{type(error).__name__} {error}")


def is_oversize(error: BaseException) -> bool:
    """Return whether a message exceeded a side's limit, so that sending it again would not help.

    A server that is full for now has the same status code, but another text.
    """
    if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return False
    return "larger than max" in (error.details() or "")


def make_server(address: str, tls: TlsFiles | None, connections: int, serve: Serve) -> Server:
    """Return a server bound to ``address``, not yet started, that passes every stream to ``serve``.

    Beyond ``connections`` connections it hangs up on new ones at once. Raises ConfigError if the address cannot be
    bound, for example because another process listens there.
    """

    async def handle(_requests: Any, context: Any) -> None:
        caller = None
        if tls is not None:
            auth_context = context.auth_context()
            if auth_context["ssl_tls_version"] != [b"TLSv1.3"]:  # another module had started gRPC before this one
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "TLS 1.3 is needed")
            caller = peer(auth_context["x509_pem_cert"][0])
        await serve(context, caller)

    method = grpc.stream_stream_rpc_method_handler(handle)
    limit = ("grpc.max_allowed_incoming_connections", connections)
    server = grpc.aio.server(options=[*_SERVER_OPTIONS, limit])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method}),))
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            credentials = grpc.ssl_server_credentials(
                [(tls.key, tls.certificate)], root_certificates=tls.ca, require_client_auth=True
            )
            server.add_secure_port(address, credentials)
    except RuntimeError:
        with listening("network.listen", address):  # tells why, which gRPC does not
            raise TryLater(f"network.listen: {address} could not be bound; it is free now") from None
    return server


def open_channel(address: str, tls: TlsFiles | None, *, use_proxy: bool = False) -> Channel:
    """Return a channel to the server; it connects when a stream is opened.

    ``use_proxy``: connect through the HTTP proxy that the environment names, if any.
    """
    options = [*_OPTIONS, ("grpc.enable_http_proxy", int(use_proxy))]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    # The certificate must name the server, wherever it was found.
    return grpc.aio.secure_channel(address, credentials, options=[*options, ("grpc.ssl_target_name_override", SERVER)])


def open_stream(channel: Channel) -> Call:
    """Open the stream; reading it shows whether the server is there."""
    return cast(Call, channel.stream_stream(f"/{_SERVICE}/{_METHOD}")())
