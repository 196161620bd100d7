"""Parses the bodies of rerank and score requests."""

from quire.server.apis.protocol.parse import parse_request
from quire.server.apis.scoring.engine_requests import ScoringBuilder
from quire.server.apis.scoring.inputs import check_scoring, read_pairs, rerank_pairs, score_pairs
from quire.server.apis.scoring.protocol import RerankRequest, ScoreRequest
from quire.server.generation.checks import check_model, no_effect_warnings
from quire.server.generation.context import Prompt
from quire.server.generation.parsed_input import TokenizedRequest
from quire.server.generation.prompts import truncation_warnings
from quire.server.http.endpoints import RERANK, SCORE
from quire.server.models.input_context import InputContext


def parse_rerank(body: bytes, context: InputContext) -> TokenizedRequest:
    """Read a request for a ranking. Raises RequestError."""
    request, no_effect = parse_request(body, RerankRequest, RERANK)
    check_model(request.model, context)
    check_scoring(request, context)
    prompts = read_pairs(rerank_pairs(request), request, context)
    kept = request if request.return_documents else request.model_copy(update={"documents": ()})
    return _scored(kept, prompts, no_effect)


def parse_score(body: bytes, context: InputContext) -> TokenizedRequest:
    """Read a request for scores. Raises RequestError."""
    request, no_effect = parse_request(body, ScoreRequest, SCORE)
    check_model(request.model, context)
    check_scoring(request, context)
    prompts = read_pairs(score_pairs(request), request, context)
    return _scored(request.model_copy(update={"text_1": (), "text_2": ()}), prompts, no_effect)


def _scored(
    request: RerankRequest | ScoreRequest, prompts: tuple[Prompt, ...], no_effect: tuple[str, ...]
) -> TokenizedRequest:
    warnings = no_effect_warnings(no_effect) + truncation_warnings(prompts)
    return TokenizedRequest(request, prompts, warnings, pooled=ScoringBuilder(request))
