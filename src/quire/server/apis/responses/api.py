"""OpenAI's responses: what the application is handed."""

from quire.server.apis.api import Api
from quire.server.apis.responses import examples as response_examples
from quire.server.apis.responses.protocol import ResponsesRequest
from quire.server.apis.responses.routes import ResponseRoutes
from quire.server.apis.responses.stored_docs import STORED_RESPONSE_ROUTES
from quire.server.apis.responses.stream_events import EVENT_TYPES
from quire.server.apis.route_doc import (
    EVENTS,
    GENERATES,
    LOAD_REPORT,
    STREAMED,
    ResponseDoc,
    RouteDoc,
    ok,
)
from quire.server.http.endpoints import RESPONSES

RESPONSES_API = Api(
    ResponseRoutes,
    {RESPONSES: (ResponsesRequest,)},
    {
        RESPONSES: RouteDoc(
            "A response to a text or to items of a conversation.",
            ok(
                ResponseDoc(response_examples.RESPONSE),
                ResponseDoc(
                    response_examples.RESPONSE_EVENTS, EVENTS, STREAMED, EVENT_TYPES, has_done=False
                ),
            ),
            GENERATES,
            response_examples.RESPONSE_REQUESTS,
            (LOAD_REPORT,),
            headers=("x-quire-warnings", "endpoint-load-metrics"),
        ),
        **STORED_RESPONSE_ROUTES,
    },
)
