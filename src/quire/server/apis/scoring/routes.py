"""The routes of rerankers."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.descriptions import TOKENIZES, json_body, responses
from quire.server.apis.openai.response import GenerationResponse
from quire.server.apis.routing import BareRoute, service_of
from quire.server.apis.scoring import examples
from quire.server.apis.scoring.parser import parse_rerank, parse_score
from quire.server.apis.scoring.protocol import RerankRequest, ScoreRequest
from quire.server.apis.scoring.writer import ScoreWriter
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.generation.parsed_input import InputParser
from quire.server.http.endpoints import RERANK_PATHS, SCORE_PATHS
from quire.server.http.report_headers import WARNINGS

router = APIRouter(tags=["Rerankers"], route_class=BareRoute)


async def rerank(request: Request) -> Response:
    return await _scored(request, parse_rerank, "rerank")


async def score(request: Request) -> Response:
    return await _scored(request, parse_score, "score")


async def _scored(request: Request, parse: InputParser, id_prefix: str) -> Response:
    service = service_of(request)
    intake = RequestIntake(service)
    tokenized, serving = await intake.tokenized(request, parse)
    asked, facts = tokenized.request, serving.facts.scores
    assert isinstance(asked, RerankRequest | ScoreRequest) and facts is not None
    context = intake.processed(request, tokenized, serving, id_prefix)
    generation = GenerationStream(context, service, serving)
    return GenerationResponse(generation, ScoreWriter(context, asked, facts), service)


for path in RERANK_PATHS:
    router.add_api_route(
        path,
        rerank,
        methods=["POST"],
        summary="Documents in the order in which they go with a query, by a cross-encoder.",
        responses=responses(examples.RERANK, with_headers=(WARNINGS,), errors=TOKENIZES),
        openapi_extra=json_body(RerankRequest, examples=examples.RERANK_REQUESTS),
    )
for path in SCORE_PATHS:
    router.add_api_route(
        path,
        score,
        methods=["POST"],
        summary="Scores of pairs of texts, by a cross-encoder.",
        responses=responses(examples.SCORES, with_headers=(WARNINGS,), errors=TOKENIZES),
        openapi_extra=json_body(ScoreRequest, examples=examples.SCORE_REQUESTS),
    )
