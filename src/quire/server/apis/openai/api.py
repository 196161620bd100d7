"""OpenAI's completions and chats, and the tokenizer: what the application is handed."""

from quire.server.apis.api import Api
from quire.server.apis.openai import examples
from quire.server.apis.openai.text_routes import TextRoutes
from quire.server.apis.openai.tokenize import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from quire.server.apis.openai.wire import ChatChunk, CompletionBody, Detokenized, Tokenized
from quire.server.apis.protocol.chat import ChatRequest
from quire.server.apis.protocol.completions import CompletionRequest
from quire.server.apis.route_doc import (
    EVENTS,
    GENERATES,
    LOAD_REPORT,
    STREAMED,
    TOKENIZES,
    ResponseDoc,
    RouteDoc,
    ok,
)
from quire.server.errors import ErrorBody
from quire.server.http.endpoints import CHAT, COMPLETIONS

OPENAI = Api(
    TextRoutes,
    {
        COMPLETIONS: (CompletionRequest,),
        CHAT: (ChatRequest,),
        f"{COMPLETIONS}/render": (CompletionRequest,),
        f"{CHAT}/render": (ChatRequest,),
        "/tokenize": (TokenizeRequest, TokenizeChatRequest),
        "/detokenize": (DetokenizeRequest,),
    },
    {
        COMPLETIONS: RouteDoc(
            "Go on with a text.",
            ok(
                ResponseDoc(examples.COMPLETION),
                ResponseDoc(
                    examples.COMPLETION_EVENTS, EVENTS, STREAMED, (CompletionBody, ErrorBody)
                ),
            ),
            GENERATES,
            examples.COMPLETION_REQUESTS,
            (LOAD_REPORT,),
            headers=("x-quire-warnings", "endpoint-load-metrics"),
        ),
        CHAT: RouteDoc(
            "Go on with a conversation.",
            ok(
                ResponseDoc(examples.CHAT_COMPLETION),
                ResponseDoc(examples.CHAT_EVENTS, EVENTS, STREAMED, (ChatChunk, ErrorBody)),
            ),
            GENERATES,
            examples.CHAT_REQUESTS,
            (LOAD_REPORT,),
            headers=("x-quire-warnings", "endpoint-load-metrics"),
        ),
        f"{COMPLETIONS}/render": RouteDoc(
            "The prompts of a completion, without running it.",
            ok(ResponseDoc(examples.RENDERED)),
            TOKENIZES,
            examples.COMPLETION_REQUESTS,
            headers=("x-quire-warnings",),
        ),
        f"{CHAT}/render": RouteDoc(
            "The prompt of a conversation, without running it.",
            ok(ResponseDoc(examples.RENDERED)),
            TOKENIZES,
            examples.CHAT_REQUESTS,
            headers=("x-quire-warnings",),
        ),
        "/tokenize": RouteDoc(
            "The tokens of a text or a conversation.",
            ok(ResponseDoc(Tokenized(3, 2048, (5, 6, 7)))),
            TOKENIZES,
            examples.TOKENIZE_REQUESTS,
            headers=("x-quire-warnings",),
        ),
        "/detokenize": RouteDoc(
            "The text of tokens.",
            ok(ResponseDoc(Detokenized("Once upon a time"))),
            TOKENIZES,
            examples.DETOKENIZE_REQUESTS,
        ),
    },
)
