"""Routes of OpenAI's API: completions, chat, and the tokenizer."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.descriptions import (
    LOAD_REPORT,
    REPORT_HEADERS,
    TOKENIZES,
    event_content,
    generation_responses,
    json_body,
    responses,
)
from quire.server.apis.openai import examples
from quire.server.apis.openai.answer_writer import ChunkWriter
from quire.server.apis.openai.chat_response_builder import ChatResponseBuilder
from quire.server.apis.openai.completion_response_builder import CompletionResponseBuilder
from quire.server.apis.openai.inputs import (
    detokenize,
    parse_chat,
    parse_completion,
    render_chat,
    render_completion,
    tokenize,
)
from quire.server.apis.openai.response import GenerationResponse
from quire.server.apis.openai.tokenize import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from quire.server.apis.openai.wire import ChatChunk, CompletionBody, Detokenized, Tokenized
from quire.server.apis.protocol.chat import ChatRequest
from quire.server.apis.protocol.completions import CompletionRequest
from quire.server.apis.routing import BareRoute, service_of
from quire.server.errors import ErrorBody
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.http.endpoints import CHAT, COMPLETIONS

router = APIRouter(tags=["OpenAI"], route_class=BareRoute)


@router.post(
    COMPLETIONS,
    summary="Go on with a text.",
    responses=generation_responses(
        examples.COMPLETION,
        event_content(examples.COMPLETION_EVENTS, CompletionBody, ErrorBody, has_done=True),
    ),
    openapi_extra={
        "parameters": [LOAD_REPORT],
        **json_body(CompletionRequest, examples=examples.COMPLETION_REQUESTS),
    },
)
async def completions(request: Request) -> Response:
    service = service_of(request)
    context, serving = await RequestIntake(service).context(request, parse_completion, "cmpl")
    generation = GenerationStream(context, service, serving)
    builder = CompletionResponseBuilder(context, serving.tokenizer.token_bytes)
    return GenerationResponse(generation, ChunkWriter(generation, builder), service)


@router.post(
    CHAT,
    summary="Go on with a conversation.",
    responses=generation_responses(
        examples.CHAT_COMPLETION,
        event_content(examples.CHAT_EVENTS, ChatChunk, ErrorBody, has_done=True),
    ),
    openapi_extra={
        "parameters": [LOAD_REPORT],
        **json_body(ChatRequest, examples=examples.CHAT_REQUESTS),
    },
)
async def chat(request: Request) -> Response:
    service = service_of(request)
    context, serving = await RequestIntake(service).context(request, parse_chat, "chatcmpl")
    generation = GenerationStream(context, service, serving)
    builder = ChatResponseBuilder(context, serving.tokenizer.token_bytes)
    return GenerationResponse(generation, ChunkWriter(generation, builder), service)


@router.post(
    f"{COMPLETIONS}/render",
    summary="The prompts of a completion, without running it.",
    responses=responses(examples.RENDERED, with_headers=REPORT_HEADERS, errors=TOKENIZES),
    openapi_extra=json_body(CompletionRequest, examples=examples.COMPLETION_REQUESTS),
)
async def rendered_completion(request: Request) -> Response:
    return await RequestIntake(service_of(request)).answer(request, render_completion)


@router.post(
    f"{CHAT}/render",
    summary="The prompt of a conversation, without running it.",
    responses=responses(examples.RENDERED, with_headers=REPORT_HEADERS, errors=TOKENIZES),
    openapi_extra=json_body(ChatRequest, examples=examples.CHAT_REQUESTS),
)
async def rendered_chat(request: Request) -> Response:
    return await RequestIntake(service_of(request)).answer(request, render_chat)


@router.post(
    "/tokenize",
    summary="The tokens of a text or a conversation.",
    responses=responses(
        Tokenized(3, 2048, (5, 6, 7)), with_headers=REPORT_HEADERS, errors=TOKENIZES
    ),
    openapi_extra=json_body(
        TokenizeRequest, TokenizeChatRequest, examples=examples.TOKENIZE_REQUESTS
    ),
)
async def tokenized(request: Request) -> Response:
    return await RequestIntake(service_of(request)).answer(request, tokenize)


@router.post(
    "/detokenize",
    summary="The text of tokens.",
    responses=responses(Detokenized("Once upon a time"), errors=TOKENIZES),
    openapi_extra=json_body(DetokenizeRequest, examples=examples.DETOKENIZE_REQUESTS),
)
async def detokenized(request: Request) -> Response:
    return await RequestIntake(service_of(request)).answer(request, detokenize)
