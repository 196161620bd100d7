"""The rows of the document of the API for the routes of stored responses."""

import re
from collections.abc import Mapping
from typing import get_args

from quire.server.apis.responses import examples
from quire.server.apis.responses.protocol import Included, ResponseDeleted
from quire.server.apis.route_doc import Parameter, ResponseDoc, RouteDoc
from quire.server.errors import NOT_FOUND
from quire.server.http.endpoints import RESPONSES

_OK = 200
_PATH = f"{RESPONSES}/{{name}}"
_NAME = Parameter("name", "path", "The id of the response.", examples.RESPONSE_ID)
_INCLUDE = Parameter(
    "include",
    "query",
    "Accepted without effect: a response keeps what it was asked with.",
    "message.output_text.logprobs",
    f"^({'|'.join(map(re.escape, get_args(Included)))})$",
)

STORED_RESPONSE_ROUTES: Mapping[str, RouteDoc] = {
    f"GET {_PATH}": RouteDoc(
        "A stored response of one's own, as it is now.",
        {_OK: (ResponseDoc(examples.RESPONSE),)},
        (NOT_FOUND,),
        parameters=(
            _NAME,
            _INCLUDE,
            Parameter("stream", "query", "`true` is refused.", "false", "^(true|false)$"),
        ),
        headers=("x-quire-warnings",),
    ),
    f"DELETE {_PATH}": RouteDoc(
        "Forget a stored response of one's own; one that runs ends.",
        {_OK: (ResponseDoc(ResponseDeleted(examples.RESPONSE_ID)),)},
        (NOT_FOUND,),
        parameters=(_NAME,),
    ),
    f"{_PATH}/cancel": RouteDoc(
        "End a response of one's own that runs in the background; what there is of it stays.",
        {_OK: (ResponseDoc(examples.RESPONSE),)},
        (NOT_FOUND,),
        parameters=(_NAME,),
    ),
    f"{_PATH}/input_items": RouteDoc(
        "The items of a stored response's own input.",
        {_OK: (ResponseDoc(examples.INPUT_ITEMS),)},
        (NOT_FOUND,),
        parameters=(
            _NAME,
            _INCLUDE,
            Parameter("limit", "query", "So many items at most.", "20", "^([1-9][0-9]?|100)$"),
            Parameter("after", "query", "The id of the item before the first.", examples.INPUT_ID),
            Parameter("order", "query", "Newest first: `desc`; or `asc`.", "asc", "^(asc|desc)$"),
        ),
        headers=("x-quire-warnings",),
    ),
}
