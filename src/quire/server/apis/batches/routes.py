"""Routes of `/v1/files` and `/v1/batches`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

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
from quire.server.apis.protocol.parse import validate
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

Listed = TypeVar("Listed", FileObject, BatchObject)


class BatchRoutes:
    """Handlers of files and batches; without a queue each says that the server has none."""

    def __init__(self, service: Service, queue: BatchQueue | None) -> None:
        self._service = service
        self._given_queue = queue
        self._uploads: list[str] = []

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (
            Route("/v1/files", self.files, methods=["GET", "POST"]),
            Route("/v1/files/{name}", self.file, methods=["GET", "DELETE"]),
            Route("/v1/files/{name}/content", self.content, methods=["GET"]),
            Route("/v1/batches", self.batches, methods=["GET", "POST"]),
            Route("/v1/batches/{name}", self.batch, methods=["GET"]),
            Route("/v1/batches/{name}/cancel", self.cancel, methods=["POST"]),
        )

    @property
    def _queue(self) -> BatchQueue:
        if self._given_queue is None:
            raise RequestError(
                "This server was started without --batch-dir.",
                code="batches_off",
                status=NOT_FOUND,
            )
        return self._given_queue

    async def files(self, request: Request) -> Response:
        store, owner = self._queue.store, _owner(request)
        if request.method == "POST":
            return await self._upload(request, owner)
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

    async def _upload(self, request: Request, owner: str) -> Response:
        self._service.check_open()
        if len(self._uploads) >= MAX_UPLOADS or self._uploads.count(owner) >= MAX_OWN_UPLOADS:
            message = f"{len(self._uploads)} files are being uploaded: try again."
            raise Overloaded(message, None, code="rate_limit_exceeded", status=TOO_MANY)
        store = self._queue.store
        limits = UploadLimits(
            self._service.config.max_upload_bytes,
            self._service.config.http,
            self._service.cut_off.done,
            lambda num_bytes: store.check_room(owner, num_bytes),
        )
        self._uploads.append(owner)
        try:
            async with uploaded(request, limits) as upload:
                file = self._file(upload)
                await store.add_file(owner, file, upload.source)
        finally:
            self._uploads.remove(owner)
        return json_response(file)

    def _file(self, upload: Upload) -> FileObject:
        now = int(self._service.sources.now())
        return FileObject(
            id=f"file-{self._service.sources.random_bytes(12).hex()}",
            bytes=upload.num_bytes,
            created_at=now,
            expires_at=now + _kept_s(upload.fields, self._queue.store.limits.kept_s),
            filename=upload.name,
            purpose=INPUT,
        )

    async def file(self, request: Request) -> Response:
        store = self._queue.store
        file = store.find_file(_owner(request), _name(request))
        if request.method != "DELETE":
            return json_response(file)
        await store.delete_file(file.id)
        return json_response(FileDeleted(file.id))

    async def content(self, request: Request) -> Response:
        store = self._queue.store
        file = store.find_file(_owner(request), _name(request))
        headers = {"content-length": str(file.bytes)}
        return StreamingResponse(_read(store.content(file.id)), headers=headers, media_type=OCTETS)

    async def batches(self, request: Request) -> Response:
        store, owner = self._queue.store, _owner(request)
        if request.method == "POST":
            return await self._create(request, owner)
        query = query_of(request, "after", "limit")
        found = [each.batch for each in store.batches.values() if each.owner == owner]
        found.sort(key=lambda each: (each.created_at, each.id), reverse=True)
        page, has_more = page_of(found, query, limit_of(query, BATCHES_LISTED, MAX_BATCHES_LISTED))
        first, last = _ends(page)
        return json_response(
            BatchList(data=tuple(page), has_more=has_more, first_id=first, last_id=last)
        )

    async def _create(self, request: Request, owner: str) -> Response:
        body = await self._service.bodies.read(request, MAX_BATCH_BYTES)
        self._service.check_open()
        store = self._queue.store
        given = validate(parse_object(body), BatchRequest)
        file = store.find_file(owner, given.input_file_id)
        if file.purpose != INPUT:
            raise RequestError(
                f"The purpose of the file is {file.purpose!r}, must be {INPUT!r}.",
                param="input_file_id",
            )
        store.check_batches(owner)
        now = int(self._service.sources.now())
        kept = given.output_expires_after
        batch = BatchObject(
            id=f"batch_{self._service.sources.random_bytes(12).hex()}",
            endpoint=given.endpoint,
            input_file_id=file.id,
            completion_window=given.completion_window,
            created_at=now,
            expires_at=now + COMPLETION_S,
            metadata=given.metadata,
        )
        kept_s = store.limits.kept_s if kept is None else kept.seconds
        await store.save_batch(StoredBatch(owner, batch, kept_s))
        return json_response(batch)

    async def batch(self, request: Request) -> Response:
        found = self._queue.store.find_batch(_owner(request), _name(request))
        return json_response(found.batch)

    async def cancel(self, request: Request) -> Response:
        queue, owner, name = self._queue, _owner(request), _name(request)
        found = queue.store.find_batch(owner, name)
        if found.batch.status in ("validating", "in_progress"):
            await queue.cancel(found)
        elif found.batch.status not in ("cancelling", "cancelled"):
            raise RequestError(
                f"The batch is {found.batch.status}: there is nothing to cancel.",
                code="batch_not_cancellable",
            )
        return json_response(queue.store.find_batch(owner, name).batch)


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
