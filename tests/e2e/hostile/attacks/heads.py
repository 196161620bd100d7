"""Attacks on what comes before a body: request lines, headers, chunks, and what is no HTTP."""

import itertools
import re
import select
import socket
from collections.abc import Iterator

from tests.e2e.hostile.target import (
    CLOSED,
    HELD,
    NO_ANSWER,
    RESET,
    Attack,
    Target,
    head_bytes,
    is_open,
    post_bytes,
    post_head,
    send_all,
)

MIB = 1 << 20
PIECE = b"a" * (64 * 1024)
COMPLETIONS = "/v1/completions"
CHUNKED = {"Content_Type": "application/json", "Transfer_Encoding": "chunked"}
STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
REFUSED = ("400", "413", "431")


def filler(num_bytes: int) -> Iterator[bytes]:
    return itertools.repeat(PIECE, num_bytes // len(PIECE))


def endless_header_line(target: Target) -> None:
    target.raw(itertools.chain([b"GET /livez HTTP/1.1\r\nX: "], filler(120 * MIB)))


def endless_header_name(target: Target) -> None:
    target.raw(itertools.chain([b"GET /livez HTTP/1.1\r\n"], filler(120 * MIB)))


def endless_request_line(target: Target) -> None:
    target.raw(itertools.chain([b"GET /"], filler(120 * MIB)))


def many_headers(target: Target) -> None:
    lines = b"".join(b"x%d: y\r\n" % index for index in range(20_000))
    target.together([lambda: target.raw([head_bytes("GET", "/livez"), lines, b"\r\n"])] * 20)


def endless_chunk_extension(target: Target) -> None:
    head = head_bytes("POST", COMPLETIONS, **CHUNKED) + b"\r\n5;"
    target.raw(itertools.chain([head], filler(60 * MIB)))


def endless_trailer(target: Target) -> None:
    head = head_bytes("POST", COMPLETIONS, **CHUNKED) + b"\r\n2\r\n{}\r\n0\r\nX: "
    target.raw(itertools.chain([head], filler(60 * MIB)))


def one_byte_chunks(target: Target) -> None:
    head = head_bytes("POST", COMPLETIONS, **CHUNKED) + b"\r\n"
    body = b"1\r\n \r\n" * 1_000_000 + b"2\r\n{}\r\n0\r\n\r\n"
    target.raw([head, body])


def bad_chunk_size(target: Target) -> None:
    head = head_bytes("POST", COMPLETIONS, **CHUNKED) + b"\r\n"
    for size in (b"zz", b"-1", b"f" * 17, b""):
        target.raw([head + size + b"\r\n{}\r\n0\r\n\r\n"])


def misspelt_transfer_encoding(target: Target) -> None:
    for spelt in ("chunkd", "chunked, chunked", "identity", "gzip"):
        headers = CHUNKED | {"Transfer_Encoding": spelt}
        target.raw([head_bytes("POST", COMPLETIONS, **headers) + b"\r\n2\r\n{}\r\n0\r\n\r\n"])


def two_lengths(target: Target) -> None:
    """Send Content-Length beside Transfer-Encoding, twice, negative, and as no number."""
    head = head_bytes("POST", COMPLETIONS, Content_Type="application/json")
    for lines in (
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n",
        b"Content-Length: -2\r\n",
        b"Content-Length: two\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
    ):
        target.raw([head + lines + b"\r\n{}"])


def no_http(target: Target) -> None:
    for sent in (b"\x16\x03\x01\x02\x00" * 50, b"\x00" * 500, b"SSH-2.0-x\r\n", b"GET\r\n\r\n"):
        target.raw([sent])


def upgrades(target: Target) -> None:
    """Send upgrades on one connection, all at once; the answers are read after."""
    offer = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2_Settings": "AAMAAABk",
    }
    pipelined(target, head_bytes("GET", "/livez", **offer) + b"\r\n", 600)


def pipelined_requests(target: Target) -> None:
    pipelined(target, head_bytes("GET", "/livez") + b"\r\n", 5000)


def pipelined_bodies(target: Target) -> None:
    pipelined(target, post_bytes(COMPLETIONS, {"prompt": "x", "max_tokens": 1}), 300)


def pipelined(target: Target, request: bytes, num: int) -> None:
    """Send all requests in one piece, and then read whatever is answered."""
    answered = b""
    statuses: list[bytes] = []
    try:
        with target.connect() as connection:
            send_all(connection, [request * num])
            while len(statuses) < num and (piece := connection.recv(MIB)):
                answered += piece
                statuses = STATUS.findall(answered)
    except TimeoutError:
        target.answers[NO_ANSWER] += 1
    except OSError:
        target.answers[RESET] += 1
    target.answers.update(status.decode() for status in statuses)
    if len(statuses) < num:
        target.answers[CLOSED] += 1


def expects_to_continue(target: Target) -> None:
    """Announce a body that is too large, and one that never comes."""
    target.raw([post_head(COMPLETIONS, 1 << 40, Expect="100-continue")])
    connections = [target.connect() for _ in range(100)]
    for connection in connections:
        connection.sendall(post_head(COMPLETIONS, MIB, Expect="100-continue"))
    target.pause(5)
    count_open(target, connections)


def slow_heads(target: Target) -> None:
    """Send a byte of the head each second, on many connections."""
    connections = [target.connect() for _ in range(200)]
    for byte in b"GET / HTTP":
        for connection in connections:
            send_all(connection, [bytes([byte])])
        target.pause(1)
    count_open(target, connections)


def count_open(target: Target, connections: list[socket.socket]) -> None:
    """Count the connections that are open, and close them."""
    waited = select.poll()
    for connection in connections:
        waited.register(connection, select.POLLIN)
    told = {descriptor for descriptor, _ in waited.poll(0)}
    for connection in connections:
        is_kept = connection.fileno() not in told or is_open(connection)
        target.answers[HELD if is_kept else CLOSED] += 1
        connection.close()


def many_request_ids(target: Target) -> None:
    """Send requests that are each answered with an id of the client's own choice."""

    def ask(index: int) -> None:
        request_id = f"{index:x<128}"
        body = {"prompt": [index % 1000], "max_tokens": 1}
        target.post(COMPLETIONS, body, X_Request_Id=request_id)

    target.together([lambda index=index: ask(index) for index in range(2000)])  # type: ignore[misc]


ATTACKS = (
    Attack("endless header line", "120 MB of one header's value", ("431",), endless_header_line),
    Attack(
        "endless header name", "120 MB of one header's name", ("431", "400"), endless_header_name
    ),
    Attack("endless request line", "120 MB of one path", ("414",), endless_request_line),
    Attack("header flood", "20 heads of 20,000 headers", ("431",), many_headers),
    Attack(
        "endless chunk extension",
        "60 MB behind a chunk's size",
        REFUSED,
        endless_chunk_extension,
    ),
    Attack("endless trailer", "60 MB of a header after the body", REFUSED, endless_trailer),
    Attack("one-byte chunks", "a body of a million chunks", ("400", "413"), one_byte_chunks),
    Attack("bad chunk size", "four sizes that are none", ("400",), bad_chunk_size),
    Attack(
        "misspelt Transfer-Encoding", "four codings", ("400", "501"), misspelt_transfer_encoding
    ),
    Attack("contradicting lengths", "five Content-Lengths", ("400", "413"), two_lengths),
    Attack("no HTTP", "TLS, zeros, SSH, half a line", ("400",), no_http),
    Attack("pipelined upgrades", "600 requests with Upgrade: h2c at once", ("200",), upgrades),
    Attack("pipelined requests", "5,000 /livez on one connection", ("200",), pipelined_requests),
    Attack("pipelined bodies", "300 completions on one connection", ("200",), pipelined_bodies),
    Attack(
        "bodies that only await a go-ahead",
        "a terabyte announced; 100 bodies that never come",
        ("413", HELD, CLOSED),
        expects_to_continue,
    ),
    Attack("slow heads", "200 heads, a byte a second for 10 s", (HELD, "408"), slow_heads),
    Attack(
        "many request ids",
        "2,000 requests, each with an id of 128 bytes",
        ("200",),
        many_request_ids,
    ),
)
