"""Attacks by connections: many, slow, silent, cut off, and never read."""

import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.e2e.hostile.attacks.heads import count_open
from tests.e2e.hostile.target import (
    CLOSED,
    HELD,
    LEFT,
    NO_ANSWER,
    RESET,
    Attack,
    Target,
    head_bytes,
    is_open,
    post_bytes,
    post_head,
    read_reply,
    send_all,
)

COMPLETIONS = "/v1/completions"
MIB = 1 << 20
PATIENCE_S = 150.0
SENT = 7 * MIB + 900 * 1024
LONG = {"max_tokens": 900, "ignore_eos": True, "stream": True}


def half_bodies(target: Target) -> None:
    """Send nearly all of each body, and then nothing."""
    connections: list[socket.socket] = []
    body = b" " * SENT

    def send() -> None:
        connection = target.connect()
        connections.append(connection)
        connection.settimeout(min(10.0, target.left_s))
        try:
            send_all(connection, [post_head(COMPLETIONS, 8 * MIB), body])
        except OSError:
            return

    target.together([send] * 60, num_threads=8)
    count_answers(target, connections)


def slow_bodies(target: Target) -> None:
    """Send a byte every 3 s on each of 60 connections that have sent 100 KB."""
    connections = [target.connect() for _ in range(60)]
    for connection in connections:
        send_all(connection, [post_head(COMPLETIONS, MIB), b" " * 100_000])

    def drip() -> None:
        for connection in connections:
            with suppress(OSError):
                connection.send(b" ")

    count_answers(target, connections, drip)


def count_answers(
    target: Target, connections: list[socket.socket], drip: Callable[[], None] = lambda: None
) -> None:
    """Count what the server said on each connection, once it has or the patience is over, and close
    them. `drip` is called every 3 s meanwhile."""
    await_answers(target, connections, drip)
    for connection in connections:
        connection.settimeout(0.05)
        label = read_reply(connection).label
        if label == NO_ANSWER:
            label = HELD
        target.answers[label] += 1
        connection.close()


def await_answers(
    target: Target, connections: list[socket.socket], drip: Callable[[], None]
) -> None:
    """Wait until each connection has something to be read, or has ended, or the patience is
    over."""
    until = min(time.monotonic() + PATIENCE_S, target.deadline_s)
    waited = select.poll()
    for connection in connections:
        waited.register(connection, select.POLLIN)
    seen: set[int] = set()
    while time.monotonic() < until:
        for descriptor, _ in waited.poll(0):
            seen.add(descriptor)
            waited.unregister(descriptor)
        if len(seen) == len(connections):
            break
        drip()
        time.sleep(3)


def idle_connections(target: Target) -> None:
    connections = [target.connect() for _ in range(1000)]
    target.pause(5)
    target.get("/livez")
    count_open(target, connections)


def at_once(target: Target) -> None:
    """Send a thousand requests, each on a connection of its own, before one answer is read."""
    connections = [target.connect() for _ in range(1000)]
    request = post_bytes(COMPLETIONS, {"prompt": "x", "max_tokens": 1}, Connection="close")
    for connection in connections:
        send_all(connection, [request])
    for connection in connections:
        connection.settimeout(target.left_s)
        target.answers[read_reply(connection).label] += 1
        connection.close()


def churn(target: Target) -> None:
    """Open connections and end them at once."""

    def touch() -> None:
        with target.connect():
            target.answers[LEFT] += 1

    target.together([touch] * 3000)


def resets_within_bodies(target: Target) -> None:
    def reset() -> None:
        with target.connect() as connection:
            send_all(connection, [post_head(COMPLETIONS, MIB), b" " * 200_000])
            end_rudely(connection)
            target.answers[LEFT] += 1

    target.together([reset] * 300)


def resets_within_streams(target: Target) -> None:
    """Reset connections after the first bytes of a streamed answer."""

    def reset() -> None:
        try:
            with target.connect() as connection:
                send_all(connection, [post_bytes(COMPLETIONS, {"prompt": "x"} | LONG)])
                connection.recv(100)
                end_rudely(connection)
                target.answers[LEFT] += 1
        except OSError:
            target.answers[RESET] += 1

    target.together([reset] * 200)


def end_rudely(connection: socket.socket) -> None:
    """End the connection by a reset, so that nothing is said of the end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def never_read(target: Target) -> None:
    """Ask for whole streams, which the server finishes, and read nothing of them."""
    connections = []
    for index in range(100):
        connections.append(target.connect(receive_bytes=4096))
        body = {"prompt": f"{index}", "n": 4, "logprobs": 5} | LONG | {"max_tokens": 100}
        send_all(connections[-1], [post_bytes(COMPLETIONS, body)])
    ports = {connection.getsockname()[1] for connection in connections}
    until = min(time.monotonic() + PATIENCE_S, target.deadline_s)
    while (num_held := len(ports & _ports_at_server(target))) and time.monotonic() < until:
        time.sleep(3)
    target.answers.update({HELD: num_held, CLOSED: len(ports) - num_held})
    target.answers += Counter()  # none of a kind is not told
    for connection in connections:
        connection.close()


def _ports_at_server(target: Target) -> set[int]:
    """Return the ports of the clients whose sockets the server still has: its end of a connection
    may be behind bytes that the client does not take."""
    server = psutil.Process(target.server_pid)
    return {each.raddr.port for each in server.net_connections("tcp") if each.raddr}


def slow_readers(target: Target) -> None:
    """Read fifty streams at a byte a second."""
    connections = []
    for index in range(50):
        connections.append(target.connect(receive_bytes=4096))
        send_all(connections[-1], [post_bytes(COMPLETIONS, {"prompt": f"{index}"} | LONG)])
    for _ in range(10):
        target.pause(1)
        for connection in connections:
            connection.settimeout(0.01)
            try:
                connection.recv(1)
            except OSError:
                continue
    count_open(target, connections)


def hammered(path: str) -> Callable[[Target], None]:
    """Return an attack that asks for a page again and again, on eight connections that stay
    open."""

    def run(target: Target) -> None:
        request = head_bytes("GET", path, Authorization="none") + b"\r\n"
        local = threading.local()

        def ask() -> None:
            connection: socket.socket | None = getattr(local, "connection", None)
            if connection is None or not is_usable(connection):
                connection = local.connection = target.connect()
            send_all(connection, [request])
            target.answers[read_reply(connection).label] += 1

        target.repeat(ask, seconds=5, num_threads=8)

    return run


def is_usable(connection: socket.socket) -> bool:
    usable = is_open(connection) if connection.fileno() >= 0 else False
    connection.settimeout(10)
    return usable


ATTACKS = (
    Attack(
        "half bodies",
        "60 bodies of 8 MB, 7.9 of them sent, then silence",
        ("408", "429", "503", RESET, CLOSED),
        half_bodies,
        limit_s=100,
    ),
    Attack("slow bodies", "60 bodies, a byte every 3 s", ("408",), slow_bodies, 100),
    Attack(
        "idle connections",
        "1,000 that say nothing for 5 s",
        ("200", HELD, CLOSED),
        idle_connections,
    ),
    Attack(
        "a thousand at once", "completions on 1,000 connections", ("200", "503", "429"), at_once
    ),
    Attack("connections that end", "3,000, without a byte", (LEFT,), churn),
    Attack("resets within bodies", "300, after 200 kB of 1 MB", (LEFT,), resets_within_bodies),
    Attack(
        "resets within streams", "200, after the first bytes", (LEFT, RESET), resets_within_streams
    ),
    Attack("streams never read", "100, each of 400 tokens", (CLOSED,), never_read, 170),
    Attack("streams read slowly", "50, a byte a second for 10 s", (HELD, CLOSED), slow_readers),
    Attack("hammered /livez", "8 connections, 5 s, no key", ("200",), hammered("/livez")),
    Attack("hammered /metrics", "8 connections, 5 s, no key", ("200",), hammered("/metrics")),
    Attack(
        "hammered /openapi.json", "8 connections, 5 s, no key", ("200",), hammered("/openapi.json")
    ),
)
