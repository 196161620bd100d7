"""The route that asks what of a prompt the prefix cache holds."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.cache.prefix_miss import MissKind, PrefixMiss
from quire.engine.orders import PrefixQuery
from quire.engines.process.token_stream import EngineDown, RequestRefused
from quire.scheduler.prefix_probe import PrefixProbe
from quire.server.apis.descriptions import REPORT_HEADERS, TOKENIZES, json_body, responses
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.apis.openai.inputs import parse_probe
from quire.server.apis.protocol.chat import ChatRequest
from quire.server.apis.protocol.completions import CompletionRequest
from quire.server.apis.routing import BareRoute, service_of
from quire.server.app import examples
from quire.server.app.wire import CacheMiss, CacheProbe
from quire.server.errors import EngineGone, Overloaded
from quire.server.generation.engine_requests import sharing_terms
from quire.server.generation.intake import RequestIntake
from quire.server.http.endpoints import CACHE_PROBE
from quire.server.http.json_responses import json_response
from quire.server.http.report_headers import report_headers
from quire.server.tenancy.tenants import arrival_of

router = APIRouter(tags=["Introspection"], route_class=BareRoute)


@router.post(
    CACHE_PROBE,
    summary="What the prefix cache holds of the prompt of a completion or a conversation, now.",
    responses=responses(examples.CACHE_PROBE, with_headers=REPORT_HEADERS, errors=TOKENIZES),
    openapi_extra=json_body(CompletionRequest, ChatRequest, examples=examples.CACHE_PROBE_REQUESTS),
)
async def probe(request: Request) -> Response:
    service = service_of(request)
    tokenized, serving = await RequestIntake(service).tokenized(request, parse_probe)
    asked, (prompt,) = tokenized.request, tokenized.prompts
    assert not isinstance(asked, EmbeddingRequest)
    tenant = arrival_of(request).tenant
    sharing = sharing_terms(asked.cache_salt, prompt.token_ids, serving, tenant)
    try:
        found = await serving.model.engine.ask(PrefixQuery(prompt.token_ids, sharing))
    except RequestRefused as refused:
        raise Overloaded(f"Try again: {refused}.", None) from None
    except EngineDown as down:
        raise EngineGone(f"The engine is down: {down}") from None
    headers = report_headers(tokenized.warnings, tokenized.ignored)
    answer = CacheProbe(
        asked.model or serving.model.name,
        len(prompt.token_ids),
        found.num_cached,
        found.num_on_device,
        _shown(found, are_apart=service.tenants.are_apart),
        found.state,
    )
    return json_response(answer, headers=headers)


def _shown(found: PrefixProbe, *, are_apart: bool) -> CacheMiss | None:
    """Return why no more is cached, without what would tell one tenant of another's prompts."""
    miss = found.miss
    if miss is None:
        return None
    if are_apart and miss.kind is MissKind.SALT:
        miss = PrefixMiss(MissKind.NEW, found.num_cached)
    return CacheMiss(miss.kind, miss.number)
