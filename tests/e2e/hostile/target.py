"""An attack, and its target: the address of a server, and a count of its answers."""

import http.client
import json
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

ATTACKER_KEY = "attackers-key"
OTHER_KEY = "key-of-the-others"
MAX_SHOWN_BYTES = 4096
READ_BYTES = 1 << 16

NO_ANSWER, CLOSED, RESET, HELD, LEFT = "no answer", "closed", "reset", "held open", "left"
"""What is counted where no status came in time: the connection ended, or the attacker ended it."""


class Reply(NamedTuple):
    """A reply of the server; `label`, by which replies are counted, is its status and the code of
    an error."""

    label: str
    body: bytes = b""


@dataclass(slots=True)
class Target:
    """A running server under one attack. `deadline_s` is when the attack must be over."""

    host: str
    port: int
    server_pid: int
    engine_pid: int
    deadline_s: float
    answers: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)
    """What an attack measured itself, by name, in seconds."""

    @property
    def left_s(self) -> float:
        return max(self.deadline_s - time.monotonic(), 0.05)

    def connect(self, receive_bytes: int = 0) -> socket.socket:
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(self.left_s)
        connection.connect((self.host, self.port))
        return connection

    def raw(self, pieces: Iterable[bytes]) -> Reply:
        """Send the pieces until the server ends the connection, and count what it answered."""
        reply = self._exchange(pieces)
        self.answers[reply.label] += 1
        return reply

    def as_other(self, path: str, body: object, **headers: str) -> Reply:
        """Make a request of the tenant that attacks nobody; its answer is not counted."""
        key = f"Bearer {OTHER_KEY}"
        return self._exchange([post_bytes(path, body, Authorization=key, **headers)])

    def _exchange(self, pieces: Iterable[bytes]) -> Reply:
        try:
            with self.connect() as connection:
                send_all(connection, pieces)
                return read_reply(connection, self.deadline_s)
        except TimeoutError:
            return Reply(NO_ANSWER)
        except OSError:
            return Reply(RESET)

    def post(self, path: str, body: object, **headers: str) -> Reply:
        return self.raw([post_bytes(path, body, **headers)])

    def get(self, path: str, **headers: str) -> Reply:
        return self.raw([head_bytes("GET", path, **headers) + b"\r\n"])

    def together(self, calls: Iterable[Callable[[], object]], num_threads: int = 32) -> None:
        """Make all calls, so many of them at once."""
        with ThreadPoolExecutor(num_threads) as pool:
            for done in [pool.submit(call) for call in calls]:
                done.result()

    def repeat(self, call: Callable[[], object], *, seconds: float, num_threads: int) -> None:
        """Make the call over and over in each thread."""
        until = min(time.monotonic() + seconds, self.deadline_s)

        def run() -> None:
            while time.monotonic() < until:
                call()

        threads = [threading.Thread(target=run) for _ in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def pause(self, seconds: float) -> None:
        time.sleep(min(seconds, self.left_s))


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack: `run` makes it, and `expects` are the beginnings of the answers that are right.
    While the engine is stopped, others' tokens stop too: that is no aim missed."""

    name: str
    what: str
    expects: tuple[str, ...]
    run: Callable[[Target], None]
    limit_s: float = 60.0
    ends_engine: bool = False
    stops_engine: bool = False

    def surprises(self, answers: Counter[str]) -> list[str]:
        return [label for label in answers if not label.startswith(self.expects)]


def head_bytes(method: str, path: str, **headers: str) -> bytes:
    """Return a head without the empty line that ends it. An underscore in a header's name stands
    for a hyphen."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    named = {"Authorization": f"Bearer {ATTACKER_KEY}"} | headers
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in named.items()]
    return "".join(f"{line}\r\n" for line in lines).encode()


def post_head(path: str, num_bytes: int, **headers: str) -> bytes:
    said = {"Content_Type": "application/json", "Content_Length": str(num_bytes)} | headers
    return head_bytes("POST", path, **said) + b"\r\n"


def post_bytes(path: str, body: object, **headers: str) -> bytes:
    """Return a whole POST request. `body` is sent as it is where it is bytes, and written as JSON
    where it is not."""
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    return post_head(path, len(encoded), **headers) + encoded


def send_all(connection: socket.socket, pieces: Iterable[bytes]) -> None:
    """Send until all is sent or the server closes; an answer may be there to be read then."""
    try:
        for piece in pieces:
            connection.sendall(piece)
    except (BrokenPipeError, ConnectionResetError):
        return


def read_reply(connection: socket.socket, deadline_s: float = math.inf) -> Reply:
    """Read one whole answer, of which the beginning is kept, or leave it if it takes too long."""
    reply = http.client.HTTPResponse(connection)
    try:
        reply.begin()
        body = reply.read(MAX_SHOWN_BYTES)
        while reply.read1(READ_BYTES):
            if time.monotonic() > deadline_s:
                return Reply(LEFT)
    except TimeoutError:
        return Reply(NO_ANSWER)
    except ConnectionResetError:
        return Reply(RESET)
    except (http.client.HTTPException, OSError):
        return Reply(CLOSED)
    return Reply(_label(reply.status, body), body)


def is_open(connection: socket.socket) -> bool:
    """Return whether the server has kept the connection: nothing came that says that it ended."""
    connection.settimeout(0.05)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def _label(status: int, body: bytes) -> str:
    try:
        said: object = json.loads(body)
    except ValueError:
        said = None
    error = said.get("error") if isinstance(said, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return f"{status} {code}" if code else str(status)
