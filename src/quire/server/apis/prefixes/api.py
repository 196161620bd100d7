"""Pinned prefixes: what the application is handed."""

from collections.abc import Mapping

from quire.server.apis.api import Api
from quire.server.apis.prefixes.protocol import (
    PrefixChatRequest,
    PrefixDeleted,
    PrefixList,
    PrefixTextRequest,
)
from quire.server.apis.prefixes.routes import PrefixRoutes
from quire.server.apis.route_doc import CREATED_S, Parameter, ResponseDoc, RouteDoc
from quire.server.config import BUNDLED_MODEL_NAME as MODEL
from quire.server.errors import CONFLICT, NOT_FOUND, TOO_LARGE, TOO_LATE, TOO_MANY, UNAVAILABLE
from quire.server.errors import UNSUPPORTED_MEDIA as MEDIA
from quire.server.http.endpoints import PREFIXES
from quire.server.models.pinned_prefix import Prefix, PrefixState

_OK = 200
_EXAMPLE = Prefix(
    id="prefix-0123456789abcdef",
    created_at=CREATED_S,
    expires_at=CREATED_S + 3600,
    model=MODEL,
    name="support",
    state=PrefixState.PINNED,
    why=None,
    num_tokens=100,
    num_pinned_tokens=96,
    num_blocks=6,
)
_NAME = (Parameter("name", "path", "The id of the prefix.", _EXAMPLE.id),)
_LONG = "You are a patient clerk of a small library, and answer in one sentence."

_DOCS: Mapping[str, RouteDoc] = {
    f"POST {PREFIXES}": RouteDoc(
        "Pin a prefix: its cached blocks are never evicted.",
        {_OK: (ResponseDoc(_EXAMPLE),)},
        (CONFLICT, TOO_LARGE, MEDIA, UNAVAILABLE, NOT_FOUND, TOO_MANY, TOO_LATE),
        {
            "messages": {"messages": [{"role": "system", "content": _LONG}], "name": "support"},
            "text": {"prompt": _LONG, "ttl_s": 3600},
        },
        headers=("x-quire-warnings",),
    ),
    f"GET {PREFIXES}": RouteDoc(
        "One's own pinned prefixes, of each model the oldest first.",
        {_OK: (ResponseDoc(PrefixList((_EXAMPLE,))),)},
        parameters=(
            Parameter(
                "all",
                "query",
                "`true`: those of all keys, for the admin key.",
                "false",
                "^(true|false)$",
            ),
        ),
    ),
    f"GET {PREFIXES}/{{name}}": RouteDoc(
        "A pinned prefix of one's own, as it is now.",
        {_OK: (ResponseDoc(_EXAMPLE),)},
        (NOT_FOUND,),
        parameters=_NAME,
    ),
    f"DELETE {PREFIXES}/{{name}}": RouteDoc(
        "Pin a prefix of one's own no more; one that is being computed ends.",
        {_OK: (ResponseDoc(PrefixDeleted(_EXAMPLE.id)),)},
        (NOT_FOUND,),
        parameters=_NAME,
    ),
}

PREFIXES_API = Api(PrefixRoutes, {PREFIXES: (PrefixTextRequest, PrefixChatRequest)}, _DOCS)
