"""Files and batches as OpenAI's API has them."""

from typing import Annotated, Literal

import msgspec
from pydantic import Field

from quire.server.apis.protocol.fields import StrictModel, at_most

MAX_METADATA = 16
HOUR_S = 3600
MIN_KEPT_S, MAX_KEPT_S = HOUR_S, 30 * 24 * HOUR_S
"""A file may be kept for so many seconds."""


class ExpiresAfter(StrictModel):
    """The time that a file is kept, from its creation on."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_KEPT_S, le=MAX_KEPT_S)]


class BatchRequest(StrictModel):
    """The body of `POST /v1/batches`."""

    input_file_id: Annotated[str, Field(min_length=1, max_length=128)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(max_length=64)],
                Annotated[str, Field(max_length=512)],
            ],
            at_most(MAX_METADATA),
            Field(max_length=MAX_METADATA),
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """`bytes` is the size; times are seconds since 1970."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[FileObject, ...]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


class FileDeleted(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: str = "file"


class BatchFault(msgspec.Struct, frozen=True):
    """A reason why a batch failed: `line` of its input, from 1 on; None for the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchFaults(msgspec.Struct, frozen=True):
    data: tuple[BatchFault, ...]
    object: str = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is validating, in_progress, finalizing, completed, failed, expired, cancelling or
    cancelled; times are seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    object: str = "batch"
    status: str = "validating"
    errors: BatchFaults | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[BatchObject, ...]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"
