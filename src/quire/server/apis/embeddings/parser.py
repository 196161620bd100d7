"""Parses the bodies of embedding requests."""

from quire.server.apis.embeddings.engine_requests import EmbeddingBuilder
from quire.server.apis.embeddings.inputs import check_embedding, read_inputs
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.apis.protocol.parse import parse_request
from quire.server.generation.checks import check_model, no_effect_warnings
from quire.server.generation.parsed_input import TokenizedRequest
from quire.server.generation.prompts import truncation_warnings
from quire.server.http.endpoints import EMBEDDINGS
from quire.server.models.input_context import InputContext


def parse_embedding(body: bytes, context: InputContext) -> TokenizedRequest:
    """Read a request for embeddings. Raises RequestError."""
    request, no_effect = parse_request(body, EmbeddingRequest, EMBEDDINGS)
    check_model(request.model, context)
    check_embedding(request, context)
    prompts = read_inputs(request, context)
    warnings = no_effect_warnings(no_effect) + truncation_warnings(prompts)
    kept = request.model_copy(update={"input": ()})
    return TokenizedRequest(kept, prompts, warnings, pooled=EmbeddingBuilder(kept))
