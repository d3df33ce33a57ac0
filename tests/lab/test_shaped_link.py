"""The slow and broken network: what arrives, in what order, and who learns of an end."""

import math
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

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


@contextmanager
def linked(listener: socket.socket, shape: Shape | None = None) -> Iterator[tuple[ShapedLink, Any, Any]]:
    """Yield a link and both ends of a connection through it."""
    with ShapedLink(listener.getsockname(), shape or Shape()) as link:
        client, target = through(link, listener)
        with client, target:
            yield link, client, target


def receive(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = end.recv(size - len(data))
        assert piece, f"ended after {len(data)} of {size} bytes"
        data += piece
    return data


def check_passes(sender: socket.socket, receiver: socket.socket, content: bytes) -> None:
    sender.sendall(content)
    assert receive(receiver, len(content)) == content


def check_new_connections_pass(link: ShapedLink, listener: socket.socket) -> None:
    client, target = through(link, listener)
    with client, target:
        check_passes(client, target, b"after")


@pytest.mark.parametrize("shape", [Shape(), Shape(400e6, 0.02)])
def test_what_goes_in_comes_out_both_ways_and_ends_one_way_at_a_time(shape, listener):
    sizes = 3_000_000, 2_000_000
    with linked(listener, shape) as (link, client, target), ThreadPoolExecutor(1) as reader:
        for sender, receiver, size in zip((client, target), (target, client), sizes, strict=True):
            content = random.Random(size).randbytes(size)
            came = reader.submit(receive, receiver, size)
            sender.sendall(content)
            sender.shutdown(socket.SHUT_WR)  # the other direction stays open
            assert came.result(PATIENCE_S) == content
            assert receiver.recv(1) == b""
        assert link.arrived_bytes == (1 + sizes[0], sizes[1])


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
    with linked(listener, begun) as (link, client, target):
        link.reshape(Shape(20e6, 0.05))
        started_s = time.monotonic()
        check_passes(client, target, bytes(size))
        check_passes(target, client, b"!")
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
    with linked(listener) as (link, client, target):
        check_passes(client, target, b"before")
        link.cut()
        for end in (client, target):
            with pytest.raises(ConnectionResetError):
                end.recv(1)
        check_new_connections_pass(link, listener)


def test_half_open_leaves_the_client_with_a_peer_that_is_gone(listener):
    with linked(listener) as (link, client, target):
        check_passes(client, target, b"before")
        link.half_open()
        with pytest.raises(ConnectionResetError):
            target.recv(1)
        client.sendall(b"into the void" * 1000)
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        check_new_connections_pass(link, listener)
        link.half_open()  # the first client is not told now either
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_stall_holds_everything_back_and_restore_loses_nothing(listener):
    with linked(listener) as (link, client, target):
        check_passes(client, target, b"one")
        link.stall()
        client.sendall(b"two")
        target.sendall(b"zwei")
        late = socket.create_connection(("127.0.0.1", link.port), PATIENCE_S)
        late.sendall(b"three")
        for end, wait in ((target, target.recv), (client, client.recv), (listener, lambda _: listener.accept())):
            end.settimeout(0.2)
            with pytest.raises(TimeoutError):
                wait(1)
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
            with (
                pytest.raises(ConnectionError),
                socket.create_connection(("127.0.0.1", link.port), PATIENCE_S) as client,
            ):
                assert client.recv(1)
            late.settimeout(PATIENCE_S)
            late.listen()
            check_new_connections_pass(link, late)


def test_a_reset_travels_through(listener):
    with linked(listener) as (_, client, target):
        target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        target.close()
        with pytest.raises(ConnectionResetError):
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
