"""The route of embeddings."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.apis.embeddings.parser import parse_embedding
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.apis.embeddings.writer import EmbeddingWriter
from quire.server.apis.openai.response import GenerationResponse
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.generation.service import Service
from quire.server.http.endpoints import EMBEDDINGS


class EmbeddingRoutes:
    """Handlers of what answers with vectors."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._intake = RequestIntake(service)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (Route(EMBEDDINGS, self.embeddings, methods=["POST"]),)

    async def embeddings(self, request: Request) -> Response:
        tokenized, serving = await self._intake.tokenized(request, parse_embedding)
        asked = tokenized.request
        assert isinstance(asked, EmbeddingRequest)
        context = self._intake.processed(request, tokenized, serving, "embd")
        generation = GenerationStream(context, self._service, serving)
        writer = EmbeddingWriter(context, asked.encoding_format)
        return GenerationResponse(generation, writer, self._service)
