"""Reads an upload: a multipart body, as large as uploads may be and no slower than other bodies.
What is large of it is on the disk while it comes.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import BinaryIO, NamedTuple

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from quire.server.config import HttpLimits
from quire.server.errors import TOO_LARGE, RequestError, ShuttingDown
from quire.server.http.bodies import refuse_compressed, too_slow

FORM_BYTES = 64 * 1024
"""An upload has no more than so many bytes beside its file."""
MAX_FIELDS = 8
MAX_NAME_CHARS = 255
MULTIPART = "multipart/form-data"


class Upload(NamedTuple):
    """A file that has come whole, and the other fields of its form."""

    source: BinaryIO
    name: str
    num_bytes: int
    fields: dict[str, str]


class UploadLimits(NamedTuple):
    """The most bytes of a file; how slowly it may come; `is_cut` says that the server must end, and
    `check` is asked after each part whether there is room for so many bytes."""

    max_bytes: int
    http: HttpLimits
    is_cut: Callable[[], bool]
    check: Callable[[int], None]


@asynccontextmanager
async def uploaded(request: Request, limits: UploadLimits) -> AsyncIterator[Upload]:
    """Give the upload of a request; its file is gone after the block. Raises RequestError."""
    refuse_compressed(request)
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != MULTIPART:
        raise RequestError(
            f"A file is uploaded as {MULTIPART}, with the parts 'file' and 'purpose'."
        )
    parser = MultiPartParser(
        request.headers,
        _parts(request, limits),
        max_files=1,
        max_fields=MAX_FIELDS,
        max_part_size=FORM_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RequestError(f"The upload cannot be read: {error.message}") from None
    try:
        yield _upload(form, limits.max_bytes)
    finally:
        await form.close()


def _upload(form: FormData, max_bytes: int) -> Upload:
    fields: dict[str, str] = {}
    file = None
    for name, value in form.multi_items():
        if name in fields or (file is not None and name == "file"):
            raise RequestError(f"The field '{name}' comes twice.", param=name)
        if isinstance(value, UploadFile):
            if name != "file":
                raise RequestError(f"Unknown file '{name}'; 'file' is wanted.", param=name)
            file = value
        else:
            fields[name] = value
    if file is None:
        raise RequestError(
            "Missing required field 'file'.", param="file", code="missing_required_parameter"
        )
    if (file.size or 0) > max_bytes:
        raise _too_large(max_bytes)
    return Upload(file.file, (file.filename or "")[:MAX_NAME_CHARS], file.size or 0, fields)


async def _parts(request: Request, limits: UploadLimits) -> AsyncGenerator[bytes, None]:
    """Yield the body as it comes. Raises RequestError where it is too long, too slow or cut off."""
    window_s = limits.http.body_window_s
    min_bytes = limits.http.min_body_rate * window_s
    declared = request.headers.get("content-length", "")
    if declared.isdigit():
        _check(int(declared[:20]) - FORM_BYTES, limits)
    num_bytes, due_bytes = 0, min_bytes
    clock = asyncio.get_running_loop().time
    stream = request.stream()
    try:
        async with asyncio.timeout(window_s) as window:
            async for part in stream:
                num_bytes += len(part)
                _check(num_bytes - FORM_BYTES, limits)
                if num_bytes >= due_bytes:
                    due_bytes = num_bytes + min_bytes
                    window.reschedule(clock() + window_s)
                yield part
    except TimeoutError:
        raise too_slow(num_bytes, limits.http) from None
    except ClientDisconnect:
        message = "The client went away while it sent the file."
        raise RequestError(message, code="client_gone") from None


def _check(num_bytes: int, limits: UploadLimits) -> None:
    if num_bytes > limits.max_bytes:
        raise _too_large(limits.max_bytes)
    limits.check(max(num_bytes, 0))
    if limits.is_cut():
        raise ShuttingDown


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"The file is larger than {max_bytes} bytes, the limit of uploads (--max-upload-bytes).",
        param="file",
        code="request_too_large",
        status=TOO_LARGE,
    )
