"""The row of the document of the API for the route of what API keys use."""

from collections.abc import Mapping

from quire.server.apis.route_doc import CREATED_S, Parameter, ResponseDoc, RouteDoc
from quire.server.app.openapi import examples
from quire.server.app.usage.report import KeyUsage, ModelUsage, UsageCounts, UsageReport
from quire.server.errors import NOT_FOUND
from quire.server.http.endpoints import USAGE
from quire.server.tenancy.usage_accounts import RequestEnd

_OK = 200
_COUNTS = UsageCounts(
    prompt_tokens=5120,
    cached_tokens=3072,
    output_tokens=800,
    wasted_tokens=96,
    lost_tokens=0,
    preemptions=2,
    kv_block_ns=412_000_000_000,
    host_block_ns=0,
    queue_ns=1_250_000_000,
    requests={end.value: 0 for end in RequestEnd} | {"stop": 9, "length": 1},
)
_LIMITED = {"requests": 0, "tokens": 0}
_EXAMPLE = UsageReport(
    CREATED_S,
    _COUNTS,
    _LIMITED,
    (KeyUsage("team-a", _COUNTS, _LIMITED, (ModelUsage(examples.CARD.id, _COUNTS),)),),
)

USAGE_ROUTES: Mapping[str, RouteDoc] = {
    USAGE: RouteDoc(
        "The usage of one's own key since the server began; for the admin key, of all keys.",
        {_OK: (ResponseDoc(_EXAMPLE),)},
        (NOT_FOUND,),
        parameters=(
            Parameter("key", "query", "The name of one key, of several.", "team-a"),
            Parameter("model", "query", "The model, of several.", examples.CARD.id),
        ),
    ),
}
