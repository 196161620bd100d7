"""Routes of OpenAI's API: completions, chat, and the tokenizer."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

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
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.generation.service import Service
from quire.server.http.endpoints import CHAT, COMPLETIONS


class TextRoutes:
    """Handlers of every route that needs the engine or the tokenizer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._intake = RequestIntake(service)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (
            Route(COMPLETIONS, self.completions, methods=["POST"]),
            Route(CHAT, self.chat, methods=["POST"]),
            Route(f"{COMPLETIONS}/render", self.render_completion, methods=["POST"]),
            Route(f"{CHAT}/render", self.render_chat, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        )

    async def completions(self, request: Request) -> Response:
        context, serving = await self._intake.context(request, parse_completion, "cmpl")
        generation = GenerationStream(context, self._service, serving)
        builder = CompletionResponseBuilder(context, serving.tokenizer.token_bytes)
        return GenerationResponse(generation, ChunkWriter(generation, builder), self._service)

    async def chat(self, request: Request) -> Response:
        context, serving = await self._intake.context(request, parse_chat, "chatcmpl")
        generation = GenerationStream(context, self._service, serving)
        builder = ChatResponseBuilder(context, serving.tokenizer.token_bytes)
        return GenerationResponse(generation, ChunkWriter(generation, builder), self._service)

    async def render_completion(self, request: Request) -> Response:
        return await self._intake.answer(request, render_completion)

    async def render_chat(self, request: Request) -> Response:
        return await self._intake.answer(request, render_chat)

    async def tokenize(self, request: Request) -> Response:
        return await self._intake.answer(request, tokenize)

    async def detokenize(self, request: Request) -> Response:
        return await self._intake.answer(request, detokenize)
