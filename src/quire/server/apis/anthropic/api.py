"""Anthropic's messages: what the application is handed."""

from quire.server.apis.anthropic import examples as message_examples
from quire.server.apis.anthropic.protocol import CountTokensRequest, MessagesRequest
from quire.server.apis.anthropic.routes import MessageRoutes
from quire.server.apis.api import Api
from quire.server.apis.route_doc import (
    EVENTS,
    GENERATES,
    LOAD_REPORT,
    STREAMED,
    TOKENIZES,
    Parameter,
    ResponseDoc,
    RouteDoc,
    ok,
)
from quire.server.http.endpoints import COUNT_TOKENS, MESSAGES

_BETAS = Parameter(
    "anthropic-beta",
    "header",
    "Betas of Anthropic's API; Quire acts on none, and X-Quire-Warnings names them.",
    "interleaved-thinking-2025-05-14",
)

ANTHROPIC = Api(
    MessageRoutes,
    {MESSAGES: (MessagesRequest,), COUNT_TOKENS: (CountTokensRequest,)},
    {
        MESSAGES: RouteDoc(
            "The next message of a conversation, as Anthropic's API has it.",
            ok(
                ResponseDoc(message_examples.MESSAGE),
                ResponseDoc(
                    message_examples.MESSAGE_EVENTS,
                    EVENTS,
                    STREAMED,
                    message_examples.EVENT_TYPES,
                    has_done=False,
                ),
            ),
            GENERATES,
            message_examples.MESSAGE_REQUESTS,
            (LOAD_REPORT, _BETAS),
            headers=("x-quire-warnings", "endpoint-load-metrics", "request-id"),
        ),
        COUNT_TOKENS: RouteDoc(
            "The number of tokens that a conversation has as a prompt.",
            ok(ResponseDoc(message_examples.COUNT)),
            TOKENIZES,
            message_examples.COUNT_REQUESTS,
            (_BETAS,),
            headers=("x-quire-warnings", "request-id"),
        ),
    },
)
