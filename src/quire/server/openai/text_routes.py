"""Routes of OpenAI's API: models, completions, chat, and the tokenizer."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from quire.server.errors import RequestError, ShuttingDown
from quire.server.http.json_responses import JSON, json_response
from quire.server.openai.answer_writer import ChunkWriter
from quire.server.openai.chat_response_builder import ChatResponseBuilder
from quire.server.openai.completion_response_builder import CompletionResponseBuilder
from quire.server.openai.protocol.capabilities import CHAT, COMPLETIONS, RESPONSES
from quire.server.openai.protocol.wire import ModelCard, ModelList
from quire.server.openai.response import GenerationResponse
from quire.server.requests.context import RequestContext
from quire.server.requests.generation_stream import GenerationStream
from quire.server.requests.input_parser import InputKind, TokenizedRequest, model_not_found
from quire.server.requests.input_processor import InputProcessor
from quire.server.requests.input_reader import INLINE_BYTES
from quire.server.responses.writer import ItemWriter
from quire.server.service import Service, ServingState
from quire.server.tenancy.tenants import arrival_of

Made = TypeVar("Made")


class TextRoutes:
    """Handlers of every route that needs the engine or the tokenizer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._created_s = int(service.sources.now())

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.model, methods=["GET"]),
            Route(COMPLETIONS, self.completions, methods=["POST"]),
            Route(CHAT, self.chat, methods=["POST"]),
            Route(RESPONSES, self.response, methods=["POST"]),
            Route(f"{COMPLETIONS}/render", self.render_completion, methods=["POST"]),
            Route(f"{CHAT}/render", self.render_chat, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        )

    async def models(self, request: Request) -> Response:
        names = self._service.config.served_model_names
        return json_response(ModelList(tuple(map(self._card, names))))

    async def model(self, request: Request) -> Response:
        name = str(request.path_params["name"])
        self._check_model(name)
        return json_response(self._card(name))

    def _card(self, name: str) -> ModelCard:
        facts = self._service.engine.facts
        max_model_len = None if facts is None else facts.max_model_len
        root = self._service.config.model_name
        return ModelCard(name, self._created_s, root, max_model_len)

    async def completions(self, request: Request) -> Response:
        context, serving = await self._context(request, InputKind.COMPLETION, "cmpl")
        generation = GenerationStream(context, self._service, serving.tokenizer)
        builder = CompletionResponseBuilder(context, serving.tokenizer.token_bytes)
        return GenerationResponse(generation, ChunkWriter(generation, builder), self._service)

    async def chat(self, request: Request) -> Response:
        context, serving = await self._context(request, InputKind.CHAT, "chatcmpl")
        generation = GenerationStream(context, self._service, serving.tokenizer)
        builder = ChatResponseBuilder(context, serving.tokenizer.token_bytes)
        return GenerationResponse(generation, ChunkWriter(generation, builder), self._service)

    async def response(self, request: Request) -> Response:
        tokenized, serving = await self._tokenized(request, InputKind.RESPONSE)
        asked = tokenized.asked
        assert asked is not None
        context = self._processed(request, tokenized, serving, "resp")
        builder = ChatResponseBuilder(context, serving.tokenizer.token_bytes)
        generation = GenerationStream(context, self._service, serving.tokenizer)
        writer = ItemWriter(generation, builder, asked)
        return GenerationResponse(generation, writer, self._service)

    async def render_completion(self, request: Request) -> Response:
        return await self._answer(request, InputKind.RENDER_COMPLETION)

    async def render_chat(self, request: Request) -> Response:
        return await self._answer(request, InputKind.RENDER_CHAT)

    async def tokenize(self, request: Request) -> Response:
        return await self._answer(request, InputKind.TOKENIZE)

    async def detokenize(self, request: Request) -> Response:
        return await self._answer(request, InputKind.DETOKENIZE)

    async def _context(
        self, request: Request, kind: InputKind, id_prefix: str
    ) -> tuple[RequestContext, ServingState]:
        tokenized, serving = await self._tokenized(request, kind)
        return self._processed(request, tokenized, serving, id_prefix), serving

    async def _tokenized(
        self, request: Request, kind: InputKind
    ) -> tuple[TokenizedRequest, ServingState]:
        body, serving = await self._read(request)
        tenant = arrival_of(request).tenant.name
        reading = self._service.inputs.prompts(kind, body, serving.input, tenant)
        return await self._unless_cancelled(request, body, reading), serving

    def _processed(
        self,
        request: Request,
        tokenized: TokenizedRequest,
        serving: ServingState,
        id_prefix: str,
    ) -> RequestContext:
        model = tokenized.request.model or self._service.config.model_name
        processor = InputProcessor(model, serving, self._service.sources, arrival_of(request))
        context = processor.process(tokenized, id_prefix)
        if tokenized.grammar is not None:
            self._service.metrics.on_structured(tokenized.grammar.kind, tokenized.check_s)
        return context

    async def _answer(self, request: Request, kind: InputKind) -> Response:
        body, serving = await self._read(request)
        tenant = arrival_of(request).tenant.name
        reading = self._service.inputs.answer(kind, body, serving.input, tenant)
        response = await self._unless_cancelled(request, body, reading)
        headers = {"x-quire-warnings": "; ".join(response.warnings)} if response.warnings else None
        return Response(response.body, headers=headers, media_type=JSON)

    async def _read(self, request: Request) -> tuple[bytes, ServingState]:
        """Return the body and what serving needs. Raises RequestError.

        That the server is not ready is said before the body is checked, but after it is read: a
        client that still sends would not read the answer.
        """
        body = await self._service.bodies.read(request, self._service.config.max_body_bytes)
        await self._service.work_throttle.wait(arrival_of(request).tenant.name)
        return body, self._service.serving_state()

    async def _unless_cancelled(
        self, request: Request, body: bytes, reading: Awaitable[Made]
    ) -> Made:
        """Return what `reading` does, unless the client goes away or the server must stop before;
        RequestError then. A small body is read at once."""
        if len(body) <= INLINE_BYTES:
            return await reading
        working = asyncio.ensure_future(reading)
        leaving, cut_off = asyncio.ensure_future(request.receive()), self._service.cut_off
        ends: list[asyncio.Future[Made] | asyncio.Future[Message] | asyncio.Future[None]]
        ends = [working, leaving, cut_off]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            is_read = not working.cancel()
        if is_read:
            return working.result()
        if cut_off.done():
            raise ShuttingDown
        raise RequestError("The client went away while its request was read.", code="client_gone")

    def _check_model(self, name: str) -> None:
        names = self._service.config.served_model_names
        if name not in names:
            raise model_not_found(name, names)
