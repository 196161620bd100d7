"""Routes of Anthropic's API: messages, and how many tokens one would have."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.anthropic import examples
from quire.server.apis.anthropic.inputs import count_tokens, parse_message
from quire.server.apis.anthropic.protocol import CountTokensRequest, MessagesRequest
from quire.server.apis.anthropic.writer import MessageWriter
from quire.server.apis.descriptions import (
    LOAD_REPORT,
    REPORT_HEADERS,
    TOKENIZES,
    event_content,
    generation_responses,
    json_body,
    parameter,
    responses,
)
from quire.server.apis.openai.response import GenerationResponse
from quire.server.apis.routing import BareRoute, service_of
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.http.endpoints import COUNT_TOKENS, MESSAGES

_BETAS = parameter(
    "anthropic-beta",
    "header",
    "Betas of Anthropic's API; what of them Quire has it does without.",
    "interleaved-thinking-2025-05-14",
)

router = APIRouter(tags=["Anthropic"], route_class=BareRoute)


@router.post(
    MESSAGES,
    summary="The next message of a conversation, as Anthropic's API has it.",
    responses=generation_responses(
        examples.MESSAGE,
        event_content(examples.MESSAGE_EVENTS, *examples.EVENT_TYPES),
        with_headers=("request-id",),
    ),
    openapi_extra={
        "parameters": [LOAD_REPORT, _BETAS],
        **json_body(MessagesRequest, examples=examples.MESSAGE_REQUESTS),
    },
)
async def message(request: Request) -> Response:
    service = service_of(request)
    context, serving = await RequestIntake(service).context(request, parse_message, "msg")
    generation = GenerationStream(context, service, serving)
    return GenerationResponse(generation, MessageWriter(generation), service)


@router.post(
    COUNT_TOKENS,
    summary="The number of tokens that a conversation has as a prompt.",
    responses=responses(
        examples.COUNT, with_headers=(*REPORT_HEADERS, "request-id"), errors=TOKENIZES
    ),
    openapi_extra={
        "parameters": [_BETAS],
        **json_body(CountTokensRequest, examples=examples.COUNT_REQUESTS),
    },
)
async def token_count(request: Request) -> Response:
    return await RequestIntake(service_of(request)).answer(request, count_tokens)
