"""The route of embeddings."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.descriptions import TOKENIZES, json_body, responses
from quire.server.apis.embeddings import examples
from quire.server.apis.embeddings.parser import parse_embedding
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.apis.embeddings.writer import EmbeddingWriter
from quire.server.apis.openai.response import GenerationResponse
from quire.server.apis.routing import BareRoute, service_of
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.intake import RequestIntake
from quire.server.http.endpoints import EMBEDDINGS
from quire.server.http.report_headers import WARNINGS

router = APIRouter(tags=["OpenAI"], route_class=BareRoute)


@router.post(
    EMBEDDINGS,
    summary="A vector for each text.",
    responses=responses(examples.EMBEDDINGS, with_headers=(WARNINGS,), errors=TOKENIZES),
    openapi_extra=json_body(EmbeddingRequest, examples=examples.EMBEDDING_REQUESTS),
)
async def embeddings(request: Request) -> Response:
    service = service_of(request)
    intake = RequestIntake(service)
    tokenized, serving = await intake.tokenized(request, parse_embedding)
    asked = tokenized.request
    assert isinstance(asked, EmbeddingRequest)
    context = intake.processed(request, tokenized, serving, "embd")
    generation = GenerationStream(context, service, serving)
    return GenerationResponse(generation, EmbeddingWriter(context, asked.encoding_format), service)
