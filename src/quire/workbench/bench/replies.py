"""Turns raw exchanges into times and token counts, after the load is over."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from quire.workbench.bench.exchange import Exchange, TimedBytes

HEAD_END = b"\r\n\r\n"
MAX_SHOWN_BYTES = 300


class BadReply(Exception):
    """A reply that is no complete stream of completion events."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answered request. Token counts are None where the server did not give them."""

    start_s: float
    end_s: float
    text_times_s: tuple[float, ...]
    num_prompt_tokens: int | None
    num_output_tokens: int | None
    num_cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """One request without a usable answer."""

    reason: str


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _ChatDelta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _ChatDelta | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


class _Payload(NamedTuple):
    at_s: float
    data: bytes


_decode_event = msgspec.json.Decoder(_Event).decode


def _split_head(reads: Sequence[TimedBytes]) -> tuple[bytes, list[TimedBytes]]:
    """Return the response head, and the reads that follow it."""
    head = b""
    for index, read in enumerate(reads):
        head += read.data
        if HEAD_END in head:
            head, _, rest = head.partition(HEAD_END)
            return head, [TimedBytes(read.at_s, rest), *reads[index + 1 :]]
    raise BadReply("the connection closed before a response head came")


def _unchunk(reads: Sequence[TimedBytes]) -> Iterator[TimedBytes]:
    """Undo the chunked transfer coding; a chunk's time is that of the read that completed it."""
    pending = b""
    for read in reads:
        pending += read.data
        while True:
            size_line, found, rest = pending.partition(b"\r\n")
            if not found:
                break
            size = int(size_line.split(b";")[0], 16)
            if len(rest) < size + 2:
                break
            yield TimedBytes(read.at_s, rest[:size])
            pending = rest[size + 2 :]
            if size == 0:
                return
    raise BadReply("the connection closed in the middle of the stream")


def _payloads(reads: Sequence[TimedBytes]) -> Iterator[_Payload]:
    """Yield the `data:` payloads of a stream of server-sent events, one line each."""
    pending = b""
    for read in reads:
        *lines, pending = (pending + read.data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield _Payload(read.at_s, line[5:].strip())


class _Opened(NamedTuple):
    status: int
    pieces: list[TimedBytes]


def _open(exchanged: Exchange) -> _Opened:
    """Return the status, and the body in timed parts."""
    if exchanged.failure is not None:
        raise BadReply(exchanged.failure)
    head, rest = _split_head(exchanged.reads)
    status_line, *headers = head.lower().split(b"\r\n")
    is_chunked = any(
        line.startswith(b"transfer-encoding:") and b"chunked" in line for line in headers
    )
    return _Opened(int(status_line.split()[1]), list(_unchunk(rest)) if is_chunked else rest)


class Response(NamedTuple):
    """A response that is no stream."""

    status: int
    body: bytes


def read_response(exchanged: Exchange) -> Response:
    """Return the response of an exchange. Raises BadReply if none came, or only a part."""
    try:
        status, pieces = _open(exchanged)
    except (ValueError, IndexError) as error:
        raise BadReply(f"no HTTP: {error}") from None
    return Response(status, b"".join(piece.data for piece in pieces))


def _has_text(choice: _Choice) -> bool:
    return bool(choice.text or (choice.delta and choice.delta.content))


def _events_of(exchanged: Exchange) -> list[TimedBytes]:
    status, pieces = _open(exchanged)
    if status != 200:
        shown = b"".join(piece.data for piece in pieces)[:MAX_SHOWN_BYTES]
        raise BadReply(f"status {status}: {shown.decode(errors='replace')}")
    return pieces


def _parse_events(exchanged: Exchange) -> Reply:
    text_times_s: list[float] = []
    usage = _Usage()
    has_ended = False
    for payload in _payloads(_events_of(exchanged)):
        if payload.data == b"[DONE]":
            has_ended = True
            continue
        event = _decode_event(payload.data)
        if bytes(event.error) != b"null":
            raise BadReply(bytes(event.error).decode()[:MAX_SHOWN_BYTES])
        usage = event.usage or usage
        text_times_s += [payload.at_s for choice in event.choices if _has_text(choice)]
        has_ended = has_ended or any(choice.finish_reason for choice in event.choices)
    if not has_ended:
        raise BadReply("the stream ended without [DONE] or a finish reason")
    details = usage.prompt_tokens_details or _PromptDetails()
    return Reply(
        start_s=exchanged.start_s,
        end_s=exchanged.end_s,
        text_times_s=tuple(text_times_s),
        num_prompt_tokens=usage.prompt_tokens,
        num_output_tokens=usage.completion_tokens,
        num_cached_tokens=details.cached_tokens,
    )


def parse_reply(exchanged: Exchange) -> Reply | Failure:
    """Return the times and counts of one exchange, or why there are none."""
    try:
        return _parse_events(exchanged)
    except (BadReply, msgspec.DecodeError, ValueError, IndexError) as error:
        return Failure(f"{type(error).__name__}: {error}")
