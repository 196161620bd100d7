"""The routes of rerankers."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.apis.openai.response import GenerationResponse
from quire.server.apis.scoring.parser import parse_rerank, parse_score
from quire.server.apis.scoring.protocol import RerankRequest, ScoreRequest
from quire.server.apis.scoring.writer import ScoreWriter
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.generation.parsed_input import InputParser
from quire.server.generation.service import Service
from quire.server.http.endpoints import RERANK_PATHS, SCORE_PATHS


class ScoringRoutes:
    """Handlers of what answers with scores of pairs of texts."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._intake = RequestIntake(service)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (
            *(Route(path, self.rerank, methods=["POST"]) for path in RERANK_PATHS),
            *(Route(path, self.score, methods=["POST"]) for path in SCORE_PATHS),
        )

    async def rerank(self, request: Request) -> Response:
        return await self._scored(request, parse_rerank, "rerank")

    async def score(self, request: Request) -> Response:
        return await self._scored(request, parse_score, "score")

    async def _scored(self, request: Request, kind: InputParser, id_prefix: str) -> Response:
        tokenized, serving = await self._intake.tokenized(request, kind)
        asked, facts = tokenized.request, serving.facts.scores
        assert isinstance(asked, RerankRequest | ScoreRequest) and facts is not None
        context = self._intake.processed(request, tokenized, serving, id_prefix)
        generation = GenerationStream(context, self._service, serving)
        return GenerationResponse(generation, ScoreWriter(context, asked, facts), self._service)
