"""The route that responses are asked by."""

from collections.abc import Callable

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.descriptions import (
    LOAD_REPORT,
    event_content,
    generation_responses,
    json_body,
)
from quire.server.apis.openai.chat_response_builder import ChatResponseBuilder
from quire.server.apis.openai.response import GenerationResponse
from quire.server.apis.responses import examples
from quire.server.apis.responses.asked import EchoedFields
from quire.server.apis.responses.background import BackgroundRun
from quire.server.apis.responses.builder import BodyBuilder, Origin
from quire.server.apis.responses.history import (
    ContinuedBody,
    History,
    HistoryNeeded,
    encode_continued,
)
from quire.server.apis.responses.inputs import asked_in, parse_continued, parse_response
from quire.server.apis.responses.keeper import ResponseKeeper
from quire.server.apis.responses.lookup import HistoryLookup, store_is_off
from quire.server.apis.responses.protocol import ResponsesRequest
from quire.server.apis.responses.storage import ResponseStorage
from quire.server.apis.responses.store import ResponseStore
from quire.server.apis.responses.stored_answer import StoredAnswer
from quire.server.apis.responses.stream_events import EVENT_TYPES
from quire.server.apis.responses.writer import PREFIX, ItemWriter
from quire.server.apis.routing import BareRoute, service_of, state_of
from quire.server.errors import TOO_LARGE, TOO_MANY, RequestError, ShuttingDown
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.generation.parsed_input import TokenizedRequest
from quire.server.generation.service import Service
from quire.server.http.endpoints import RESPONSES
from quire.server.http.json_responses import JSON
from quire.server.models.served_model import ServingState
from quire.server.observability.metrics import FinishReason
from quire.server.tenancy.tenants import arrival_of

router = APIRouter(tags=["Responses"], route_class=BareRoute)


@router.post(
    RESPONSES,
    summary="A response to a text or to items of a conversation.",
    responses=generation_responses(
        examples.RESPONSE,
        event_content(examples.RESPONSE_EVENTS, *EVENT_TYPES),
    ),
    openapi_extra={
        "parameters": [LOAD_REPORT],
        **json_body(ResponsesRequest, examples=examples.RESPONSE_REQUESTS),
    },
)
async def create(request: Request) -> Response:
    service, storage = service_of(request), state_of(request, ResponseStorage)
    owner = arrival_of(request).tenant.name
    lookup = HistoryLookup(storage.store, owner, service.config.max_body_bytes)
    tokenized, serving = await _tokenized(request, service, lookup.find)
    asked = asked_in(tokenized)
    if asked.background and service.draining:
        raise ShuttingDown  # it would end with this server
    is_stored = _is_stored(storage.store, asked, in_batch=arrival_of(request).in_batch)
    context = RequestIntake(service).processed(
        request, tokenized, serving, PREFIX, names_session=is_stored
    )
    generation = GenerationStream(context, service, serving)
    tokens = ChatResponseBuilder(context, serving.tokenizer.token_bytes)
    origin = Origin(context.id, context.created_s, context.model, is_stored)
    writer = ItemWriter(generation, tokens, BodyBuilder(asked, origin))
    keeper = ResponseKeeper(storage.store, storage.expiry, owner, asked.input_items, writer)
    if asked.background:
        return await _in_background(generation, keeper)
    answer = GenerationResponse(generation, writer, service)
    return StoredAnswer(answer, writer, keeper.keep) if is_stored else answer


async def _tokenized(
    request: Request, service: Service, look_up: Callable[[HistoryNeeded], History]
) -> tuple[TokenizedRequest, ServingState]:
    """Return a request with its prompt in tokens; `look_up` finds what it needs of stored
    responses. Raises RequestError."""
    intake = RequestIntake(service)
    body, serving = await intake.read(request)
    try:
        return await intake.tokenize(request, parse_response, body, serving), serving
    except HistoryNeeded as needed:
        continued = encode_continued(ContinuedBody(body, look_up(needed)))
    most = service.config.max_body_bytes
    if len(continued) > most:
        raise RequestError(
            f"The request and what it goes on from have {len(continued)} bytes; this server "
            f"reads at most {most} (--max-body-bytes).",
            param="previous_response_id",
            code="request_too_large",
            status=TOO_LARGE,
        )
    return await intake.tokenize(request, parse_continued, continued, serving), serving


def _is_stored(store: ResponseStore, asked: EchoedFields, *, in_batch: bool) -> bool:
    """Return whether the response is stored, which is the default where there is a store, but
    for lines of batches. Raises RequestError."""
    if store.is_on:
        return not in_batch if asked.store is None else asked.store
    if asked.store or asked.background:
        raise store_is_off("store" if asked.store else "background")
    return False


async def _in_background(generation: GenerationStream, keeper: ResponseKeeper) -> Response:
    """Answer with a response that goes on to run. Raises RequestError where it cannot."""
    await _start(generation)
    run = BackgroundRun(generation, keeper.writer, keeper.keep_ended)
    if not keeper.keep_running(run):
        run.stop()
        raise RequestError(
            "The responses of this key that run leave no room to store another.",
            code="response_store_full",
            status=TOO_MANY,
        )
    headers = generation.context.report_headers
    return Response(msgspec.json.encode(run.body()), headers=headers, media_type=JSON)


async def _start(generation: GenerationStream) -> None:
    """Start a generation, which has ended where it could not. Raises RequestError."""
    is_taken = False
    try:
        await generation.start()
        is_taken = True
    finally:
        if not is_taken:
            generation.abort(FinishReason.ABORT)
            generation.close()
