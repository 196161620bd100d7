"""Files and batches: the bodies and the descriptions of their routes."""

from collections.abc import Mapping

from pydantic import BaseModel

from quire.server.apis.batches import examples
from quire.server.apis.batches.protocol import BatchRequest, FileDeleted
from quire.server.apis.route_doc import READS_A_BODY, Parameter, ResponseDoc, RouteDoc, ok
from quire.server.errors import NOT_FOUND, TOO_MANY

_PAGES = (
    Parameter("limit", "query", "So many items at most.", "20", "^[1-9][0-9]{0,4}$"),
    Parameter("after", "query", "The id of the item before the first.", "file-1"),
)
_FILE = (Parameter("name", "path", "The id of the file.", examples.FILE.id),)
_BATCH = (Parameter("name", "path", "The id of the batch.", examples.BATCH.id),)

BODIES: Mapping[str, tuple[type[BaseModel], ...]] = {"/v1/batches": (BatchRequest,)}
DOCS: Mapping[str, RouteDoc] = {
    "GET /v1/files": RouteDoc(
        "One's own files.",
        ok(ResponseDoc(examples.FILES)),
        (NOT_FOUND,),
        parameters=(
            *_PAGES,
            Parameter("order", "query", "Newest first: `desc`; or `asc`.", "desc", "^(asc|desc)$"),
            Parameter("purpose", "query", "Files of this purpose alone.", "batch"),
        ),
    ),
    "POST /v1/files": RouteDoc(
        "Upload a file of requests for a batch.",
        ok(ResponseDoc(examples.FILE)),
        (*READS_A_BODY, NOT_FOUND, TOO_MANY),
        form={
            "type": "object",
            "required": ["file", "purpose"],
            "properties": {
                "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                "purpose": {"const": "batch"},
                "expires_after[anchor]": {"const": "created_at"},
                "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
            },
            "additionalProperties": False,
        },
    ),
    "GET /v1/files/{name}": RouteDoc(
        "A file of one's own.", ok(ResponseDoc(examples.FILE)), (NOT_FOUND,), parameters=_FILE
    ),
    "DELETE /v1/files/{name}": RouteDoc(
        "Delete a file of one's own.",
        ok(ResponseDoc(FileDeleted(examples.FILE.id))),
        (NOT_FOUND,),
        parameters=_FILE,
    ),
    "/v1/files/{name}/content": RouteDoc(
        "The content of a file of one's own.",
        ok(ResponseDoc('{"custom_id": "1"}', "application/octet-stream")),
        (NOT_FOUND,),
        parameters=_FILE,
    ),
    "GET /v1/batches": RouteDoc(
        "One's own batches, the newest first.",
        ok(ResponseDoc(examples.BATCHES)),
        (NOT_FOUND,),
        parameters=_PAGES,
    ),
    "POST /v1/batches": RouteDoc(
        "Run the requests of a file when live requests leave room for them.",
        ok(ResponseDoc(examples.BATCH)),
        (*READS_A_BODY, NOT_FOUND),
    ),
    "/v1/batches/{name}": RouteDoc(
        "How far a batch of one's own is.",
        ok(ResponseDoc(examples.BATCH)),
        (NOT_FOUND,),
        parameters=_BATCH,
    ),
    "/v1/batches/{name}/cancel": RouteDoc(
        "Cancel a batch of one's own; what is answered stays.",
        ok(ResponseDoc(examples.BATCH)),
        (NOT_FOUND,),
        parameters=_BATCH,
    ),
}
