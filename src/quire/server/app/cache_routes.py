"""The route that asks what of a prompt the prefix cache holds."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.cache.prefix_miss import Miss, MissKind
from quire.engine.orders import Probe
from quire.engines.process.token_stream import EngineDown, Refused
from quire.scheduler.prefix_probe import PrefixProbe
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.apis.openai.inputs import parse_probe
from quire.server.app.wire import CacheMiss, CacheProbe
from quire.server.errors import EngineGone, Overloaded
from quire.server.generation.engine_requests import sharing_terms
from quire.server.generation.intake import RequestIntake
from quire.server.generation.service import Service
from quire.server.http.endpoints import CACHE_PROBE
from quire.server.http.json_responses import json_response
from quire.server.tenancy.tenants import arrival_of


class CacheRoutes:
    """The handler of probes of the prefix cache."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._intake = RequestIntake(service)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that this handler serves."""
        return (Route(CACHE_PROBE, self.probe, methods=["POST"]),)

    async def probe(self, request: Request) -> Response:
        tokenized, serving = await self._intake.tokenized(request, parse_probe)
        asked, (prompt,) = tokenized.request, tokenized.prompts
        assert not isinstance(asked, EmbeddingRequest)
        tenant = arrival_of(request).tenant
        sharing = sharing_terms(asked.cache_salt, prompt.token_ids, serving, tenant)
        try:
            found = await serving.model.engine.ask(Probe(prompt.token_ids, sharing))
        except Refused as refused:
            raise Overloaded(f"Try again: {refused}.", None) from None
        except EngineDown as down:
            raise EngineGone(f"The engine is down: {down}") from None
        headers = {"x-quire-warnings": "; ".join(tokenized.warnings)} if tokenized.warnings else {}
        answer = CacheProbe(
            asked.model or serving.model.name,
            len(prompt.token_ids),
            found.num_cached,
            found.num_on_device,
            _shown(found, are_apart=self._service.tenants.are_apart),
        )
        return json_response(answer, headers=headers)


def _shown(found: PrefixProbe, *, are_apart: bool) -> CacheMiss | None:
    """Return why no more is cached, without what would tell one tenant of another's prompts."""
    miss = found.miss
    if miss is None:
        return None
    if are_apart and miss.kind is MissKind.SALT:
        miss = Miss(MissKind.NEW, found.num_cached)
    return CacheMiss(miss.kind, miss.number)
