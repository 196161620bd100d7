"""Routes of `/v1/files` and `/v1/batches`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import anyio
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from quire.server.apis.batches import examples
from quire.server.apis.batches.protocol import (
    MAX_KEPT_S,
    MIN_KEPT_S,
    BatchList,
    BatchObject,
    BatchRequest,
    FileDeleted,
    FileList,
    FileObject,
)
from quire.server.apis.batches.queue import BatchQueue
from quire.server.apis.batches.store import INPUT, StoredBatch
from quire.server.apis.batches.upload import Upload, UploadLimits, uploaded
from quire.server.apis.descriptions import (
    READS_A_BODY,
    json_body,
    parameter,
    responses,
    text_content,
)
from quire.server.apis.protocol.parse import validate
from quire.server.apis.routing import BareRoute, service_of, state_of
from quire.server.errors import NOT_FOUND, TOO_MANY, Overloaded, RequestError
from quire.server.generation.service import Service
from quire.server.http.json_object import parse_object
from quire.server.http.json_responses import json_response
from quire.server.http.query import is_newest_first, limit_of, page_of, query_of
from quire.server.tenancy.tenants import arrival_of

MAX_BATCH_BYTES = 64 * 1024
"""More than any body that asks for a batch."""
COMPLETION_S = 24 * 3600
MAX_UPLOADS, MAX_OWN_UPLOADS = 16, 4
"""So many files may come at once, from all and from one key."""
MAX_FILES_LISTED, MAX_BATCHES_LISTED, BATCHES_LISTED = 10_000, 100, 20
CHUNK_BYTES = 256 * 1024
OCTETS = "application/octet-stream"
_FILE, _BATCH = "/v1/files/{name}", "/v1/batches/{name}"
_FILE_NAME = parameter("name", "path", "The id of the file.", examples.FILE.id)
_BATCH_NAME = parameter("name", "path", "The id of the batch.", examples.BATCH.id)
_PAGE = (
    parameter("limit", "query", "So many items at most.", "20", "^[1-9][0-9]{0,4}$"),
    parameter("after", "query", "The id of the item before the first.", "file-1"),
)
_UPLOAD_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "contentMediaType": OCTETS},
        "purpose": {"const": INPUT},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": MIN_KEPT_S, "maximum": MAX_KEPT_S},
    },
    "additionalProperties": False,
}

router = APIRouter(tags=["Batches"], route_class=BareRoute)


class Batches:
    """The queue of batches, if the server has one, and the owners of files that are uploaded."""

    def __init__(self, service: Service, queue: BatchQueue | None = None) -> None:
        self._queue = queue
        self.uploads: list[str] = []

    @property
    def queue(self) -> BatchQueue:
        """The queue. Raises RequestError without one."""
        if self._queue is None:
            raise RequestError(
                "This server was started without --batch-dir.", code="batches_off", status=NOT_FOUND
            )
        return self._queue


@router.get(
    "/v1/files",
    summary="One's own files.",
    responses=responses(examples.FILES, errors=(NOT_FOUND,)),
    openapi_extra={
        "parameters": [
            *_PAGE,
            parameter("order", "query", "Newest first: `desc`; or `asc`.", "desc", "^(asc|desc)$"),
            parameter("purpose", "query", "Files of this purpose alone.", "batch"),
        ]
    },
)
async def files(request: Request) -> Response:
    store, owner = _queue(request).store, _owner(request)
    query = query_of(request, "after", "limit", "order", "purpose")
    found = [each.file for each in store.files.values() if each.owner == owner]
    purpose = query.get("purpose", "")
    found = [each for each in found if purpose in ("", each.purpose)]
    found.sort(key=lambda each: (each.created_at, each.id), reverse=is_newest_first(query))
    limit = limit_of(query, MAX_FILES_LISTED, MAX_FILES_LISTED)
    page, has_more = page_of(found, query, limit)
    first, last = _ends(page)
    return json_response(
        FileList(data=tuple(page), has_more=has_more, first_id=first, last_id=last)
    )


@router.post(
    "/v1/files",
    summary="Upload a file of requests for a batch.",
    responses=responses(examples.FILE, errors=(*READS_A_BODY, NOT_FOUND, TOO_MANY)),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"multipart/form-data": {"schema": _UPLOAD_FORM}},
        }
    },
)
async def upload_file(request: Request) -> Response:
    service, batches, owner = service_of(request), state_of(request, Batches), _owner(request)
    store = batches.queue.store
    service.check_open()
    if len(batches.uploads) >= MAX_UPLOADS or batches.uploads.count(owner) >= MAX_OWN_UPLOADS:
        message = f"{len(batches.uploads)} files are being uploaded: try again."
        raise Overloaded(message, None, code="rate_limit_exceeded", status=TOO_MANY)
    limits = UploadLimits(
        service.config.max_upload_bytes,
        service.config.http,
        service.cut_off.done,
        lambda num_bytes: store.check_room(owner, num_bytes),
    )
    batches.uploads.append(owner)
    try:
        async with uploaded(request, limits) as upload:
            file = _file_object(service, upload, store.limits.kept_s)
            await store.add_file(owner, file, upload.source)
    finally:
        batches.uploads.remove(owner)
    return json_response(file)


@router.get(
    _FILE,
    summary="A file of one's own.",
    responses=responses(examples.FILE, errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_FILE_NAME]},
)
async def file(request: Request) -> Response:
    store = _queue(request).store
    return json_response(store.find_file(_owner(request), _name(request)))


@router.delete(
    _FILE,
    summary="Delete a file of one's own.",
    responses=responses(FileDeleted(examples.FILE.id), errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_FILE_NAME]},
)
async def delete_file(request: Request) -> Response:
    store = _queue(request).store
    found = store.find_file(_owner(request), _name(request))
    await store.delete_file(found.id)
    return json_response(FileDeleted(found.id))


@router.get(
    f"{_FILE}/content",
    summary="The content of a file of one's own.",
    responses=responses(text_content('{"custom_id": "1"}', OCTETS), errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_FILE_NAME]},
)
async def content(request: Request) -> Response:
    store = _queue(request).store
    found = store.find_file(_owner(request), _name(request))
    headers = {"content-length": str(found.bytes)}
    return StreamingResponse(_read(store.content(found.id)), headers=headers, media_type=OCTETS)


@router.get(
    "/v1/batches",
    summary="One's own batches, the newest first.",
    responses=responses(examples.BATCHES, errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [*_PAGE]},
)
async def batches(request: Request) -> Response:
    store, owner = _queue(request).store, _owner(request)
    query = query_of(request, "after", "limit")
    found = [each.batch for each in store.batches.values() if each.owner == owner]
    found.sort(key=lambda each: (each.created_at, each.id), reverse=True)
    page, has_more = page_of(found, query, limit_of(query, BATCHES_LISTED, MAX_BATCHES_LISTED))
    first, last = _ends(page)
    return json_response(
        BatchList(data=tuple(page), has_more=has_more, first_id=first, last_id=last)
    )


@router.post(
    "/v1/batches",
    summary="Run the requests of a file when live requests leave room for them.",
    responses=responses(examples.BATCH, errors=(*READS_A_BODY, NOT_FOUND)),
    openapi_extra=json_body(BatchRequest),
)
async def create(request: Request) -> Response:
    service, store, owner = service_of(request), _queue(request).store, _owner(request)
    body = await service.bodies.read(request, MAX_BATCH_BYTES)
    service.check_open()
    given = validate(parse_object(body), BatchRequest)
    found = store.find_file(owner, given.input_file_id)
    if found.purpose != INPUT:
        raise RequestError(
            f"The purpose of the file is {found.purpose!r}, must be {INPUT!r}.",
            param="input_file_id",
        )
    store.check_batches(owner)
    now = int(service.sources.now())
    kept = given.output_expires_after
    batch = BatchObject(
        id=f"batch_{service.sources.random_bytes(12).hex()}",
        endpoint=given.endpoint,
        input_file_id=found.id,
        completion_window=given.completion_window,
        created_at=now,
        expires_at=now + COMPLETION_S,
        metadata=given.metadata,
    )
    kept_s = store.limits.kept_s if kept is None else kept.seconds
    await store.save_batch(StoredBatch(owner, batch, kept_s))
    return json_response(batch)


@router.get(
    _BATCH,
    summary="How far a batch of one's own is.",
    responses=responses(examples.BATCH, errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_BATCH_NAME]},
)
async def batch(request: Request) -> Response:
    found = _queue(request).store.find_batch(_owner(request), _name(request))
    return json_response(found.batch)


@router.post(
    f"{_BATCH}/cancel",
    summary="Cancel a batch of one's own; what is answered stays.",
    responses=responses(examples.BATCH, errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_BATCH_NAME]},
)
async def cancel(request: Request) -> Response:
    queue, owner, name = _queue(request), _owner(request), _name(request)
    found = queue.store.find_batch(owner, name)
    if found.batch.status in ("validating", "in_progress"):
        await queue.cancel(found)
    elif found.batch.status not in ("cancelling", "cancelled"):
        raise RequestError(
            f"The batch is {found.batch.status}: there is nothing to cancel.",
            code="batch_not_cancellable",
        )
    return json_response(queue.store.find_batch(owner, name).batch)


def _queue(request: Request) -> BatchQueue:
    return state_of(request, Batches).queue


def _file_object(service: Service, upload: Upload, most_s: int) -> FileObject:
    now = int(service.sources.now())
    return FileObject(
        id=f"file-{service.sources.random_bytes(12).hex()}",
        bytes=upload.num_bytes,
        created_at=now,
        expires_at=now + _kept_s(upload.fields, most_s),
        filename=upload.name,
        purpose=INPUT,
    )


def _owner(request: Request) -> str:
    return arrival_of(request).tenant.name


def _name(request: Request) -> str:
    return str(request.path_params["name"])


async def _read(path: Path) -> AsyncIterator[bytes]:
    async with await anyio.open_file(path, "rb") as file:
        while data := await file.read(CHUNK_BYTES):
            yield data


def _kept_s(fields: Mapping[str, str], most: int) -> int:
    """Check the fields of an upload beside its file; return for how many seconds it is kept."""
    anchor, seconds = "expires_after[anchor]", "expires_after[seconds]"
    for name in fields:
        if name not in ("purpose", anchor, seconds):
            raise RequestError(
                f"Unknown field '{name[:64]}'.", param=name[:64], code="unknown_parameter"
            )
    if fields.get("purpose") != INPUT:
        raise RequestError(
            f"'purpose' must be {INPUT!r}: this server keeps no other files.", param="purpose"
        )
    if anchor not in fields and seconds not in fields:
        return most
    if fields.get(anchor) != "created_at":
        raise RequestError(f"'{anchor}' must be 'created_at'.", param=anchor)
    given = fields.get(seconds, "")
    if not (given.isascii() and given.isdigit() and MIN_KEPT_S <= int(given[:9]) <= MAX_KEPT_S):
        raise RequestError(
            f"'{seconds}' must be a number from {MIN_KEPT_S} to {MAX_KEPT_S}.", param=seconds
        )
    return int(given)


def _ends(page: Sequence[FileObject] | Sequence[BatchObject]) -> tuple[str | None, str | None]:
    return (page[0].id, page[-1].id) if page else (None, None)
