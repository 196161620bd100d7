"""The route that responses are asked by, with the store that keeps them."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.apis.openai.chat_response_builder import ChatResponseBuilder
from quire.server.apis.openai.response import GenerationResponse
from quire.server.apis.responses.asked import AskedResponse
from quire.server.apis.responses.background import BackgroundRun
from quire.server.apis.responses.builder import BodyBuilder, Origin
from quire.server.apis.responses.expiry import ExpiryTimer
from quire.server.apis.responses.history import (
    ContinuedBody,
    History,
    NeedsHistory,
    encode_continued,
)
from quire.server.apis.responses.inputs import asked_in, parse_continued, parse_response
from quire.server.apis.responses.keeper import ResponseKeeper
from quire.server.apis.responses.lookup import HistoryLookup, store_is_off
from quire.server.apis.responses.store import ResponseStore, StoreLimits
from quire.server.apis.responses.stored_answer import StoredAnswer
from quire.server.apis.responses.stored_routes import StoredRoutes
from quire.server.apis.responses.writer import PREFIX, ItemWriter
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


class ResponseRoutes:
    """Handlers of responses."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._intake = RequestIntake(service)
        config = service.config
        self._store = ResponseStore(
            StoreLimits(config.response_store_bytes, config.response_store_ttl_s),
            service.sources.clock,
            service.metrics.responses,
        )
        self._expiry = ExpiryTimer(self._store)
        service.drains.add_done_callback(lambda _: self._store.stop_runs())

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        stored = StoredRoutes(self._store)
        return (Route(RESPONSES, self.create, methods=["POST"]), *stored.routes())

    async def create(self, request: Request) -> Response:
        owner = arrival_of(request).tenant.name
        lookup = HistoryLookup(self._store, owner, self._service.config.max_body_bytes)
        tokenized, serving = await self._tokenized(request, lookup.find)
        asked = asked_in(tokenized)
        if asked.background and self._service.draining:
            raise ShuttingDown  # it would end with this server
        is_stored = self._is_stored(asked, in_batch=arrival_of(request).in_batch)
        generation, writer = self._begun(request, tokenized, serving, is_stored=is_stored)
        items = asked.input_items
        keeper = ResponseKeeper(self._store, self._expiry, owner, items, writer)
        if asked.background:
            return await _in_background(generation, keeper)
        answer = GenerationResponse(generation, writer, self._service)
        return StoredAnswer(answer, writer, keeper.keep) if is_stored else answer

    async def _tokenized(
        self, request: Request, look_up: Callable[[NeedsHistory], History]
    ) -> tuple[TokenizedRequest, ServingState]:
        """Return a request with its prompt in tokens; `look_up` finds what it needs of stored
        responses. Raises RequestError."""
        body, serving = await self._intake.read(request)
        try:
            return await self._intake.tokenize(request, parse_response, body, serving), serving
        except NeedsHistory as needed:
            continued = encode_continued(ContinuedBody(body, look_up(needed)))
        most = self._service.config.max_body_bytes
        if len(continued) > most:
            raise RequestError(
                f"The request and what it goes on from have {len(continued)} bytes; this server "
                f"reads at most {most} (--max-body-bytes).",
                param="previous_response_id",
                code="request_too_large",
                status=TOO_LARGE,
            )
        return await self._intake.tokenize(request, parse_continued, continued, serving), serving

    def _is_stored(self, asked: AskedResponse, *, in_batch: bool) -> bool:
        """Return whether the response is stored, which is the default where there is a store, but
        for lines of batches. Raises RequestError."""
        if self._store.is_on:
            return not in_batch if asked.store is None else asked.store
        if asked.store or asked.background:
            raise store_is_off("store" if asked.store else "background")
        return False

    def _begun(
        self,
        request: Request,
        tokenized: TokenizedRequest,
        serving: ServingState,
        *,
        is_stored: bool,
    ) -> tuple[GenerationStream, ItemWriter]:
        context = self._intake.processed(request, tokenized, serving, PREFIX)
        generation = GenerationStream(context, self._service, serving)
        tokens = ChatResponseBuilder(context, serving.tokenizer.token_bytes)
        origin = Origin(context.id, context.created_s, context.model, is_stored)
        return generation, ItemWriter(generation, tokens, BodyBuilder(asked_in(tokenized), origin))


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
    warnings = "; ".join(generation.context.warnings).encode("ascii", "replace").decode()
    headers = {"x-quire-warnings": warnings} if warnings else None
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
