"""Routes of responses."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.openai.chat_response_builder import ChatResponseBuilder
from quire.server.openai.protocol.capabilities import RESPONSES
from quire.server.openai.response import GenerationResponse
from quire.server.requests.generation_stream import GenerationStream
from quire.server.requests.input_parser import InputKind
from quire.server.requests.intake import RequestIntake
from quire.server.responses.builder import BodyBuilder, Origin
from quire.server.responses.writer import PREFIX, ItemWriter
from quire.server.service import Service


class ResponseRoutes:
    """Handlers of responses."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._intake = RequestIntake(service)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (Route(RESPONSES, self.create, methods=["POST"]),)

    async def create(self, request: Request) -> Response:
        tokenized, serving = await self._intake.tokenized(request, InputKind.RESPONSE)
        asked = tokenized.asked
        assert asked is not None
        context = self._intake.processed(request, tokenized, serving, PREFIX)
        generation = GenerationStream(context, self._service, serving)
        tokens = ChatResponseBuilder(context, serving.tokenizer.token_bytes)
        origin = Origin(context.id, context.created_s, context.model)
        writer = ItemWriter(generation, tokens, BodyBuilder(asked, origin))
        return GenerationResponse(generation, writer, self._service)
