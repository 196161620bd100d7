"""The lines of a batch file: what each asks for, and how its answer is written, as OpenAI has both.

A file is looked through once for where its lines are; the body of a line is read again when its
turn comes, so that memory does not depend on the size of the file.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from quire.server.apis.batches.protocol import BatchFault
from quire.server.http.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES

BATCH_URLS = (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES)
"""The endpoints that a line may ask."""
MAX_LINES = 50_000
MAX_CUSTOM_ID_CHARS = 512
MAX_FAULTS = 20
"""So many faults of a file are told; then it is read no further."""


class BatchLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a batch file. `body` is the request's, in JSON."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class LinePlace(NamedTuple):
    """The place of a line in its file: its first byte, how many there are, and its `custom_id`."""

    offset: int
    num_bytes: int
    custom_id: str


class BatchIndex(NamedTuple):
    """The lines of a file, and what is wrong with it; a file with faults is not run."""

    places: Sequence[LinePlace]
    faults: Sequence[BatchFault]


class LineLimits(NamedTuple):
    """The limits of a batch file: its lines, the bytes of one, and the endpoints they may ask."""

    max_line_bytes: int
    urls: tuple[str, ...] = BATCH_URLS
    max_lines: int = MAX_LINES


class FaultyLine(Exception):
    """A line that cannot be run."""

    def __init__(self, message: str, *, code: str = "invalid_value", param: str | None = None):
        super().__init__(message)
        self.code = code
        self.param = param


class AnswerResponse(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class AnswerError(msgspec.Struct, frozen=True):
    code: str
    message: str


class AnswerLine(msgspec.Struct, frozen=True):
    """The answer to one line. `response` is null where the line was never run, and `error` says
    why; a response that is an error has its status and OpenAI's error object."""

    id: str
    custom_id: str
    response: AnswerResponse | None
    error: AnswerError | None = None


class _Answered(msgspec.Struct, frozen=True):
    custom_id: str


_decode_line = msgspec.json.Decoder(BatchLine).decode
_decode_answered = msgspec.json.Decoder(_Answered).decode


def parse_line(raw: bytes, limits: LineLimits) -> BatchLine:
    """Return the line. Raises FaultyLine."""
    if len(raw) > limits.max_line_bytes:
        raise FaultyLine(
            f"has {len(raw)} bytes, and no more than {limits.max_line_bytes} are read "
            "(--max-body-bytes)",
            code="line_too_large",
        )
    try:
        line = _decode_line(raw)
    except msgspec.ValidationError as error:
        raise FaultyLine(f"is not a request of a batch: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FaultyLine(f"is not valid JSON: {error}", code="invalid_json_line") from None
    if not 1 <= len(line.custom_id) <= MAX_CUSTOM_ID_CHARS:
        raise FaultyLine(
            f"'custom_id' has {len(line.custom_id)} characters; 1 to {MAX_CUSTOM_ID_CHARS} are "
            "wanted",
            param="custom_id",
        )
    if line.method != "POST":
        raise FaultyLine(f"'method' is {line.method[:20]!r}, must be 'POST'", param="method")
    if line.url not in limits.urls:
        wanted = " or ".join(limits.urls)
        raise FaultyLine(f"'url' is {line.url[:100]!r}, must be {wanted}", param="url")
    if not bytes(line.body).startswith(b"{"):
        raise FaultyLine("'body' must be a JSON object", param="body")
    return line


def read_index(path: Path, limits: LineLimits) -> BatchIndex:
    """Look through a batch file. Raises OSError."""
    places: list[LinePlace] = []
    faults: list[BatchFault] = []
    first_lines: dict[str, int] = {}
    for number, offset, raw in _raw_lines(path, limits.max_line_bytes):
        try:
            line = parse_line(raw, limits)
            first = first_lines.setdefault(line.custom_id, number)
            if first != number:
                raise FaultyLine(
                    f"'custom_id' is that of line {first}; each line needs its own",
                    code="duplicate_custom_id",
                    param="custom_id",
                )
            if len(places) == limits.max_lines:
                raise FaultyLine(
                    f"is one too many: a batch has at most {limits.max_lines} lines",
                    code="too_many_lines",
                )
            places.append(LinePlace(offset, len(raw), line.custom_id))
        except FaultyLine as fault:
            faults.append(
                BatchFault(fault.code, f"Line {number} {fault}.", line=number, param=fault.param)
            )
            if len(faults) == MAX_FAULTS or fault.code == "too_many_lines":
                break
    if not places and not faults:
        faults.append(BatchFault("empty_file", "The file has no line."))
    return BatchIndex(places, faults)


def _raw_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, offset and bytes of the lines that are not blank. Of a line that is too long
    only so much is read as shows that it is."""
    offset = number = 0
    with path.open("rb") as file:
        while raw := file.readline(max_bytes + 2):
            number += 1
            line = raw.rstrip(b"\r\n")
            if line.strip():
                yield number, offset, line
            offset += len(raw)
            while not raw.endswith(b"\n") and (raw := file.readline(1 << 20)):
                offset += len(raw)


def read_place(path: Path, place: LinePlace) -> bytes:
    """Return the bytes of a line. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, place.num_bytes, place.offset)
    finally:
        os.close(descriptor)


def answered_id(raw: bytes) -> str | None:
    """Return the `custom_id` of an answer's line; None for bytes that are no whole answer."""
    try:
        return _decode_answered(raw).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
