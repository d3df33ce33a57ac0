"""The slow and broken network: what arrives, in what order, and who learns of an end."""

import math
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.lab.benchmarks.shaped_link import BURST_S, Direction, Shape, ShapedLink

pytestmark = pytest.mark.release

PATIENCE_S = 60.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        yield server


def through(link: ShapedLink, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection through the link, after a byte has passed."""
    client = socket.create_connection(("127.0.0.1", link.port), PATIENCE_S)
    client.sendall(b"?")
    target, _ = listener.accept()
    target.settimeout(PATIENCE_S)
    assert receive(target, 1) == b"?"
    return client, target


def receive(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = end.recv(size - len(data))
        assert piece, f"ended after {len(data)} of {size} bytes"
        data += piece
    return data


def everything(end: socket.socket, into: list[bytes]) -> threading.Thread:
    def read() -> None:
        while piece := end.recv(1 << 16):
            into.append(piece)

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def listen_to(link: ShapedLink) -> None:
    with socket.create_connection(("127.0.0.1", link.port), PATIENCE_S) as client:
        assert client.recv(1)


@pytest.mark.parametrize("shape", [Shape(), Shape(400e6, 0.02)])
def test_what_goes_in_comes_out_both_ways_and_ends_one_way_at_a_time(shape, listener):
    up, down = random.Random(0).randbytes(3_000_000), random.Random(1).randbytes(2_000_000)
    with ShapedLink(listener.getsockname(), shape) as link:
        client, target = through(link, listener)
        with client, target:
            at_target: list[bytes] = []
            reading = everything(target, at_target)
            client.sendall(up)
            client.shutdown(socket.SHUT_WR)  # the other direction stays open
            reading.join(PATIENCE_S)
            assert b"".join(at_target) == up
            at_client: list[bytes] = []
            reading = everything(client, at_client)
            target.sendall(down)
            target.shutdown(socket.SHUT_WR)
            reading.join(PATIENCE_S)
            assert b"".join(at_client) == down
        assert link.arrived_bytes == (1 + len(up), len(down))


@given(
    rate=st.floats(1e3, 1e9),
    sizes=st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0, 10)), min_size=1, max_size=20),
)
def test_bytes_leave_at_the_rate_and_in_order(rate, sizes):
    direction = Direction(Shape(rate))
    now_s, left_s = 0.0, -math.inf
    for size, pause_s in sizes:
        now_s += pause_s
        before_s, left_s = left_s, direction.send(size, now_s)
        assert left_s >= before_s
        assert left_s >= now_s
        assert left_s >= now_s - BURST_S + 8 * size / rate * (1 - 1e-9)
        assert left_s <= max(before_s, now_s) + 8 * size / rate * (1 + 1e-9)
    total = sum(size for size, _ in sizes)
    assert left_s >= 8 * total / rate * (1 - 1e-9) - BURST_S


@pytest.mark.parametrize("begun", [Shape(20e6, 0.05), Shape(400e6)])
def test_a_transfer_is_never_faster_than_the_link_is_or_has_become(listener, begun):
    # Only the lower bound: how much slower it is depends on what else the machine does.
    size = 250_000
    with ShapedLink(listener.getsockname(), begun) as link:
        client, target = through(link, listener)
        link.reshape(Shape(20e6, 0.05))
        with client, target:
            started_s = time.monotonic()
            client.sendall(bytes(size))
            receive(target, size)
            target.sendall(b"!")
            receive(client, 1)
            took_s = time.monotonic() - started_s
    assert took_s >= 8 * size / 20e6 + 2 * (0.05 - BURST_S)


def test_connections_share_the_rate(listener):
    size = 60_000
    with ShapedLink(listener.getsockname(), Shape(rate_bits_per_s=8e6)) as link:
        pairs = [through(link, listener) for _ in range(3)]
        started_s = time.monotonic()
        for client, _ in pairs:
            client.sendall(bytes(size))
        for client, target in pairs:
            receive(target, size)
            client.close()
            target.close()
        assert time.monotonic() - started_s >= 3 * 8 * size / 8e6 - BURST_S


def test_cut_resets_both_ends_and_lets_new_connections_pass(listener):
    with ShapedLink(listener.getsockname()) as link:
        client, target = through(link, listener)
        client.sendall(b"before")
        assert receive(target, 6) == b"before"
        link.cut()
        for end in (client, target):
            with end, pytest.raises(ConnectionResetError):
                end.recv(1)
        again, target = through(link, listener)
        with again, target:
            again.sendall(b"after")
            assert receive(target, 5) == b"after"


def test_half_open_leaves_the_client_with_a_peer_that_is_gone(listener):
    with ShapedLink(listener.getsockname()) as link:
        client, target = through(link, listener)
        with client, target:
            client.sendall(b"before")
            assert receive(target, 6) == b"before"
            link.half_open()
            with pytest.raises(ConnectionResetError):
                target.recv(1)
            client.sendall(b"into the void" * 1000)
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
            again, target_again = through(link, listener)
            with again, target_again:
                again.sendall(b"after")
                assert receive(target_again, 5) == b"after"
                link.half_open()  # the first client is not told now either
            with pytest.raises(TimeoutError):
                client.recv(1)


def test_stall_holds_everything_back_and_restore_loses_nothing(listener):
    with ShapedLink(listener.getsockname()) as link:
        client, target = through(link, listener)
        with client, target:
            client.sendall(b"one")
            assert receive(target, 3) == b"one"
            link.stall()
            client.sendall(b"two")
            target.sendall(b"zwei")
            late = socket.create_connection(("127.0.0.1", link.port), PATIENCE_S)
            late.sendall(b"three")
            for end in (client, target, listener):
                end.settimeout(0.2)
            for receive_one in (lambda: target.recv(1), lambda: client.recv(1), listener.accept):
                with pytest.raises(TimeoutError):
                    receive_one()
            for end in (client, target, listener):
                end.settimeout(PATIENCE_S)
            link.restore()
            assert receive(target, 3) == b"two"
            assert receive(client, 4) == b"zwei"
            with late, listener.accept()[0] as late_target:
                late_target.settimeout(PATIENCE_S)
                assert receive(late_target, 5) == b"three"


def test_without_a_target_clients_are_reset_until_there_is_one():
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))  # a port that is taken, where nobody listens yet
        with ShapedLink(late.getsockname()) as link:
            with pytest.raises(ConnectionError):
                listen_to(link)
            late.settimeout(PATIENCE_S)
            late.listen()
            client, target = through(link, late)
            with client, target:
                client.sendall(b"there")
                assert receive(target, 5) == b"there"


def test_a_reset_travels_through(listener):
    with ShapedLink(listener.getsockname()) as link:
        client, target = through(link, listener)
        target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        target.close()
        with client, pytest.raises(ConnectionResetError):
            client.recv(1)


def test_closing_leaves_no_thread_no_port_and_no_connection(listener):
    before = threading.active_count()
    link = ShapedLink(listener.getsockname())
    client, target = through(link, listener)
    link.half_open()
    second, second_target = through(link, listener)
    assert link.open_connections == 2
    link.close()
    link.close()
    assert threading.active_count() == before
    for end in (client, second, second_target):
        with end, pytest.raises(ConnectionResetError):
            end.recv(1)
    target.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", link.port), PATIENCE_S)
